"""Compiles the step that reads one new token and computes the logits of the next token.

Shapes: B texts, S tokens of each text, C input and N output width of a product, V vocab_size.
"""

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.errors import UserError, why_not_compiled
from headscope.nn import GPT, Cache, Past
from headscope.trained.generation.generate import DecodeStep


@torch.no_grad()
def compile_decoding(model: GPT, *, batch: int = 1) -> DecodeStep:
    """Returns `model.next_logits`, compiled for one new token in each of `batch` texts.

    In all other cases, the returned function calls `model.next_logits`: for the first tokens of a
    text, for several new tokens at once, and for another number of texts. If `block_size` is below
    4 or below `ngrams` + 2, nothing is compiled.

    Compiling takes tens of seconds on a CPU. The model must not change afterwards. Raises UserError
    if this machine cannot compile.
    """
    # The first tokens of a text have fewer n-grams, so the tensors of their step have other shapes.
    first = max(2, model.ngrams)
    if first + 2 > model.block_size:
        return model.next_logits
    compile_step = compile_ahead if model.device.type == "cpu" else compile_at_call
    try:
        with warnings.catch_warnings():  # PyTorch's own internal calls raise FutureWarnings
            warnings.simplefilter("ignore", FutureWarning)
            step = compile_step(OneToken(model), Cache(model, batch), first=first)
    except RuntimeError as error:
        reason = why_not_compiled(error)
        raise UserError(f"compile=true: the model cannot be compiled ({reason})") from error

    def decode_one(tokens: Tensor, cache: Cache) -> Tensor:
        # The compiled code does not verify the shapes of its inputs.
        if cache.length < first or tokens.shape != (batch, 1):
            return model.next_logits(tokens, cache)
        logits = step(inputs(cache.append(tokens), cache))
        cache.length += 1
        return logits

    return decode_one


class OneToken(nn.Module):
    """Maps all tokens of the texts, `seen` (B, S), to the logits (B, V) of the next token. `cached`
    are the keys of layer 0, its values, the keys of layer 1, and so on, without the last token."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, seen: Tensor, *cached: Tensor) -> Tensor:
        length = seen.size(1) - 1
        layers = zip(cached[::2], cached[1::2], strict=True)
        pasts = [Past(keys, values, length) for keys, values in layers]
        with ExplicitProducts():
            x = self.model.embed(seen, length)
            x = self.model.through_blocks(x, pasts, self.model.document_mask(seen, length))
            return self.model.unembed(x)[:, 0]


Step = Callable[[list[Tensor]], Tensor]
"""A function that computes `OneToken` from the list of its inputs."""


def inputs(seen: Tensor, cache: Cache) -> list[Tensor]:
    """The inputs of `OneToken`, as a list."""
    return [seen, *(tensor for layer in cache.layers for tensor in layer)]


def compile_ahead(step: OneToken, cache: Cache, *, first: int) -> Step:
    """Compiles the step for a CPU, into a library that runs without Python. With torch.compile,
    every call would evaluate guards, which takes longer than the step of a small model."""
    exported = export(step, cache, first=first)
    with tempfile.TemporaryDirectory() as folder:
        library = torch._inductor.aoti_compile_and_package(
            exported,
            package_path=str(Path(folder) / "step.pt2"),
            inductor_configs={
                "aot_inductor.package_constants_in_so": False,
                # Compute the input of a matrix product once, not again for every row of the matrix.
                "realize_opcount_threshold": 1,
            },
        )
        compiled = torch._inductor.aoti_load_package(library)
    weights = {**exported.state_dict, **exported.constants}
    constants = {name: weights[name].detach() for name in compiled.get_constant_fqns()}
    compiled.load_constants(constants, check_full_update=True, user_managed=True)
    return partial(run_library, compiled.loader, constants)


def export(step: OneToken, cache: Cache, *, first: int) -> torch.export.ExportedProgram:
    """Exports the step as a graph, for every number of cached tokens from `first` on."""
    example = inputs(cache.tokens[:, : first + 2], cache)
    length = torch.export.Dim("length", min=first + 1, max=cache.block_size)
    shapes = ({1: length}, tuple(None for _ in example[1:]))
    return torch.export.export(step, tuple(example), dynamic_shapes=shapes)


def run_library(library: Any, weights: dict[str, Tensor], given: list[Tensor]) -> Tensor:
    """Runs a compiled step. It reads `weights` in place, but does not keep them in memory."""
    return library.boxed_run(given)[0]


def compile_at_call(step: OneToken, cache: Cache, *, first: int) -> Step:
    """Compiles the step with torch.compile, for a GPU."""
    compiled = torch.compile(step, dynamic=True)
    for length in (first + 1, first + 2):
        compiled(*inputs(cache.tokens[:, :length], cache))
    return lambda given: compiled(*given)


class ExplicitProducts(TorchFunctionMode):
    """Inside this `with` block, a linear layer on a CPU is computed as an explicit sum if its input
    is a single row or its weight is int8.

    The compiler turns this sum and the operations around it into a loop that uses all cores and
    reads the matrix at memory speed. PyTorch's own matrix product is made for many rows.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and args[0].is_cpu:
            x, weight = args[:2]
            if x.numel() == x.size(-1) or weight.dtype == torch.int8:
                return explicit_product(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


BLOCKS = 8
"""The number of rows of a matrix that a compiled loop sums at the same time. If it summed only one
row, each addition would wait for the previous one, and the loop would be slower than memory."""


def explicit_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias (..., N) from x (..., C) and weight (N, C), with sums in float32."""
    # x is not converted to float32 first. This is not needed, because compiled code does not round
    # products of bf16 numbers before the sum. It would also be slower: a float32 copy of x would be
    # stored, and the loop would then process half as many bf16 weights at once.
    dtype = torch.promote_types(x.dtype, torch.float32)
    blocks = weight.split(max(1, len(weight) // BLOCKS))
    y = torch.cat([(block * x.unsqueeze(-2)).sum(dim=-1, dtype=dtype) for block in blocks], dim=-1)
    if bias is not None:
        y = y + bias
    return y.to(x.dtype)
