"""The token store: a corpus, encoded once and memory-mapped ever after.

A store is a folder: `train.bin` and `validation.bin`, bare arrays of tokens (uint16, or uint32
where the vocabulary needs it), `tokenizer.json`, and `store.json`, which says what made it. Its
name ends in a fingerprint of text and tokenizer. It is written under another name and renamed when
it is whole, so a folder of the right name is always a whole store, and of two runs that prepare
the same one the first to finish wins and the second uses it.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headscope.data.corpus import Corpus
from headscope.data.tokenizer import Tokenizer, tokenizer_from_state
from headscope.errors import UserError
from headscope.stop import on_stop

FORMAT = 1
SPLITS = ("train", "validation")

Track = Callable[[Iterable[Any], str, int], Iterable[Any]]
"""Passes an iterable of known length through, showing how far it is."""


@dataclass(frozen=True)
class TokenStore:
    """An encoded corpus: tokens of both splits (memory-mapped), and the tokenizer they are in."""

    folder: Path
    tokenizer: Tokenizer
    train: np.ndarray
    validation: np.ndarray

    @property
    def name(self) -> str:
        return self.folder.name


def prepare_store(
    corpus: Corpus,
    make_tokenizer: Callable[[Iterable[str]], Tokenizer],
    *,
    root: Path,
    track: Track = lambda items, description, total: items,
) -> TokenStore:
    """Open the store of this text and tokenizer under `root`, and make it first if it is not there.

    `make_tokenizer` gets the training documents.

    Raises UserError when the text cannot be read or is too short for the tokenizer, OSError when
    `root` cannot be written.
    """
    key = _fingerprint(corpus, make_tokenizer)
    folder = root / f"{corpus.name}-{key[:16]}"
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=".preparing-", dir=root) as scratch,
            on_stop(partial(shutil.rmtree, scratch, ignore_errors=True)),
        ):
            whole = Path(scratch) / folder.name
            whole.mkdir()
            _write(whole, corpus, make_tokenizer, track)
            try:
                whole.rename(folder)
            except OSError:
                if not folder.exists():  # else another run was first: its store is as good
                    raise
    return open_store(folder)


def open_store(folder: Path) -> TokenStore:
    """The store in `folder`. Raises UserError when it is not a whole one."""
    try:
        description = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        tokenizer = tokenizer_from_state(state)
        tokens = {
            split: np.memmap(folder / f"{split}.bin", dtype=description["dtype"], mode="r")
            for split in SPLITS
        }
        whole = all(len(tokens[split]) == description[f"{split}_tokens"] for split in SPLITS)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} is not a token store ({error}): delete it") from error
    if not whole:
        raise UserError(f"{folder} has not the tokens that its store.json names: delete it")
    return TokenStore(folder=folder, tokenizer=tokenizer, **tokens)


def encode_documents(texts: Iterable[str], tokenizer: Tokenizer) -> Iterable[np.ndarray]:
    """Each document's tokens, the end of text standing before it."""
    for text in texts:
        yield np.concatenate([[tokenizer.end_of_text], tokenizer.encode(text)])


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def _fingerprint(corpus: Corpus, make_tokenizer: Callable[..., Tokenizer]) -> str:
    if isinstance(make_tokenizer, partial):
        recipe = [make_tokenizer.func.__name__, make_tokenizer.keywords]
    else:
        recipe = [make_tokenizer.__name__, {}]
    made_of = [FORMAT, corpus.fingerprint(), recipe]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def _write(
    folder: Path, corpus: Corpus, make_tokenizer: Callable[..., Tokenizer], track: Track
) -> None:
    documents = dict(zip(SPLITS, corpus.splits(), strict=True))
    tokenizer = make_tokenizer(row["text"] for row in documents["train"])
    dtype = token_dtype(tokenizer.vocab_size)
    description: dict[str, Any] = {
        "format": FORMAT,
        "corpus": corpus.name,
        "corpus_fingerprint": corpus.fingerprint(),
        "vocab_size": tokenizer.vocab_size,
        "dtype": np.dtype(dtype).name,
    }
    for split, rows in documents.items():
        texts = (row["text"] for row in track(rows, f"Encoding {split}", len(rows)))
        count = 0
        with (folder / f"{split}.bin").open("wb") as file:
            for tokens in encode_documents(texts, tokenizer):
                file.write(tokens.astype(dtype).tobytes())
                count += len(tokens)
            file.flush()
            os.fsync(file.fileno())
        description[f"{split}_documents"] = len(rows)
        description[f"{split}_tokens"] = count
    for name, content in (("tokenizer", tokenizer.state()), ("store", description)):
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
