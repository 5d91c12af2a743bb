"""Prepares a token store: encodes a corpus once.

A store is first written to a temporary folder `.preparing-<name>`. This folder is renamed when the
store is complete, so a folder without the prefix `.preparing-` is always complete. If two processes
need the same store, the second waits for the first. If a process is killed, the next one that needs
the store continues after the last finished shard.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from headscope.data.corpus import Corpus
from headscope.data.encode import Track, encode_corpus
from headscope.data.shards import PROGRESS, SPLITS, token_dtype
from headscope.data.store import (
    DESCRIPTION,
    FORMAT,
    TOKENIZER,
    TokenStore,
    open_store,
    tokenizer_sha256,
)
from headscope.data.tokenizer import Tokenizer, tokenizer_from_state
from headscope.errors import UserError
from headscope.files import read_json, write_atomically
from headscope.stop import on_stop

PREPARING = ".preparing-"

KEEP_DAYS = 7
"""Unfinished stores are removed after this number of days."""

CHARACTERS_PER_TOKEN = 8
"""More characters than a token has on average."""


def prepare_store(
    corpus: Corpus,
    make_tokenizer: Callable[[Iterable[str]], Tokenizer],
    *,
    root: Path,
    track: Track = lambda batches, size: batches,
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
                with on_stop(partial(_discard_unless_begun, scratch)):
                    scratch.mkdir(exist_ok=True)
                    _write_store(scratch, corpus, fingerprint, make_tokenizer, track, say)
                    scratch.rename(folder)
                    (folder / PROGRESS).unlink()
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


@contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Inside the `with` block, this process holds the lock for creating the store `folder`. Yields
    the path of the temporary folder in which the store is created. At the end, removes this folder,
    unless it has finished shards, with which the next process can continue."""
    scratch = folder.with_name(f"{PREPARING}{folder.name}")
    lock = FileLock(_lock_file(scratch))
    try:
        # For a moment, another process that looks for unfinished stores may hold the lock.
        lock.acquire(timeout=1)
    except Timeout:
        if not _lock_file(scratch).exists():
            raise UserError(
                f"store_dir={scratch.parent} cannot be written: name another folder"
            ) from None
        say(f"Another process is preparing {folder}: waiting for it.")
        lock.acquire()
    try:
        yield scratch
    except UserError:  # the text is not as it should be, so another text will come
        _discard(scratch)
        raise
    finally:
        _discard_unless_begun(scratch)
        lock.release()


def _discard_unless_begun(scratch: Path) -> str | None:
    """Removes the lock file of a temporary folder, and the folder too, unless it has finished
    shards that are not too old. Returns a message for the user if the folder is kept."""
    try:
        age = time.time() - (scratch / PROGRESS).stat().st_mtime
    except OSError:  # there is no finished shard
        age = math.inf
    if age > KEEP_DAYS * 24 * 3600:
        _discard(scratch)
        return None
    _lock_file(scratch).unlink(missing_ok=True)
    return "The same command continues to prepare the text."


def _remove_abandoned(root: Path) -> None:
    """Removes temporary folders that were left by killed processes, if nothing can be continued."""
    for scratch in root.glob(f"{PREPARING}*"):
        if scratch.suffix == ".lock":
            scratch = scratch.with_suffix("")
        try:
            with FileLock(_lock_file(scratch), timeout=0):
                _discard_unless_begun(scratch)
        except (Timeout, OSError):
            continue  # still in use by its process, or owned by another user


def _discard(scratch: Path) -> None:
    """Removes a temporary folder and its lock file. A process that waits for the lock then creates
    a new lock file."""
    shutil.rmtree(scratch, ignore_errors=True)
    _lock_file(scratch).unlink(missing_ok=True)


def _lock_file(scratch: Path) -> Path:
    return scratch.with_name(f"{scratch.name}.lock")


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
    say: Callable[[str], None],
) -> None:
    """Writes the files of a store, or completes those of a process that was killed."""
    tokenizer = _tokenizer_in(folder)
    if tokenizer is None:
        tokenizer = make_tokenizer(training_texts(corpus))
        content = json.dumps(tokenizer.state(), indent=1, ensure_ascii=False)
        write_atomically(folder / TOKENIZER, content)
    progress, in_both = encode_corpus(folder, corpus, tokenizer, track)
    if corpus.fingerprint() != fingerprint:
        raise UserError(f"the text of data={corpus.name} changed while it was read: try again")
    if in_both and not corpus.deduplicate:
        say(
            f"{in_both:,} document(s) are in both splits, which makes the validation loss too low: "
            "data.deduplicate=true keeps only the first of equal documents"
        )
    description = {
        "format": FORMAT,
        "corpus": corpus.name,
        "corpus_fingerprint": fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "dtype": np.dtype(token_dtype(tokenizer.vocab_size)).name,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
    }
    for split in SPLITS:
        description[f"{split}_documents"] = progress.documents[split]
        description[f"{split}_tokens"] = progress.tokens(split)
        description[f"{split}_bytes"] = progress.text_bytes[split]
        description[f"{split}_shards"] = progress.shards[split]
        if not progress.tokens(split):
            raise UserError(f"data={corpus.name} has no text for the {split} split")
    for partial_file in folder.glob(".*.part"):  # of a process that was killed
        partial_file.unlink()
    write_atomically(folder / DESCRIPTION, json.dumps(description))


def _tokenizer_in(folder: Path) -> Tokenizer | None:
    """The tokenizer that a killed process has written to `folder`, or None."""
    state = read_json(folder / TOKENIZER)
    try:
        return tokenizer_from_state(state) if isinstance(state, dict) else None
    except UserError:
        return None


def training_texts(corpus: Corpus) -> Iterator[str]:
    """The training text in pieces, to make a tokenizer. If the number of tokens is limited, the
    text ends after so many characters that it contains them with near certainty."""
    left = math.inf if corpus.max_tokens is None else CHARACTERS_PER_TOKEN * corpus.max_tokens
    for document in corpus.documents(lambda split: split == "train"):
        if document.split == "train":
            for piece in document.pieces:
                yield piece
                left -= len(piece)
                if left <= 0:
                    return
