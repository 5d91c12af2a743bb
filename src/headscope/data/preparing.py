"""Prepares a token store: encodes a corpus once.

A store is first written to a temporary folder `.preparing-<name>`. This folder is renamed when the
store is complete, so a folder without the prefix `.preparing-` is always complete. If two processes
need the same store, the second waits for the first. If a process is killed, the next one removes
its temporary folder and starts again.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from headscope.data.corpus import Corpus
from headscope.data.encode import Track
from headscope.data.store import FORMAT, TokenStore, open_store, write_store
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.stop import on_stop

PREPARING = ".preparing-"

CHARACTERS_PER_TOKEN = 8
"""More characters than a token has on average."""


def prepare_store(
    corpus: Corpus,
    make_tokenizer: Callable[[Iterable[str]], Tokenizer],
    *,
    root: Path,
    track: Track | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> TokenStore:
    """Opens the store of this corpus and tokenizer in the folder `root`. Creates the store if it
    does not exist.

    `make_tokenizer` is called with the training documents. `say` is called with messages for the
    user: that another process prepares the same store, or that documents are in both splits.

    Raises UserError if the text cannot be read, changes while it is read, or is too short for the
    tokenizer, or if an existing store is damaged. Raises OSError if `root` cannot be written.
    """
    of_corpus = corpus.fingerprint()
    fingerprint = _fingerprint(of_corpus, make_tokenizer)
    folder = root / f"{corpus.name}-{fingerprint[:16]}"
    if root.is_dir():
        _remove_abandoned(root)
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        with _locked(folder, say) as scratch:
            if not folder.exists():  # another process may have created it meanwhile
                scratch.mkdir()
                tokenizer = make_tokenizer(training_texts(corpus))
                in_both = write_store(scratch, corpus, tokenizer, fingerprint, track)
                if corpus.fingerprint() != of_corpus:
                    raise UserError(f"data={corpus.name} changed while it was read: try again")
                if in_both and not corpus.deduplicate:
                    say(
                        f"{in_both:,} document(s) are in both splits, which makes the validation "
                        "loss too low: data.deduplicate=true keeps only the first of equal "
                        "documents"
                    )
                scratch.rename(folder)
    return open_store(folder, fingerprint=fingerprint)


@contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Inside the `with` block, this process holds the lock for creating the store `folder`. Yields
    the path of a temporary folder for it, which does not exist yet. The folder is removed at the
    end, also when a signal ends the process."""
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
        shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
        with on_stop(partial(_discard, scratch)):
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


def _fingerprint(of_corpus: str, make_tokenizer: Callable[..., Tokenizer]) -> str:
    """A hash of the text, and of the name and the options of the tokenizer. `make_tokenizer` is a
    function, or a `functools.partial` that binds its options."""
    make = partial(make_tokenizer)
    parts = [FORMAT, of_corpus, make.func.__name__, make.keywords]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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
