"""`torch.compile`, in place, where it works."""

from contextlib import AbstractContextManager

from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from headscope.training.objective import Objective


def compile_in_place(
    objective: Objective, batch: tuple[Tensor, Tensor], precision: AbstractContextManager[None]
) -> str | None:
    """Compile the loss for training on batches like `batch`; returns None, or why it cannot be.

    A step forward and back is taken at once, so that a backend that fails (no C compiler, say)
    fails here, and the model is then left as it was.
    """
    objective.compile()
    try:
        with precision:
            loss = objective.loss(*batch)
        loss.backward()
    except (TorchDynamoException, RuntimeError) as error:
        objective.undo_compile()
        return str(error).strip().splitlines()[0]
    finally:
        objective.model.zero_grad(set_to_none=True)
    return None
