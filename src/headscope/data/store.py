"""The token store: an encoded corpus on disk. A corpus is encoded once. Later runs memory-map its
tokens.

A store is a folder with four files. `train.bin` and `validation.bin` are raw arrays of tokens
(uint16, or uint32 for a large vocabulary). `tokenizer.json` contains the tokenizer. `store.json`
contains the name of the corpus, the type of the tokens, and the numbers of documents and tokens.
The folder's name ends in a fingerprint of the text and the tokenizer.

A store is first written to a temporary folder `.preparing-<name>`. This folder is renamed when the
store is complete, so a folder without the prefix `.preparing-` is always complete. If two processes
need the same store, the second waits for the first.
"""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from headscope.data.corpus import Corpus
from headscope.data.tokenizer import Tokenizer, tokenizer_from_state
from headscope.errors import UserError
from headscope.files import cannot_write, parse_json, write_atomically
from headscope.stop import on_stop

FORMAT = 1
SPLITS = ("train", "validation")

PREPARING = ".preparing-"

CHUNK = 2**24
"""Number of tokens that are checked against the vocabulary size at a time, to limit memory use."""

Track = Callable[[Iterable[Any], str, int], Iterable[Any]]
"""A function of (items, description, total) that yields the same items and shows the progress."""


@dataclass(frozen=True)
class TokenStore:
    """An encoded corpus: the memory-mapped tokens of both splits, and their tokenizer."""

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
    say: Callable[[str], None] = lambda line: None,
) -> TokenStore:
    """Opens the store of this corpus and tokenizer in the folder `root`. Creates the store if it
    does not exist.

    `make_tokenizer` is called with the training documents. If another process is preparing the same
    store, `say` is called with a message for the user.

    Raises UserError if the text cannot be read, changes while it is read, or is too short for the
    tokenizer. Also raises UserError if an existing store does not belong to this corpus and
    tokenizer. Raises OSError if `root` cannot be written.
    """
    fingerprint = corpus.fingerprint()
    key = _fingerprint(fingerprint, make_tokenizer)
    folder = root / f"{corpus.name}-{key[:16]}"
    if root.is_dir():
        _remove_abandoned(root)
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        with _locked(folder, say) as scratch:
            if not folder.exists():  # another process may have created it meanwhile
                with on_stop(partial(_discard, scratch)):
                    scratch.mkdir()
                    _write_store(scratch, corpus, fingerprint, make_tokenizer, track)
                    scratch.rename(folder)
    store = open_store(folder, expect={"corpus": corpus.name, "corpus_fingerprint": fingerprint})
    name, options = _name_and_options(make_tokenizer)
    tokenizer = store.tokenizer
    if "state" in options:
        same = tokenizer.state() == options["state"]
    else:
        size = options.get("vocab_size", tokenizer.vocab_size)
        same = (tokenizer.name, tokenizer.vocab_size) == (name, size)
    if not same:
        raise UserError(f"{folder} contains another tokenizer than this run needs: delete it")
    return store


def open_store(folder: Path, *, expect: dict[str, Any] | None = None) -> TokenStore:
    """Opens the store in `folder`. The file store.json in this folder must contain the entries of
    `expect`.

    Raises UserError if the store is incomplete, or if its files do not match store.json.
    """
    try:
        for name in ("store.json", "tokenizer.json", *(f"{split}.bin" for split in SPLITS)):
            # A symbolic link is not allowed either, because it could point to any file.
            if not stat.S_ISREG((folder / name).lstat().st_mode):
                raise ValueError(f"{name} is not a regular file")
        description = parse_json(folder / "store.json")
        if not isinstance(description, dict):
            raise ValueError("store.json is not a JSON object")
        tokenizer = tokenizer_from_state(parse_json(folder / "tokenizer.json"))
        dtype = np.dtype(token_dtype(tokenizer.vocab_size))
        expected = {"format": FORMAT, "vocab_size": tokenizer.vocab_size, "dtype": dtype.name}
        for key, value in (expected | (expect or {})).items():
            found = description.get(key)
            if type(found) is not type(value) or found != value:
                raise ValueError(f"store.json says {key}={str(found)[:80]!r}, not {value!r}")
        tokens = {
            split: _map_tokens(folder / f"{split}.bin", dtype, description.get(f"{split}_tokens"))
            for split in SPLITS
        }
        for split, array in tokens.items():
            for start in range(0, len(array), CHUNK):
                if array[start : start + CHUNK].max() >= tokenizer.vocab_size:
                    raise ValueError(f"{split}.bin has a token that is not in the vocabulary")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{folder} is not a token store ({reason}): delete it") from error
    return TokenStore(folder=folder, tokenizer=tokenizer, **tokens)


def _map_tokens(file: Path, dtype: np.dtype, count: Any) -> np.ndarray:
    """Memory-maps a file of `count` tokens. Raises ValueError if the file has another size."""
    size = file.stat().st_size
    if type(count) is not int or count < 1 or size != count * dtype.itemsize:
        raise ValueError(
            f"{file.name} has {size:,} bytes, and store.json says {str(count)[:80]} tokens"
        )
    return np.memmap(file, dtype=dtype, mode="r")


@contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Inside the `with` block, this process holds the lock for creating the store `folder`. Yields
    the path of the temporary folder in which the store is created. Removes the temporary folder at
    the end."""
    scratch = folder.with_name(f"{PREPARING}{folder.name}")
    lock = FileLock(_lock_file(scratch))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not _lock_file(scratch).exists():
            raise UserError(
                f"store_dir={scratch.parent} cannot be written: name another folder"
            ) from None
        say(f"Another process is preparing {folder}: waiting for it.")
        lock.acquire()
    try:
        shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
        yield scratch
    finally:
        _discard(scratch)
        lock.release()


def _remove_abandoned(root: Path) -> None:
    """Removes temporary folders that were left by killed processes."""
    for scratch in root.glob(f"{PREPARING}*"):
        if scratch.suffix == ".lock":
            scratch = scratch.with_suffix("")
        try:
            with FileLock(_lock_file(scratch), timeout=0):
                _discard(scratch)
        except (Timeout, OSError):
            continue  # still in use by its process, or owned by another user


def _discard(scratch: Path) -> None:
    """Removes a temporary folder and its lock file. A process that waits for the lock then creates
    a new lock file."""
    shutil.rmtree(scratch, ignore_errors=True)
    _lock_file(scratch).unlink(missing_ok=True)


def _lock_file(scratch: Path) -> Path:
    return scratch.with_name(f"{scratch.name}.lock")


def encode_documents(texts: Iterable[str], tokenizer: Tokenizer) -> Iterable[np.ndarray]:
    """The tokens of each document, preceded by the end-of-text token."""
    for text in texts:
        yield np.concatenate([[tokenizer.end_of_text], tokenizer.encode(text)])


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def _name_and_options(make_tokenizer: Callable[..., Tokenizer]) -> tuple[str, dict[str, Any]]:
    """The name of the function `make_tokenizer`, and its bound options if it is a
    `functools.partial`."""
    if isinstance(make_tokenizer, partial):
        return make_tokenizer.func.__name__, make_tokenizer.keywords
    return make_tokenizer.__name__, {}


def _fingerprint(corpus_fingerprint: str, make_tokenizer: Callable[..., Tokenizer]) -> str:
    parts = [FORMAT, corpus_fingerprint, [*_name_and_options(make_tokenizer)]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _write_store(
    folder: Path,
    corpus: Corpus,
    fingerprint: str,
    make_tokenizer: Callable[..., Tokenizer],
    track: Track,
) -> None:
    documents = dict(zip(SPLITS, corpus.splits(), strict=True))
    if corpus.fingerprint() != fingerprint:
        raise UserError(f"the text of data={corpus.name} changed while it was read: try again")
    tokenizer = make_tokenizer(row["text"] for row in documents["train"])
    dtype = token_dtype(tokenizer.vocab_size)
    description: dict[str, Any] = {
        "format": FORMAT,
        "corpus": corpus.name,
        "corpus_fingerprint": fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "dtype": np.dtype(dtype).name,
    }
    for split, rows in documents.items():
        texts = (row["text"] for row in track(rows, f"Encoding {split}", len(rows)))
        count = 0
        file = folder / f"{split}.bin"
        try:
            with file.open("wb") as stream:
                for tokens in encode_documents(texts, tokenizer):
                    count += len(tokens)
                    stream.write(tokens.astype(dtype).tobytes())
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            size = count * np.dtype(dtype).itemsize
            raise UserError(cannot_write(file, error, size=size)) from error
        description[f"{split}_documents"] = len(rows)
        description[f"{split}_tokens"] = count
    for name, content in (("tokenizer", tokenizer.state()), ("store", description)):
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_atomically(folder / f"{name}.json", text)
