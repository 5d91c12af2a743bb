"""Finds the folder of a Hugging Face model: a local folder, or a model on the hub."""

import re
from pathlib import Path

from headscope.conversion.huggingface.weights import INDEX, WHOLE
from headscope.errors import UserError

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)

FILES = [
    *("config.json", "generation_config.json", WHOLE, INDEX, "model-*.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "vocab.txt"),
]
"""The files to download: settings, weights and tokenizer."""


def folder_of(source: str) -> Path:
    """The local folder of the model `source`. The files of a model on the hub are downloaded to the
    hub's cache: settings, tokenizer and weights, but no code.

    Raises UserError if there is no such folder, or if the model cannot be downloaded.
    """
    path = Path(source)
    if path.is_dir():
        return path
    if path.exists() or path.is_symlink():
        raise UserError(
            f"source={source} is a file: name the folder of a Hugging Face model, or a "
            "checkpoint of nanoGPT, which ends in .pt"
        )
    if not NAME.fullmatch(source) or ".." in source:
        raise UserError(f"source={source} does not exist: name a folder or a model on the hub")
    return download(source)


def download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    # OSError: no network, or no such model. ValueError: not a name, or nothing in the cache.
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"source={name} is not a folder here, and could not be downloaded from the hub "
            f"({type(error).__name__}): {reason}"
        ) from error
