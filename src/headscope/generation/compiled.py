"""Reading one token at a time, compiled.

Shapes: B texts at once, C the width that a product reads, N the width that it writes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headscope.generation.tokens import Read
from headscope.nn import GPT, Cache
from headscope.nn.precision import precise


@torch.no_grad()
def compile_reading(model: GPT, *, batch: int = 1) -> Read:
    """`model.next_logits` compiled for single tokens of `batch` texts; a few first ones are read
    as they are.

    It takes tens of seconds on a CPU, and the model must not change afterwards. Raises ValueError
    when it cannot be done here.
    """
    from torch._dynamo.exc import TorchDynamoException  # takes a second to import

    options: dict[str, Any] = {
        "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe
    }
    if model.device.type == "cpu":  # what a product reads is computed once, not for every row
        options["realize_opcount_threshold"] = 1

    def next_logits(tokens: Tensor, cache: Cache) -> Tensor:
        with RowProducts():
            return model.next_logits(tokens, cache)

    # What is compiled is kept by the code it is of, for all models, and with modules unguarded one
    # would get what is another's: each has a copy of its own.
    next_logits.__code__ = next_logits.__code__.replace()
    read = torch.compile(next_logits, dynamic=True, options=options)
    # Before it, to look back is to look past the beginning, which would be compiled once more.
    first = 1 + max(1, len(model.before))
    cache = model.make_cache(batch)
    token = torch.zeros(batch, 1, dtype=torch.long, device=model.device)
    try:
        for length in range(first, min(first + 2, model.block_size)):
            cache.length = length
            read(token, cache)
    except (TorchDynamoException, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"compile=true: the model cannot be compiled ({reason})") from error

    def read_one(tokens: Tensor, cache: Cache) -> Tensor:
        return (read if cache.length >= first else model.next_logits)(tokens, cache)

    return read_one


class RowProducts(TorchFunctionMode):
    """Inside, the product of one row with a matrix on a CPU is said as the sum that it is: the
    compiler makes of it, and of what is around it, a loop for all cores that reads the matrix as
    fast as memory gives it. The library's product, made for many rows, takes one core."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is F.linear and args[0].numel() == args[0].size(-1) and args[0].is_cpu:
            return product_of_row(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def product_of_row(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias, (..., N), of one row x (..., C) and weight (N, C), summed in float32."""
    y = (precise(weight) * precise(x).view(-1)).sum(dim=-1)
    if bias is not None:
        y = y + bias
    return y.to(x.dtype).view(*x.shape[:-1], -1)
