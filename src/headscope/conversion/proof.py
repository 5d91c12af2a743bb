"""Proves that two models compute the same function: their logits on random tokens are equal. Finds
the class of another tool that computes the function of a model of ours.

The architecture is proven in float64, with random weights and large scores, where only rounding to
16 digits is left. Real weights are proven in float32, in which the models compute.

Some models of ours compute the same function as a simpler model with other weights, so more classes
of other tools can express them: see `standard_form`.

Shapes: T tokens, P compared positions, V vocab_size, C embed_dim, H heads, K kv heads, D head_dim.
"""

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from headscope.config.parts import Part, defaults_in_conf
from headscope.conversion.classes import CLASSES, HuggingFaceClass, Unfit, name_of, unusual
from headscope.errors import UserError, short
from headscope.nn import GPT, MultiHeadAttention, Position
from headscope.nn.held import HELD
from headscope.nn.position.rotary import Rotary, rotate_interleaved
from headscope.trained.checkpoint.building import build_model
from headscope.trained.checkpoint.loading import WithoutInitialization

DOT_PRODUCT = ("SingleHead", "MultiHead", "MultiQuery", "GroupedQuery", "StackedHeads")
"""The attentions that other tools have. They do not have those that a user adds to headscope."""

LONGEST = 2048
"""The longest context of a model without a table of positions: memory grows with its square."""

SCORES = 10.0
"""The deviation of the scores of a random model. Real models have such scores: with small ones, a
wrong angle would hardly change the logits."""

ARCHITECTURE, WEIGHTS = 1e-8, 1e-4
"""How much logits may differ in float64 and in float32, as a share of the largest logit, or of 10
in float32 and of 1 in float64 if all are smaller."""


class NotEqual(Unfit):
    """Two models do not compute the same function."""


class _Float64(TorchFunctionMode):
    """Lets a model of transformers compute in float64 also where it casts to float32: in norms, in
    the softmax, and queries and keys in GPT-Neo."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def wider(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        function: Any = Tensor.double if func is Tensor.float else func
        options = {name: wider(value) for name, value in (kwargs or {}).items()}
        return function(*map(wider, args), **options)


@contextmanager
def in_float64() -> Iterator[None]:
    """Inside the `with` block, new models have weights in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def probe(vocab_size: int, length: int, end_of_text: int | None) -> tuple[Tensor, Tensor]:
    """Random tokens (1, T) over the whole context, with an end of text inside, and the positions
    (P,) whose logits are compared: the first, the last, and some between them."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (1, length), generator=generator)
    if length > 1 and end_of_text is not None:
        tokens[:, length // 2] = end_of_text
    return tokens, torch.linspace(0, length - 1, min(length, 64)).long()


@torch.no_grad()
def random_model(config: Part, vocab_size: int, end_of_text: int | None = None) -> GPT:
    """A model with random parameters, also gains and biases. Scores have a deviation of about
    SCORES, and logits of 5. Some values are 8 times as large as others, so a cap or a clip changes
    the logits."""
    with WithoutInitialization():
        gpt = build_model(config, vocab_size=vocab_size, end_of_text=end_of_text).eval()
    generator, layer = torch.Generator().manual_seed(0), gpt.attentions[0]
    larger = math.sqrt(SCORES / layer.scale / math.sqrt(layer.head_dim))
    for name, weight in gpt.named_parameters():
        if weight.dim() < 2:
            middle = 0.0 if name.endswith("bias") else 1.0
            weight.uniform_(middle - 0.5, middle + 0.5, generator=generator)
        else:
            size = 5.0 if weight is gpt.head.weight else 0.6
            weight.normal_(std=size / math.sqrt(weight.size(1)), generator=generator)
        if name.endswith((".qkv.weight", ".value.weight")):
            weight[-layer.head_dim :: 4] *= 8
        if layer.qk_norm and name.endswith(("q_norm.weight", "k_norm.weight")):
            weight.mul_(larger)
        elif not layer.qk_norm and name.endswith((".qkv.weight", ".query.weight", ".key.weight")):
            weight[: (layer.heads + layer.kv_heads) * layer.head_dim].mul_(larger / 0.6)
    return gpt


@torch.no_grad()
def logits(model: Any, tokens: Tensor, positions: Tensor, start: int = 0) -> Tensor:
    """The logits (P, V) of our model, or of a model of transformers, on the CPU. The first token
    has the number `start` in a table of positions."""
    if isinstance(model, GPT):
        tokens = pad(tokens.to(model.device), (start, 0))
        mask = model.document_mask(tokens, start)
        hidden = model.through_blocks(model.embed(tokens, start), mask=mask)
        return model.unembed(hidden[:, positions.to(model.device)])[0].cpu()
    options = {"use_cache": False, "return_dict": True, "logits_to_keep": positions}
    if start:
        options["position_ids"] = torch.arange(start, start + tokens.size(1))[None]
    double = torch.get_default_dtype() is torch.float64
    with _Float64() if double else nullcontext():
        found = model(tokens, **options).logits[0]
    return found[positions] if len(found) > len(positions) else found  # some classes keep all


def compare(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference between two tensors of logits. Raises NotEqual if it is too large."""
    if ours.shape != theirs.shape:
        raise NotEqual(f"logits have shape {tuple(theirs.shape)} instead of {tuple(ours.shape)}")
    if not theirs.isfinite().all():
        raise NotEqual("its logits are NaN or infinite")
    difference, largest = (ours - theirs).abs().max().item(), ours.abs().max().item()
    if not difference <= tolerance(ours):  # ours may be NaN
        raise NotEqual(f"logits differ by {difference:.2g}, and the largest is {largest:.2g}")
    return difference


def tolerance(ours: Tensor) -> float:
    """The largest difference that logits may have."""
    largest = ours.abs().max().item()
    if ours.dtype is torch.float64:
        return ARCHITECTURE * max(1.0, largest)
    return WEIGHTS * max(1.0, largest / 10)


def find_class(
    gpt: GPT, config: Part, classes: Iterable[HuggingFaceClass] = CLASSES
) -> HuggingFaceClass | None:
    """The first of `classes` that computes the function of `gpt` for random weights, or None. The
    weights of `gpt` are not changed. Raises UserError if outputs are held in `gpt`."""
    require_nothing_held(gpt)
    if name_of(config.attention) not in DOT_PRODUCT:
        return None
    if name_of(config.position) == "Rotary":  # the same function, up to rounding
        config = Part(config, position=Part(config.position, float32_angles=True))
    with in_float64():
        drawn = random_model(config, gpt.vocab_size, gpt.end_of_text)
        tokens, positions = probe(gpt.vocab_size, gpt.block_size, gpt.end_of_text or 0)
        ours = logits(drawn, tokens, positions)
        for each in classes:
            try:
                compare(ours, logits(converted(each, drawn, config)[1], tokens, positions))
            except Unfit:
                continue
            return each
    return None


def require_nothing_held(gpt: GPT) -> None:
    if any(HELD.fullmatch(name) for name in gpt.state_dict()):
        problem = "callbacks.hold held outputs in this checkpoint, and other tools cannot"
        raise UserError(f"{problem}: choose another step, or to=safetensors")


def converted(theirs: HuggingFaceClass, gpt: GPT, config: Part) -> tuple[dict[str, Any], Any]:
    """The entries of config.json, and their model with the weights of `gpt`, or raises Unfit."""
    config, weights = standard_form(gpt, config)
    entries = theirs.entries(gpt, config)
    model = theirs.build(entries)
    theirs.fill(model, gpt, weights)
    return entries, model


@torch.no_grad()
def standard_form(gpt: GPT, config: Part) -> tuple[Part, dict[str, Tensor]]:
    """The configuration and the weights of `gpt` in standard form:

    - stacked heads share one matrix;
    - rotary positions rotate the pairs of dimensions (i, i + D / 2);
    - scores are divided by sqrt(D), and another scale becomes a factor of the queries;
    - a missing output projection is the identity matrix;
    - scaled embeddings are stored, and the output head does not share them;
    - positions that are added to the embeddings, or none, are a learned table.
    """
    separate = re.compile(r"\.stack\.\d+\.(query|key|value)\.")  # become one matrix below
    weights = {name: each for name, each in gpt.state_dict().items() if not separate.search(name)}
    position = type(gpt.position)
    known = position.__module__.startswith("headscope.")  # others may depend on a text's length
    if known and (position.rotate, position.bias) == (Position.rotate, Position.bias):
        zeros = torch.zeros(1, gpt.block_size, gpt.embedding.embedding_dim, device=gpt.device)
        weights["position.table.weight"] = gpt.position(zeros)[0]  # (T, C)
        config = Part(config, position=Part(_target_="headscope.Learned"))
    if gpt.embedding_scale != 1:
        weights["embedding.weight"] = gpt.embedding.weight * gpt.embedding_scale
        config = Part(config, tied_head=False)
    for number, layer in enumerate(gpt.attentions):
        prefix = f"blocks.{number}.attention."
        interleaved = 0
        if isinstance(gpt.position, Rotary) and gpt.position.rotate_pairs is rotate_interleaved:
            interleaved = gpt.position.rotated
        standard_projections(weights, prefix, layer, interleaved=interleaved)
        if not layer.has_out_proj:
            weights[f"{prefix}out_proj.weight"] = torch.eye(layer.out_dim, device=gpt.device)
    if config.tied_head:
        del weights["head.weight"]
    return config, weights


def standard_projections(
    weights: dict[str, Tensor], prefix: str, layer: MultiHeadAttention, *, interleaved: int
) -> None:
    """Replaces the projections to queries, keys and values by one matrix (H D + 2 K D, C) in
    standard form, and the gains of their norms. Of the first R dimensions of each query and key,
    whose pairs are `interleaved`, moves dimension 2i to i, and 2i + 1 to i + R / 2."""
    order, factor = torch.arange(layer.head_dim), layer.scale * math.sqrt(layer.head_dim)
    order[:interleaved] = order[:interleaved].view(-1, 2).T.flatten()  # 0, 2, 4, ..., 1, 3, ...
    for name, scale in (("q_norm", factor), ("k_norm", 1.0)):
        if (gain := f"{prefix}{name}.weight") in weights:
            weights[gain] = weights[gain][order] * scale
            factor = 1.0
    for kind in ("weight", "bias") if layer.qkv_bias else ("weight",):
        q, k, v = layer.projections(kind)  # (H, D, C), (K, D, C), or without C
        standard = torch.cat([q[:, order] * factor, k[:, order], v])
        weights[f"{prefix}qkv.{kind}"] = standard.flatten(0, 1)


def words(config: Part) -> str:
    """The words of the command line that select a model: its parts, and its unusual keys."""
    chosen = {}
    for group, part in config.items():
        if isinstance(part, Part):
            target = part["_target_"]
            in_conf = defaults_in_conf(f"model/{group}").get(target, {"choice": target})
            chosen[f"model/{group}"] = in_conf["choice"]
            for key, value in part.items():
                if in_conf.get(key, value) != value:
                    chosen[f"model.{group}.{key}"] = value
    chosen |= {f"model.{key}": value for key, value in unusual(config).items()}
    return ", ".join(f"{key}={short(value)}" for key, value in chosen.items())
