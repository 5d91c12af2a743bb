"""Measures the tokens that headscope samples per second: without and with the key-value cache,
compiled, and in bf16 and int8. Compares headscope with the package transformers."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks import runner
from benchmarks.runner import Figures, Request, Result
from headscope.config.parse import Positive
from headscope.config.parts import Part
from headscope.conversion.classes import GPT2
from headscope.conversion.proof import converted
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.trained.checkpoint import build_model
from headscope.trained.generation.compiled import compile_decoding
from headscope.trained.generation.generate import generate_tokens
from headscope.trained.generation.precision import in_precision

OURS, THEIRS, SPEED = "headscope", "transformers", "tokens_per_second"
Way = Callable[[int], list[int]]
"""Samples a given number of tokens after a fixed prompt, and returns them."""


@dataclass
class Case:
    """The sizes of a model, and the lengths of the prompt and of the sampled text."""

    vocab_size: Positive
    block_size: Positive
    embed_dim: Positive
    layers: Positive
    heads: Positive
    prompt: Positive
    tokens: Positive


def measure(request: Request, rounds: Positive, small: Case, large: Case) -> Result:
    """Measures the sampled tokens per second for a single text. The time includes reading the
    prompt, but not the compilation.

    `suite.small` compares only ways to sample with headscope. `suite.large` samples greedily, and
    also compares with `generate` of transformers.

    Raises RuntimeError when two ways sample different texts in float32.
    """
    if large.prompt + large.tokens > large.block_size:
        given = f"suite.large.prompt={large.prompt} and suite.large.tokens={large.tokens}"
        raise UserError(f"{given} must be at most suite.large.block_size={large.block_size}")
    groups: dict[str, list[dict[str, Any]]] = {}
    for case, ways_of in ((small, small_ways), (large, large_ways)):
        torch.manual_seed(1)
        sizes = ("block_size", "embed_dim", "layers", "heads")
        words = [f"model.{key}={getattr(case, key)}" for key in sizes]
        config = request.compose("model/gpt2", words, key="model")
        model = build_model(config, vocab_size=case.vocab_size).to(request.device).eval()
        prompt = torch.randint(case.vocab_size, (case.prompt,)).tolist()
        ways = ways_of(model, config, prompt)
        count = 8 if case is large else case.tokens
        texts = {name: way(count) for name, way in ways.items()}  # also warms up
        first = next(iter(ways))  # in float32
        for name, text in texts.items():
            if not name.endswith(("bf16", "int8")) and text != texts[first]:
                raise RuntimeError(f"{name} samples another text than {first}")
        sides = {name: partial(turn, way, case.tokens, request) for name, way in ways.items()}
        title = ", ".join(f"{key} {value:,}" for key, value in vars(case).items())
        groups[title] = runner.compared(sides, rounds, ratio_of=SPEED, reference=first)
    return Result(
        "Tokens sampled per second, one text at a time",
        groups,
        f"Median of {rounds} rounds. Ratio: speed-up over the first row in the same round.",
        "tokens per second, x: speed-up over the first bar",
        SPEED,
    )


def turn(way: Way, count: int, request: Request) -> Figures:
    return {SPEED: count / runner.seconds_of(lambda: way(count))}


def sample(model: GPT, prompt: list[int], count: int, **options: Any) -> list[int]:
    made = generate_tokens(model, prompt, max_new_tokens=count, seeds=[1], **options)
    return [token for (token,) in made]


def small_ways(model: GPT, config: Part, prompt: list[int]) -> dict[str, Way]:
    way = partial(sample, model, prompt, temperature=0.8)
    return {
        "no cache": partial(way, cached=False),
        OURS: way,
        f"{OURS}, compiled": partial(way, decode_one=compile_decoding(model)),
    }


def large_ways(model: GPT, config: Part, prompt: list[int]) -> dict[str, Way]:
    kinds = ("fp32", "bf16", "int8") if model.device.type == "cpu" else ("fp32", "bf16")
    ids = torch.tensor([prompt], device=model.device)
    _, library_model = converted(GPT2(), model, config)
    library_model.set_attn_implementation("sdpa")  # its default; conversions use eager attention
    library_model.to(model.device).eval()

    def generate(model: Any, count: int) -> list[int]:
        options = {"max_new_tokens": count, "min_new_tokens": count, "pad_token_id": 0}
        made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **options)
        return made[0, len(prompt) :].tolist()

    ways: dict[str, Way] = {
        f"{THEIRS} fp32": partial(generate, library_model),
        f"{THEIRS} bf16": partial(generate, copy.deepcopy(library_model).bfloat16()),
    }
    for kind in kinds:
        rounded = in_precision(model, kind)
        way = partial(sample, rounded, prompt, temperature=0.0)
        ways[f"{OURS} {kind}"] = way
        ways[f"{OURS}, compiled, {kind}"] = partial(way, decode_one=compile_decoding(rounded))
    return ways
