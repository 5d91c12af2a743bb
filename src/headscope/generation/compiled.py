"""Reading one token at a time, compiled.

Shapes: B texts at once, S tokens of each, C the width that a product reads, N the width that it
writes, V vocab_size.
"""

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.errors import UserError
from headscope.generation.tokens import Read
from headscope.nn import GPT, Cache, Past, make_cache


@torch.no_grad()
def compile_reading(model: GPT, *, batch: int = 1) -> Read:
    """`model.next_logits` compiled for single tokens of `batch` texts; all else is read as it is:
    the first few, more at once, other numbers of texts, and all of a context of less than 4 tokens.

    It takes tens of seconds on a CPU, and the model must not change afterwards. Raises UserError
    when it cannot be done here.
    """
    # Before it, to look back is to look past the beginning, which would be another step.
    first = 1 + max(1, len(model.previous_token_embeddings))
    if first + 2 > model.block_size:
        return model.next_logits
    compile_step = compile_ahead if model.device.type == "cpu" else compile_at_call
    try:
        with warnings.catch_warnings():  # of PyTorch, of what it does itself
            warnings.simplefilter("ignore", FutureWarning)
            step = compile_step(OneToken(model), make_cache(model, batch), first=first)
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"compile=true: the model cannot be compiled ({reason})") from error

    def read_one(tokens: Tensor, cache: Cache) -> Tensor:
        if cache.length < first or tokens.shape != (batch, 1):  # a library does not check
            return model.next_logits(tokens, cache)
        logits = step(inputs(cache.append(tokens), cache))
        cache.length += 1
        return logits

    return read_one


class OneToken(nn.Module):
    """Logits (B, V) of the token after `seen` (B, S), of which `cached`, the keys and the values of
    every layer in turn, has all but the last."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, seen: Tensor, *cached: Tensor) -> Tensor:
        length = seen.size(1) - 1
        pasts = [
            Past(keys, values, length)
            for keys, values in zip(cached[::2], cached[1::2], strict=True)
        ]
        with ExplicitProducts():
            x = self.model.through_blocks(self.model.embed(seen, length), pasts)
            return self.model.unembed(x)[:, 0]


Step = Callable[[list[Tensor]], Tensor]
"""`OneToken`, of the list of its inputs."""


def inputs(seen: Tensor, cache: Cache) -> list[Tensor]:
    """What `OneToken` takes."""
    return [seen, *(part for layer in cache.layers for part in layer)]


def compile_ahead(step: OneToken, cache: Cache, *, first: int) -> Step:
    """As a library without Python, for a CPU: on it a small model takes less time than what
    torch.compile does at every call."""
    exported = export(step, cache, first=first)
    with tempfile.TemporaryDirectory() as folder:
        library = torch._inductor.aoti_compile_and_package(
            exported,
            package_path=str(Path(folder) / "step.pt2"),
            inductor_configs={
                "aot_inductor.package_constants_in_so": False,
                # What a product reads is computed once, not for every row.
                "realize_opcount_threshold": 1,
            },
        )
        compiled = torch._inductor.aoti_load_package(library)
    weights = {**exported.state_dict, **exported.constants}
    return Library(
        compiled, {name: weights[name].detach() for name in compiled.get_constant_fqns()}
    )


def export(step: OneToken, cache: Cache, *, first: int) -> torch.export.ExportedProgram:
    """What the step computes, for every length from `first` on, without its Python."""
    example = inputs(cache.tokens[:, : first + 2], cache)
    length = torch.export.Dim("length", min=first + 1, max=cache.block_size)
    shapes = ({1: length}, tuple(None for _ in example[1:]))
    return torch.export.export(step, tuple(example), dynamic_shapes=shapes)


class Library:
    """A compiled step, and the weights, which it reads where they lie."""

    def __init__(self, compiled: Any, weights: dict[str, Tensor]) -> None:
        self.loader = compiled.loader
        self.weights = weights  # keeps them alive
        compiled.load_constants(weights, check_full_update=True, user_managed=True)

    def __call__(self, given: list[Tensor]) -> Tensor:
        return self.loader.boxed_run(given)[0]


def compile_at_call(step: OneToken, cache: Cache, *, first: int) -> Step:
    """By torch.compile, for a GPU."""
    compiled = torch.compile(step, dynamic=True)
    for length in (first + 1, first + 2):
        compiled(*inputs(cache.tokens[:, :length], cache))
    return lambda given: compiled(*given)


class ExplicitProducts(TorchFunctionMode):
    """A context in which, on a CPU, the product of a row and a matrix, or of an int8 matrix, is
    written as an explicit sum. The compiler makes it, with the operations around it, a loop over
    all cores that reads the matrix at memory speed. PyTorch's product, which is made for many rows,
    uses one core."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is F.linear and args[0].is_cpu:
            x, weight = args[:2]
            if x.numel() == x.size(-1) or weight.dtype == torch.int8:
                return explicit_product(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


PARTS = 8
"""How many rows of a matrix a compiled loop sums side by side. One sum alone waits for each of its
additions to finish before the next."""


def explicit_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias, (..., N), of x (..., C) and weight (N, C), summed in float32."""
    # Compiled, a bf16 product is not rounded before the sum. An `upcast_to_float32(x)` would be
    # stored as float32, and the loop then takes half as many bf16 weights at once.
    dtype = torch.promote_types(x.dtype, torch.float32)
    parts = weight.split(max(1, len(weight) // PARTS))
    y = torch.cat([(part * x.unsqueeze(-2)).sum(dim=-1, dtype=dtype) for part in parts], dim=-1)
    if bias is not None:
        y = y + bias
    return y.to(x.dtype)
