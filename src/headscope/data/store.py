"""The token store: an encoded corpus on disk, whose tokens are memory-mapped.

A store is a folder with four files. `train.bin` and `validation.bin` are raw arrays of tokens
(uint16, or uint32 for a large vocabulary). `tokenizer.json` contains the tokenizer. `store.json`
contains the name of the corpus, the type of the tokens, the numbers of documents, tokens and bytes
of text, and checksums of the tokenizer and of each shard of the tokens. The folder's name ends in a
fingerprint of the text and the tokenizer.

Opening a store verifies all checksums. Then the file `verified.json` says when the files were
changed last, so that they are verified again only after a change.
"""

import hashlib
import json
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headscope.data.shards import (
    CHUNK,
    SPLITS,
    check_shards,
    text_per_token_byte,
    token_dtype,
)
from headscope.data.tokenizer import Tokenizer, tokenizer_from_state
from headscope.errors import UserError
from headscope.files import parse_json, read_json, write_atomically

FORMAT = 2
DESCRIPTION, TOKENIZER, VERIFIED = "store.json", "tokenizer.json", "verified.json"


@dataclass(frozen=True)
class TokenStore:
    """An encoded corpus: the memory-mapped tokens of both splits, and their tokenizer.

    `text_per_token_byte` is the number of bytes of the validation text per byte of its tokens. It
    is 1, unless the tokenizer loses text.
    """

    folder: Path
    tokenizer: Tokenizer
    train: np.ndarray
    validation: np.ndarray
    text_per_token_byte: float = 1.0

    @property
    def name(self) -> str:
        return self.folder.name


def open_store(folder: Path, *, expect: dict[str, Any] | None = None) -> TokenStore:
    """Opens the store in `folder`. The file store.json in this folder must contain the entries of
    `expect`.

    Raises UserError if the store is incomplete, or if its files do not match store.json.
    """
    try:
        for name in (DESCRIPTION, TOKENIZER, *(f"{split}.bin" for split in SPLITS)):
            # A symbolic link is not allowed either, because it could point to any file.
            if not stat.S_ISREG((folder / name).lstat().st_mode):
                raise ValueError(f"{name} is not a regular file")
        description = parse_json(folder / DESCRIPTION)
        if not isinstance(description, dict):
            raise ValueError(f"{DESCRIPTION} is not a JSON object")
        tokenizer = tokenizer_from_state(parse_json(folder / TOKENIZER))
        dtype = np.dtype(token_dtype(tokenizer.vocab_size))
        expected = {"format": FORMAT, "vocab_size": tokenizer.vocab_size, "dtype": dtype.name}
        expected["tokenizer_sha256"] = tokenizer_sha256(tokenizer)
        for key, value in (expected | (expect or {})).items():
            found = description.get(key)
            if type(found) is not type(value) or found != value:
                raise ValueError(f"{DESCRIPTION} says {key}={str(found)[:80]!r}, not {value!r}")
        tokens = {
            split: _map_tokens(folder / f"{split}.bin", dtype, description.get(f"{split}_tokens"))
            for split in SPLITS
        }
        if read_json(folder / VERIFIED) != (stamps := _stamps(folder)):
            for split, array in tokens.items():
                check_tokens(array, description.get(f"{split}_shards"), tokenizer.vocab_size)
            with suppress(UserError):  # the folder may be read-only
                write_atomically(folder / VERIFIED, json.dumps(stamps))
        ratio = _text_per_token_byte(tokens["validation"], tokenizer, description)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{folder} is not a token store ({reason}): delete it") from error
    return TokenStore(folder=folder, tokenizer=tokenizer, text_per_token_byte=ratio, **tokens)


def _text_per_token_byte(
    tokens: np.ndarray, tokenizer: Tokenizer, description: dict[str, Any]
) -> float:
    """The bytes of the validation text per byte of its tokens. In a store from before headscope
    counted the bytes of the text, 1."""
    text_bytes = description.get("validation_bytes")
    if text_bytes is None:
        return 1.0
    if type(text_bytes) is not int or not 0 <= text_bytes < 2**53:
        raise ValueError(f"{DESCRIPTION} says validation_bytes={str(text_bytes)[:80]}")
    return text_per_token_byte(text_bytes, tokens, tokenizer.byte_lengths())


def _map_tokens(file: Path, dtype: np.dtype, count: Any) -> np.ndarray:
    """Memory-maps a file of `count` tokens. Raises ValueError if the file has another size."""
    size = file.stat().st_size
    if type(count) is not int or count < 1 or size != count * dtype.itemsize:
        raise ValueError(
            f"{file.name} has {size:,} bytes, and store.json says {str(count)[:80]} tokens"
        )
    return np.memmap(file, dtype=dtype, mode="r")


def check_tokens(tokens: np.ndarray, shards: Any, vocab_size: int) -> None:
    """Raises ValueError unless the tokens have the checksums of `shards` and are in the
    vocabulary."""
    check_shards(tokens, shards)
    for start in range(0, len(tokens), CHUNK):
        if tokens[start : start + CHUNK].max() >= vocab_size:
            raise ValueError("a token is not in the vocabulary")


def _stamps(folder: Path) -> list[list[int]]:
    """Numbers that differ after any change of a file of tokens, or of the description: the kernel
    sets the time of the last change itself, so a program cannot restore it."""
    names = [*(f"{split}.bin" for split in SPLITS), DESCRIPTION]
    stats = [(folder / name).stat() for name in names]
    return [[each.st_dev, each.st_ino, each.st_size, each.st_ctime_ns] for each in stats]


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    content = json.dumps(tokenizer.state(), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
