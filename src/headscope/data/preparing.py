"""Prepares a token store: encodes a corpus once.

A store is first written to a temporary folder `.preparing-<name>`, which is renamed when the store
is complete. One process prepares at a time, and the others wait. If it is killed, the next process
that prepares a store removes its temporary folder.
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

PREPARING, LOCK = ".preparing-", ".preparing.lock"

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
    user: that another process is preparing a store, or that documents are in both splits.

    Raises UserError if the text cannot be read, changes while it is read, or is too short for the
    tokenizer, or if an existing store is damaged. Raises OSError if `root` cannot be written.
    """
    of_corpus = corpus.fingerprint()
    fingerprint = _fingerprint(of_corpus, make_tokenizer)
    folder = root / f"{corpus.name}-{fingerprint[:16]}"
    if not folder.exists():
        with _temporary_folder(folder, say) as scratch:
            if not folder.exists():  # another process may have created it meanwhile
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
def _temporary_folder(store: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Yields an empty folder next to `store`. No other process prepares a store there meanwhile.
    The folder is removed at the end, also when a signal ends the process."""
    root = store.parent
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / LOCK, mode=0o666)  # other users may prepare stores there too
    try:
        lock.acquire(timeout=1)
    except Timeout:
        if not (root / LOCK).exists():
            raise UserError(f"store_dir={root} cannot be written: name another folder") from None
        say(f"Another process is preparing a text in {root}: waiting for it.")
        lock.acquire()
    try:
        for killed in root.glob(f"{PREPARING}*"):
            shutil.rmtree(killed, ignore_errors=True)
        scratch = root / f"{PREPARING}{store.name}"
        scratch.mkdir()
        discard = partial(shutil.rmtree, scratch, ignore_errors=True)
        try:
            with on_stop(discard):
                yield scratch
        finally:
            discard()
    finally:
        lock.release()


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
