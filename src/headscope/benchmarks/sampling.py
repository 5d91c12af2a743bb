"""Tokens sampled per second: with and without the cache, compiled, in fewer bits, and by others."""

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console

from headscope.benchmarks.limits import read_bandwidth, weights_in_products
from headscope.benchmarks.peers import hugging_face, require_transformers
from headscope.benchmarks.timing import in_turn, machine, ratios, spread
from headscope.errors import UserError
from headscope.generation import Read, compile_reading, generate_tokens
from headscope.nn import GPT, FeedForward, MultiHeadAttention, layer_norm
from headscope.nn.precision import in_precision
from headscope.training.bare_loop import wait_for

OURS, THEIRS = "headscope", "transformers"
UNCACHED = "headscope, no cache"


@dataclass(frozen=True)
class Sampled:
    """A model with fresh weights, how long a prompt it is given, and how many tokens it adds."""

    vocab_size: int
    block_size: int
    embed_dim: int
    layers: int
    heads: int
    prompt: int
    tokens: int

    def __post_init__(self) -> None:
        if self.prompt < 1 or self.tokens < 1:
            raise UserError(f"prompt={self.prompt} and tokens={self.tokens} must be at least 1")

    def model(self, device: torch.device) -> GPT:
        sizes = {key: value for key, value in asdict(self).items() if key not in NOT_SIZES}
        torch.manual_seed(1)
        heads = sizes.pop("heads")
        model = GPT(
            **sizes,
            attention=partial(MultiHeadAttention, heads=heads, qkv_bias=True, out_bias=True),
            norm=partial(layer_norm, bias=True),
            feed_forward=partial(FeedForward, bias=True),
        )
        return model.to(device).eval()

    def text(self) -> list[int]:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(self.vocab_size, (self.prompt,), generator=generator).tolist()

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, {self.embed_dim} wide, vocabulary {self.vocab_size:,}, context "
            f"{self.block_size:,}: {self.tokens:,} tokens after {self.prompt:,}"
        )


NOT_SIZES = ("prompt", "tokens")


def time_sampling(
    small: Sampled, large: Sampled, *, rounds: int, device: torch.device, console: Console
) -> dict[str, Any]:
    """Tokens per second, the reading of the prompt included, one text at a time, all ways in turn.

    `small` compares ways of the same model: reading the whole context anew for every token (the
    reference), the cache, the cache with a compiled step. `large` compares with `generate` of
    transformers in fp32 (the reference) and bf16, greedily: `of_bandwidth` is the part of what
    memory can deliver that the weights and the cache, read once a token, take. Compiling is not
    counted.

    Raises UserError when there is nothing to compare with, or it has no room for the text, and
    RuntimeError when the ways do not agree.
    """
    require_transformers()
    if large.prompt + large.tokens > large.block_size:
        raise UserError(
            f"suite.large.prompt={large.prompt} and suite.large.tokens={large.tokens} are more "
            f"than suite.large.block_size={large.block_size}, where {THEIRS} stops"
        )
    return {
        **machine(device),
        "rounds": rounds,
        "small": {**asdict(small), **time_small(small, rounds, device, console)},
        "large": {**asdict(large), **time_large(large, rounds, device, console)},
    }


def time_small(
    case: Sampled, rounds: int, device: torch.device, console: Console
) -> dict[str, Any]:
    model, prompt = case.model(device), case.text()
    started = time.perf_counter()
    read_one = compile_reading(model)
    compile_seconds = time.perf_counter() - started
    ways: dict[str, dict[str, Any]] = {
        UNCACHED: {"cached": False},
        OURS: {},
        f"{OURS}, compiled": {"read_one": read_one},
    }

    def write(options: dict[str, Any], count: int) -> list[int]:
        made = generate_tokens(
            model, [prompt], max_new_tokens=count, seeds=[1], temperature=0.8, **options
        )
        return [token for (token,) in made]

    texts = {name: write(options, case.tokens) for name, options in ways.items()}
    require_same(texts)
    seconds = in_turn(
        {name: timed(write, options, case.tokens, device) for name, options in ways.items()},
        rounds=rounds,
        tell=console.print,
        unit="s",
    )
    return {"compile_seconds": round(compile_seconds, 1), "ways": rows(seconds, UNCACHED, case)}


def time_large(
    case: Sampled, rounds: int, device: torch.device, console: Console
) -> dict[str, Any]:
    model, prompt = case.model(device), case.text()
    peer = hugging_face(model)
    ids = torch.tensor([prompt], device=device)
    require_close(peer(ids).logits, model(ids))
    ours = {"fp32": model, "bf16": in_precision(model, "bf16")}
    if device.type == "cpu":
        ours["int8"] = in_precision(model, "int8")
    theirs = {"fp32": peer, "bf16": copy.deepcopy(peer).bfloat16()}
    started = time.perf_counter()
    compiled = {name: (ours[name], compile_reading(ours[name])) for name in ("fp32", "bf16")}
    compile_seconds = time.perf_counter() - started

    def write(way: tuple[GPT, Read | None], count: int) -> list[int]:
        model, read_one = way
        made = generate_tokens(
            model, [prompt], max_new_tokens=count, seeds=[1], temperature=0.0, read_one=read_one
        )
        return [token for (token,) in made]

    def write_there(model: Any, count: int) -> list[int]:
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )
        return made[0, len(prompt) :].tolist()

    require_same(
        {
            OURS: write((model, None), 8),
            THEIRS: write_there(peer, 8),
            f"{OURS}, compiled": write(compiled["fp32"], 8),
        }
    )
    sides = {
        **{f"{THEIRS} {name}": (write_there, each) for name, each in theirs.items()},
        **{f"{OURS} {name}": (write, (each, None)) for name, each in ours.items()},
        **{f"{OURS}, compiled, {name}": (write, each) for name, each in compiled.items()},
    }
    for way, each in sides.values():
        way(each, 2)
    seconds = in_turn(
        {name: timed(way, each, case.tokens, device) for name, (way, each) in sides.items()},
        rounds=rounds,
        tell=console.print,
        unit="s",
    )
    found = rows(seconds, f"{THEIRS} fp32", case)
    bandwidth = read_bandwidth(device)
    for row in found:
        kind = row["way"].split()[-1]
        size = bytes_per_token(model, kind, length=case.prompt + case.tokens // 2)
        row["of_bandwidth"] = round(row["tokens_per_second"]["median"] * size / bandwidth, 2)
    return {
        "compile_seconds": round(compile_seconds, 1),
        "gigabytes_per_second": round(bandwidth / 1e9, 1),
        "ways": found,
    }


def timed(
    way: Callable[[Any, int], list[int]], what: Any, count: int, device: torch.device
) -> Callable[[], float]:
    """Seconds that a way of writing takes for `count` tokens."""

    def seconds() -> float:
        wait_for(device)
        started = time.perf_counter()
        way(what, count)
        wait_for(device)
        return time.perf_counter() - started

    return seconds


def rows(seconds: dict[str, list[float]], reference: str, case: Sampled) -> list[dict[str, Any]]:
    return [
        {
            "way": name,
            "tokens_per_second": spread(case.tokens / value for value in values),
            "times_faster": ratios(seconds[reference], values),
        }
        for name, values in seconds.items()
    ]


def bytes_per_token(model: GPT, kind: str, *, length: int) -> int:
    """What must be read for one token: every weight but those of the tables that are only looked
    up in, and the keys and values of `length` tokens."""
    size = {"fp32": 4, "bf16": 2, "int8": 1}[kind]
    cache = sum(2 * part.kv_heads * part.head_dim for part in model.attentions) * (
        2 if kind == "bf16" else 4
    )
    return weights_in_products(model) * size + cache * length


def require_same(texts: dict[str, list[int]]) -> None:
    (first, expected), *others = texts.items()
    for name, text in others:
        if text != expected:
            raise RuntimeError(f"{name} writes another text than {first}")


def require_close(theirs: torch.Tensor, ours: torch.Tensor) -> None:
    apart = (theirs - ours).abs().max().item()
    if apart > 1e-3 * ours.abs().max().item():
        raise RuntimeError(f"the logits of {THEIRS} and {OURS} are up to {apart} apart")
