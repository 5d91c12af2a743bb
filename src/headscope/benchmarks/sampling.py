"""Sampled tokens per second: with and without the cache, compiled, in lower precision, and by
`generate` of transformers."""

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from headscope.benchmarks.roofline import bytes_per_token, read_bandwidth
from headscope.benchmarks.runner import Figures, Request, Result, seconds_of, summarize
from headscope.benchmarks.show import Bars
from headscope.benchmarks.transformers import gpt2_of, require_transformers
from headscope.errors import UserError
from headscope.generation import compile_reading, generate_tokens
from headscope.nn import GPT, FeedForward, MultiHeadAttention, layer_norm
from headscope.nn.precision import in_precision

OURS, THEIRS = "headscope", "transformers"
AXIS, PARTS = "tokens per second (higher is faster)", {"tokens_per_second": "speed"}
WORDS = "{tokens_per_second[median]:,.1f} tokens/s, {tokens_per_second[ratio][median]:.2f}x"
CASE = (
    "{layers} layers, {embed_dim} wide, vocabulary {vocab_size:,}, context {block_size:,}: "
    "{tokens:,} tokens after {prompt:,}"
)
Write = Callable[[int], list[int]]
"""Samples the given number of tokens after the prompt."""


def measure(request: Request) -> Result:
    """Tokens per second of one text. The time includes the prompt, but not compilation.

    `suite.small` compares ways to sample from one model. `suite.large` compares greedy sampling
    with `generate` of transformers. `of_bandwidth` is the share of the memory bandwidth needed to
    read the weights and the cache once per token. Raises RuntimeError when two ways disagree.
    """
    require_transformers()
    plan, large = request.suite, request.suite.large
    if large.prompt + large.tokens > large.block_size:
        raise UserError(
            f"suite.large.prompt={large.prompt} and suite.large.tokens={large.tokens} are more "
            f"than suite.large.block_size={large.block_size}, where {THEIRS} stops"
        )
    groups: dict[str, list[dict[str, Any]]] = {}
    compiling = []
    for case, ways_of in ((plan.small, small_ways), (large, large_ways)):
        torch.manual_seed(1)
        sizes = {key: value for key, value in vars(case).items() if key not in ("prompt", "tokens")}
        heads = sizes.pop("heads")
        model = GPT(
            **sizes,
            attention=partial(MultiHeadAttention, heads=heads, qkv_bias=True, out_bias=True),
            norm=partial(layer_norm, bias=True),
            feed_forward=partial(FeedForward, bias=True),
        )
        model = model.to(request.device).eval()
        drawn = torch.Generator().manual_seed(1)
        prompt = torch.randint(case.vocab_size, (case.prompt,), generator=drawn).tolist()
        ways, seconds = ways_of(model, prompt)
        compiling.append(f"{seconds:.0f} s")
        count = 8 if case is large else case.tokens
        texts = {name: way(count) for name, way in ways.items()}  # also warms up
        require_same({name: texts[name] for name in texts if not name.endswith(("bf16", "int8"))})
        sides = {name: partial(turn, way, case.tokens, request) for name, way in ways.items()}
        rows = summarize(request.alternate(sides, plan.rounds), reference=next(iter(ways)))
        groups[CASE.format_map(vars(case))] = rows
    bandwidth = read_bandwidth(request.device)
    for row in rows:
        size = bytes_per_token(model, row["side"].split()[-1], large.prompt + large.tokens // 2)
        row["of_bandwidth"] = row["tokens_per_second"]["median"] * size / bandwidth
    names = [row["side"] for rows in groups.values() for row in rows]
    ours = [name for name in names if name.startswith(OURS)]
    return Result(
        groups,
        ["tokens_per_second", "of_bandwidth"],
        "ratio: speed-up over the first line of the table in the same round, median. Compiling "
        f"took {' and '.join(compiling)}, not included. Memory reads {bandwidth / 1e9:.1f} GB/s.",
        f"Tokens sampled per second, one text at a time, medians of {plan.rounds} rounds\n"
        "x: speed-up over the first bar of each group",
        [Bars(title, AXIS, rows, PARTS, WORDS, ours) for title, rows in groups.items()],
        figures={"read_bytes_per_second": bandwidth},
    )


def turn(way: Write, count: int, request: Request) -> Figures:
    return {"tokens_per_second": count / seconds_of(lambda: way(count), request.device)}


def sample(model: GPT, prompt: list[int], count: int, **options: Any) -> list[int]:
    made = generate_tokens(model, [prompt], max_new_tokens=count, seeds=[1], **options)
    return [token for (token,) in made]


def small_ways(model: GPT, prompt: list[int]) -> tuple[dict[str, Write], float]:
    """The ways to sample from a small model by name, and the seconds of compiling one."""
    started = time.perf_counter()
    compiled = compile_reading(model)
    seconds = time.perf_counter() - started
    way = partial(sample, model, prompt, temperature=0.8)
    return {
        "no cache": partial(way, cached=False),
        OURS: way,
        f"{OURS}, compiled": partial(way, read_one=compiled),
    }, seconds


def large_ways(model: GPT, prompt: list[int]) -> tuple[dict[str, Write], float]:
    kinds = ("fp32", "bf16", "int8") if model.device.type == "cpu" else ("fp32", "bf16")
    models = {kind: in_precision(model, kind) for kind in kinds}
    started = time.perf_counter()
    compiled = {kind: compile_reading(models[kind]) for kind in kinds}
    seconds = time.perf_counter() - started
    ids = torch.tensor([prompt], device=model.device)
    peer = gpt2_of(model)

    def generate(model: Any, count: int) -> list[int]:
        options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        mask = torch.ones_like(ids)
        made = model.generate(ids, attention_mask=mask, use_cache=True, pad_token_id=0, **options)
        return made[0, len(prompt) :].tolist()

    def way(kind: str, **options: Any) -> Write:
        return partial(sample, models[kind], prompt, temperature=0.0, **options)

    return {
        f"{THEIRS} fp32": partial(generate, peer),
        f"{THEIRS} bf16": partial(generate, copy.deepcopy(peer).bfloat16()),
        **{f"{OURS} {kind}": way(kind) for kind in kinds},
        **{f"{OURS}, compiled, {kind}": way(kind, read_one=compiled[kind]) for kind in compiled},
    }, seconds


def require_same(texts: dict[str, list[int]]) -> None:
    (first, expected), *others = texts.items()
    for name, text in others:
        if text != expected:
            raise RuntimeError(f"{name} writes another text than {first}")
