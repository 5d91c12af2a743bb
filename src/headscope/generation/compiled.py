"""Compiles the step that computes the logits after one new token.

Shapes: B texts, S tokens of each, C and N input and output width of a product, V vocab_size.
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
    """`model.next_logits`, compiled for one new token in each of `batch` texts.

    The result calls `model.next_logits` itself in all other cases: for the first tokens of a text,
    for several tokens at once, for another number of texts, and if `block_size` is below 4.

    Compiling takes tens of seconds on a CPU. The model must not change afterwards. Raises UserError
    if this machine cannot compile.
    """
    # Earlier tokens lack some of their n-grams, so their step has other shapes.
    first = max(2, model.ngrams)
    if first + 2 > model.block_size:
        return model.next_logits
    compile_step = compile_ahead if model.device.type == "cpu" else compile_at_call
    try:
        with warnings.catch_warnings():  # PyTorch warns of its own calls
            warnings.simplefilter("ignore", FutureWarning)
            step = compile_step(OneToken(model), make_cache(model, batch), first=first)
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"compile=true: the model cannot be compiled ({reason})") from error

    def read_one(tokens: Tensor, cache: Cache) -> Tensor:
        if cache.length < first or tokens.shape != (
            batch,
            1,
        ):  # compiled code does not check shapes
            return model.next_logits(tokens, cache)
        logits = step(inputs(cache.append(tokens), cache))
        cache.length += 1
        return logits

    return read_one


class OneToken(nn.Module):
    """Maps `seen` (B, S) to the logits (B, V) of the next token. `cached` are the keys and values
    of all tokens but the last, layer by layer."""

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
"""`OneToken` as a function of the list of its inputs."""


def inputs(seen: Tensor, cache: Cache) -> list[Tensor]:
    """The inputs of `OneToken`."""
    return [seen, *(part for layer in cache.layers for part in layer)]


def compile_ahead(step: OneToken, cache: Cache, *, first: int) -> Step:
    """Compiles a library that runs without Python, for a CPU. For a small model, the guards that
    torch.compile checks in every call take longer than the step."""
    exported = export(step, cache, first=first)
    with tempfile.TemporaryDirectory() as folder:
        library = torch._inductor.aoti_compile_and_package(
            exported,
            package_path=str(Path(folder) / "step.pt2"),
            inductor_configs={
                "aot_inductor.package_constants_in_so": False,
                # The input of a product is computed once, not again for every row.
                "realize_opcount_threshold": 1,
            },
        )
        compiled = torch._inductor.aoti_load_package(library)
    weights = {**exported.state_dict, **exported.constants}
    return Library(
        compiled, {name: weights[name].detach() for name in compiled.get_constant_fqns()}
    )


def export(step: OneToken, cache: Cache, *, first: int) -> torch.export.ExportedProgram:
    """The step as a graph of operations, for every length from `first` on."""
    example = inputs(cache.tokens[:, : first + 2], cache)
    length = torch.export.Dim("length", min=first + 1, max=cache.block_size)
    shapes = ({1: length}, tuple(None for _ in example[1:]))
    return torch.export.export(step, tuple(example), dynamic_shapes=shapes)


class Library:
    """A compiled step and the model's weights, which it reads without a copy."""

    def __init__(self, compiled: Any, weights: dict[str, Tensor]) -> None:
        self.loader = compiled.loader
        self.weights = weights  # the library does not own them
        compiled.load_constants(weights, check_full_update=True, user_managed=True)

    def __call__(self, given: list[Tensor]) -> Tensor:
        return self.loader.boxed_run(given)[0]


def compile_at_call(step: OneToken, cache: Cache, *, first: int) -> Step:
    """Compiles with torch.compile, for a GPU."""
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
"""The number of rows of a matrix that a compiled loop sums at the same time. With one sum, each
addition waits for the previous one, and the loop is slower than memory."""


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
