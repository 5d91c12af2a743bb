"""Compiles the training loss with `torch.compile`, or reports why this failed."""

from contextlib import AbstractContextManager

from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from headscope.errors import ran_out_of_memory
from headscope.training.objective import Objective


def compile_in_place(
    objective: Objective, batch: tuple[Tensor, Tensor], precision: AbstractContextManager[None]
) -> str | None:
    """Compiles `objective.loss` for batches of the shape of `batch`. Returns None if this succeeds,
    else the reason for the failure.

    Runs one forward and backward pass, so that all compilation happens here. If Dynamo or its
    backend fails, for example because there is no C compiler, the objective stays uncompiled. Any
    other error, such as out of memory, is raised.
    """
    objective.compile()
    try:
        with precision:
            loss = objective.loss(*batch)
        loss.backward()
    except TorchDynamoException as error:  # includes Inductor's errors
        if ran_out_of_memory(error):
            raise
        objective.undo_compile()
        return reason(error)
    finally:
        objective.model.zero_grad(set_to_none=True)
    return None


def reason(error: TorchDynamoException) -> str:
    """The error's message in one line. If the error comes from a backend, its first line is
    skipped, because this line only names the backend."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith("raised:")), type(error).__name__)
