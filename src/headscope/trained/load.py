"""Opens a checkpoint file."""

from pathlib import Path

import torch

from headscope.data.tokenizer_state import tokenizer_from_state
from headscope.errors import UserError
from headscope.trained.checkpoint import pick_device, read
from headscope.trained.checkpoint.loading import build_from_weights, own_tokenizer
from headscope.trained.model import TrainedModel
from headscope.trained.records import digest_of_checksums


def load(path: str | Path, *, device: str | torch.device = "cpu") -> TrainedModel:
    """Opens a checkpoint file. The model is on `device`, in evaluation mode. Raises UserError if
    the file is missing, damaged or not a headscope checkpoint, if a weight is NaN or infinite, or
    if this machine does not have the device."""
    path, device = Path(path), pick_device(str(device))
    stored = read(path)
    weights, config = stored.weights(), stored.config
    try:
        tokenizer = tokenizer_from_state(stored.data["tokenizer"], own_tokenizer(stored))
        model = build_from_weights(config.model, tokenizer, weights)
    except UserError as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{path} cannot be opened: {reason}") from error
    return TrainedModel(
        path=path,
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        config=config,
        step=stored.step,
        precision=stored.data["precision"],
        answers=stored.answers,
        digest=digest_of_checksums(stored.data["checksums"]),
        texts=stored.data["texts"],
    )
