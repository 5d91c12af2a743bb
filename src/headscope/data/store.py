"""The token store: a corpus, encoded once and memory-mapped ever after.

A store is a folder: `train.bin` and `validation.bin`, bare arrays of tokens (uint16, or uint32
where the vocabulary needs it), `tokenizer.json`, and `store.json`, which says what made it. Its
name ends in a fingerprint of text and tokenizer. It is written in a folder `.preparing-<name>` and
moved when it is complete, so a folder of the right name is always a complete store. Of two
processes that need the same one, the second waits for the first.
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
from headscope.files import cannot_write, parsed, write_atomically
from headscope.stop import on_stop

FORMAT = 1
SPLITS = ("train", "validation")

PREPARING = ".preparing-"

CHUNK = 2**24
"""Tokens that are compared with the vocabulary at once."""

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
    say: Callable[[str], None] = lambda line: None,
) -> TokenStore:
    """Open the store of this text and tokenizer under `root`, and make it first if it is not there.

    `make_tokenizer` gets the training documents. `say` prints a line while another process is
    preparing the same store.

    Raises UserError when the text cannot be read, changes meanwhile, or is too short for the
    tokenizer, or the store that is there is not of this text and tokenizer; OSError when `root`
    cannot be written.
    """
    fingerprint = corpus.fingerprint()
    key = _fingerprint(fingerprint, make_tokenizer)
    folder = root / f"{corpus.name}-{key[:16]}"
    if root.is_dir():
        _remove_abandoned(root)
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        with _locked(folder, say) as scratch:
            if not folder.exists():  # or it was waited for
                with on_stop(partial(_discard, scratch)):
                    scratch.mkdir()
                    _write(scratch, corpus, fingerprint, make_tokenizer, track)
                    scratch.rename(folder)
    store = open_store(folder, of={"corpus": corpus.name, "corpus_fingerprint": fingerprint})
    name, options = _recipe(make_tokenizer)
    tokenizer = store.tokenizer
    if "state" in options:
        same = tokenizer.state() == options["state"]
    else:
        size = options.get("vocab_size", tokenizer.vocab_size)
        same = (tokenizer.name, tokenizer.vocab_size) == (name, size)
    if not same:
        raise UserError(f"{folder} has another tokenizer than its name says: delete it")
    return store


def open_store(folder: Path, *, of: dict[str, Any] | None = None) -> TokenStore:
    """The store in `folder`. `of` are entries that its store.json must have.

    Raises UserError when it is not a complete store, or not as its store.json says.
    """
    try:
        for name in ("store.json", "tokenizer.json", *(f"{split}.bin" for split in SPLITS)):
            if not stat.S_ISREG((folder / name).lstat().st_mode):  # a link may lead anywhere
                raise ValueError(f"{name} is not a regular file")
        description = parsed(folder / "store.json")
        if not isinstance(description, dict):
            raise ValueError("store.json is not a description")
        tokenizer = tokenizer_from_state(parsed(folder / "tokenizer.json"))
        dtype = np.dtype(token_dtype(tokenizer.vocab_size))
        expected = {"format": FORMAT, "vocab_size": tokenizer.vocab_size, "dtype": dtype.name}
        for key, value in (expected | (of or {})).items():
            found = description.get(key)
            if type(found) is not type(value) or found != value:
                raise ValueError(f"store.json says {key}={str(found)[:80]!r}, not {value!r}")
        tokens = {
            split: _tokens(folder / f"{split}.bin", dtype, description.get(f"{split}_tokens"))
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


def _tokens(file: Path, dtype: np.dtype, count: Any) -> np.ndarray:
    """A file of tokens, memory-mapped. Raises ValueError unless it has `count` of them."""
    size = file.stat().st_size
    if type(count) is not int or count < 1 or size != count * dtype.itemsize:
        raise ValueError(
            f"{file.name} has {size:,} bytes, and store.json says {str(count)[:80]} tokens"
        )
    return np.memmap(file, dtype=dtype, mode="r")


@contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Lock the making of the store `folder`; gives the folder to make it in, and removes it."""
    scratch = folder.with_name(f"{PREPARING}{folder.name}")
    lock = FileLock(_lock_of(scratch))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not _lock_of(scratch).exists():
            raise UserError(
                f"store_dir={scratch.parent} cannot be written: name another folder"
            ) from None
        say(f"Another process is preparing {folder}: waiting for it.")
        lock.acquire()
    try:
        shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
        yield scratch
    finally:
        _discard(scratch)
        lock.release()


def _remove_abandoned(root: Path) -> None:
    """Remove what killed processes were preparing."""
    for scratch in root.glob(f"{PREPARING}*"):
        if scratch.suffix == ".lock":
            scratch = scratch.with_suffix("")
        try:
            with FileLock(_lock_of(scratch), timeout=0):
                _discard(scratch)
        except (Timeout, OSError):
            continue  # its process is alive, or it is another user's


def _discard(scratch: Path) -> None:
    """Remove a folder that is locked, and its lock. Processes that wait for it make a new one."""
    shutil.rmtree(scratch, ignore_errors=True)
    _lock_of(scratch).unlink(missing_ok=True)


def _lock_of(scratch: Path) -> Path:
    return scratch.with_name(f"{scratch.name}.lock")


def encode_documents(texts: Iterable[str], tokenizer: Tokenizer) -> Iterable[np.ndarray]:
    """Each document's tokens, the end of text standing before it."""
    for text in texts:
        yield np.concatenate([[tokenizer.end_of_text], tokenizer.encode(text)])


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def _recipe(make_tokenizer: Callable[..., Tokenizer]) -> tuple[str, dict[str, Any]]:
    """The name of a tokenizer's function, and its options."""
    if isinstance(make_tokenizer, partial):
        return make_tokenizer.func.__name__, make_tokenizer.keywords
    return make_tokenizer.__name__, {}


def _fingerprint(of_corpus: str, make_tokenizer: Callable[..., Tokenizer]) -> str:
    made_of = [FORMAT, of_corpus, [*_recipe(make_tokenizer)]]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def _write(
    folder: Path,
    corpus: Corpus,
    fingerprint: str,
    make_tokenizer: Callable[..., Tokenizer],
    track: Track,
) -> None:
    documents = dict(zip(SPLITS, corpus.splits(), strict=True))
    if corpus.fingerprint() != fingerprint:
        raise UserError(f"the text of data={corpus.name} has changed while it was read: try again")
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
