"""`torch.compile`, in place, where it works."""

from contextlib import AbstractContextManager

from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from headscope.errors import ran_out_of_memory
from headscope.training.objective import Objective


def compile_in_place(
    objective: Objective, batch: tuple[Tensor, Tensor], precision: AbstractContextManager[None]
) -> str | None:
    """Compile the loss for training on batches like `batch`; returns None, or why that failed.

    One forward and backward pass runs at once, so that all compiling happens here. Only an error
    of Dynamo or of its backend (no C compiler, say) means "not compiled", and leaves the model as
    it was. Any other error of the two passes is raised: out of memory above all.
    """
    objective.compile()
    try:
        with precision:
            loss = objective.loss(*batch)
        loss.backward()
    except TorchDynamoException as error:  # Inductor's errors are a kind of it
        if ran_out_of_memory(error):
            raise
        objective.undo_compile()
        return reason(error)
    finally:
        objective.model.zero_grad(set_to_none=True)
    return None


def reason(error: TorchDynamoException) -> str:
    """Its message in one line. The first line of a backend's error only names the backend."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith("raised:")), type(error).__name__)
