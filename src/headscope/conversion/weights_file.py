"""Writes weights and configurations as files."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from headscope.files import json_text, write_atomically


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Writes the weights as a safetensors file, with the permissions of other new files. Raises
    OSError if it cannot be written."""
    try:
        save_file(separate(weights), path, metadata={"format": "pt"})
    except SafetensorError as error:  # the library's own exception for a full disk
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error
    beside = path.with_name("config.json")
    path.chmod(beside.stat().st_mode & 0o777)  # safetensors lets only the owner read its files


def save_torch(content: dict[str, Any], path: Path) -> None:
    """Writes a file with `torch.save`. Raises OSError if it cannot be written."""
    try:
        with path.open("wb") as file:
            torch.save(content, file)
    except RuntimeError as error:
        # When writing fails, torch raises this error while it handles the file's OSError.
        if not isinstance(error.__context__, OSError):
            raise
        raise error.__context__ from None


def separate(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights on the CPU, each in its own memory, as a safetensors file needs them."""
    return {
        name: weight.detach().cpu().clone(memory_format=torch.contiguous_format)
        if weight.untyped_storage().nbytes() != weight.nbytes
        else weight.detach().cpu().contiguous()
        for name, weight in weights.items()
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json_text(content, indent=2) + "\n")
