"""`torch.compile`, in place, where it works."""

from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException


def compile_in_place(
    model: nn.Module, example: Tensor, precision: AbstractContextManager[None]
) -> str | None:
    """Compile `model` for training on batches like `example`; returns None, or why it cannot be.

    In place, so that names in checkpoints stay as they are. A step forward and back is taken at
    once, so that a backend that fails (no C compiler, say) fails here, and the model is then left
    as it was.
    """
    model.compile()
    try:
        with precision:
            loss = model(example).float().mean()
        loss.backward()
    except (TorchDynamoException, RuntimeError) as error:
        model._compiled_call_impl = None
        return str(error).strip().splitlines()[0]
    finally:
        model.zero_grad(set_to_none=True)
    return None
