"""TensorBoard's own writers, for what is not a number: images and texts."""

from lightning.pytorch import Trainer
from torch.utils.tensorboard import SummaryWriter


def tensorboard_writers(trainer: Trainer) -> list[SummaryWriter]:
    """The TensorBoard writers of this process; none where another process writes."""
    if not trainer.is_global_zero:
        return []
    experiments = (getattr(logger, "experiment", None) for logger in trainer.loggers)
    return [writer for writer in experiments if isinstance(writer, SummaryWriter)]
