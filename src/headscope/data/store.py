"""The token store: an encoded corpus on disk, whose tokens are memory-mapped.

A store is a folder with four files. `train.bin` and `validation.bin` are raw arrays of tokens
(uint16, or uint32 for a large vocabulary). `tokenizer.json` contains the tokenizer. `store.json`
contains a fingerprint of the text and the options of the tokenizer, the type of the tokens, the
numbers of documents, tokens and bytes of text, and checksums of the tokenizer and the tokens.

A store is first written to a temporary folder `.preparing-<name>`, which is renamed when the store
is complete. One process prepares at a time, and the others wait. If it is killed, the next process
that prepares a store removes its temporary folder.

Opening a store verifies all checksums. Then the file `verified.json` says when the files were
changed last, so that they are verified again only after a change.
"""

import hashlib
import json
import math
import shutil
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from headscope.data import encode
from headscope.data.corpus import SPLITS, Corpus
from headscope.data.tokenizer import Tokenizer, tokenizer_from_state
from headscope.errors import UserError
from headscope.files import parse_json, read_json, replacing, write_atomically

FORMAT = 3
DESCRIPTION, TOKENIZER, VERIFIED = "store.json", "tokenizer.json", "verified.json"
TOKENS = {split: f"{split}.bin" for split in SPLITS}
PREPARING, LOCK = ".preparing-", ".preparing.lock"

CHARACTERS_PER_TOKEN = 8
"""More characters than a token has on average."""


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


def prepare_store(
    corpus: Corpus,
    make_tokenizer: Callable[[Iterable[str]], Tokenizer],
    *,
    root: str | Path = "data",
    track: encode.Track | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> TokenStore:
    """Opens the store of this corpus and tokenizer in the folder `root`. Creates the store if it
    does not exist.

    `make_tokenizer` is called with the training documents. It is a class or function, or a
    `functools.partial` that binds its options. `say` is called with messages for the user: the
    `notice` of the corpus, that another process is preparing a store, that rows have no value, or
    that documents are in both splits.

    Raises UserError if the text cannot be read, changes while it is read, or is too short for the
    tokenizer, or if an existing store is damaged. Raises OSError if `root` cannot be written.
    """
    of_corpus = corpus.fingerprint()
    make = partial(make_tokenizer)
    named = [f"{each.__module__}.{each.__qualname__}" for each in (make.func, *make.args) if each]
    parts = [FORMAT, of_corpus, named, make.keywords]
    fingerprint = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    folder = Path(root) / f"{corpus.name}-{fingerprint[:16]}"
    if corpus.notice:
        say(corpus.notice)
    if not folder.exists():
        with _temporary_folder(folder, say) as scratch:
            if not folder.exists():  # another process may have created it meanwhile
                tokenizer = make_tokenizer(training_texts(corpus))
                in_both = write_store(scratch, corpus, tokenizer, fingerprint, track)
                if corpus.fingerprint() != of_corpus:
                    raise UserError(f"data={corpus.name} changed while it was read: try again")
                if lost := {source: each for source, each in corpus.left_out.items() if each[0]}:
                    count, rows = map(sum, zip(*lost.values(), strict=True))
                    say(f"left out: {count:,} of {rows:,} rows without a value, as in {min(lost)}")
                if in_both and not corpus.deduplicate:
                    say(
                        f"validation documents that are also in the training split: {in_both:,}; "
                        "this makes the validation loss too low: data.deduplicate=true keeps only "
                        "the first of equal documents"
                    )
                scratch.rename(folder)
    own = next((each for each in (make.func, *make.args) if isinstance(each, type)), None)
    return open_store(folder, fingerprint=fingerprint, own=own)


@contextmanager
def _temporary_folder(store: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Yields an empty folder next to `store`. No other process prepares a store there meanwhile.
    The folder is removed at the end, and one that a killed process left is removed before."""
    root = store.parent
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / LOCK, mode=0o666)  # other users may prepare stores there too
    try:
        acquired = lock.acquire(timeout=1)
    except Timeout:
        if not (root / LOCK).exists():
            raise UserError(f"store_dir={root} cannot be written: name another folder") from None
        say(f"Another process is preparing a text in {root}: waiting for it.")
        acquired = lock.acquire()
    with acquired:
        for killed in root.glob(f"{PREPARING}*"):
            shutil.rmtree(killed, ignore_errors=True)
        scratch = root / f"{PREPARING}{store.name}"
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


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


def write_store(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, fingerprint: str, track: encode.Track | None
) -> int:
    """Encodes a corpus into the files of a store. Returns the number of validation documents that
    are also in the training split.

    Raises UserError if the text cannot be read, if a split has no text, or if the tokens cannot be
    written.
    """
    counts = encode.new_counts(corpus)
    checksums = dict.fromkeys(SPLITS, 0)
    with ExitStack() as stack:
        files = {
            split: stack.enter_context(replacing(folder / name)) for split, name in TOKENS.items()
        }
        encoded = encode.encode_corpus(corpus, tokenizer, counts, track=track)
        for split, tokens in stack.enter_context(closing(encoded)):
            files[split].write(tokens.data)
            checksums[split] = zlib.crc32(tokens.data, checksums[split])
    description = _described(tokenizer) | {"fingerprint": fingerprint}
    for split, count in counts.items():
        if not count.tokens:
            raise UserError(f"data={corpus.name} has no text for the {split} split")
        description[f"{split}_tokens"] = count.tokens
        description[f"{split}_bytes"] = count.text_bytes
        description[f"{split}_crc32"] = checksums[split]
    state = json.dumps(tokenizer.state(), indent=1, ensure_ascii=False)
    write_atomically(folder / TOKENIZER, state)
    write_atomically(folder / DESCRIPTION, json.dumps(description, indent=1))
    train, validation = (counts[split].digests for split in SPLITS)
    return sum(count for digest, count in validation.items() if digest in train)


def open_store(
    folder: Path, *, fingerprint: str | None = None, own: type | None = None
) -> TokenStore:
    """Opens the store in `folder`. If a `fingerprint` is given, the store must have it. `own` is
    the class of its tokenizer, if it is not headscope's.

    Raises UserError if the store is incomplete, or if its files do not match store.json.
    """
    try:
        for name in (DESCRIPTION, TOKENIZER, *TOKENS.values()):
            # A symbolic link is not allowed either, because it could point to any file.
            if not stat.S_ISREG((folder / name).lstat().st_mode):
                raise ValueError(f"{name} is not a regular file")
        description = parse_json(folder / DESCRIPTION)
        if not isinstance(description, dict):
            raise ValueError(f"{DESCRIPTION} is not a JSON object")
        tokenizer = tokenizer_from_state(parse_json(folder / TOKENIZER), own)
        expected = _described(tokenizer) | ({"fingerprint": fingerprint} if fingerprint else {})
        for key, value in expected.items():
            found = description.get(key)
            if type(found) is not type(value) or found != value:
                raise ValueError(f"{DESCRIPTION} says {key}={str(found)[:80]!r}, not {value!r}")
        tokens = {
            split: _map_tokens(folder / name, expected["dtype"], description.get(f"{split}_tokens"))
            for split, name in TOKENS.items()
        }
        if read_json(folder / VERIFIED) != (stamps := _stamps(folder)):
            for split, array in tokens.items():
                _check_tokens(array, description.get(f"{split}_crc32"), tokenizer.vocab_size)
            with suppress(UserError):  # the folder may be read-only
                write_atomically(folder / VERIFIED, json.dumps(stamps))
        text_bytes = description.get("validation_bytes")
        if type(text_bytes) is not int or not 0 <= text_bytes < 2**53:
            raise ValueError(f"{DESCRIPTION} says validation_bytes={str(text_bytes)[:80]}")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{folder} is not a token store ({reason}): delete it") from error
    ratio = encode.text_per_token_byte(text_bytes, tokens["validation"], tokenizer.byte_lengths())
    return TokenStore(folder=folder, tokenizer=tokenizer, text_per_token_byte=ratio, **tokens)


def _described(tokenizer: Tokenizer) -> dict[str, Any]:
    """The entries of store.json that the tokenizer determines."""
    state = json.dumps(tokenizer.state(), sort_keys=True)
    return {
        "format": FORMAT,
        "vocab_size": tokenizer.vocab_size,
        "dtype": np.dtype(encode.token_dtype(tokenizer.vocab_size)).name,
        "tokenizer_sha256": hashlib.sha256(state.encode()).hexdigest(),
    }


def _map_tokens(file: Path, dtype: str, count: Any) -> np.ndarray:
    """Memory-maps a file of `count` tokens. Raises ValueError if the file has another size."""
    size = file.stat().st_size
    if type(count) is not int or count < 1 or size != count * np.dtype(dtype).itemsize:
        raise ValueError(f"{file.name} has {size:,} bytes, not {str(count)[:80]} tokens")
    return np.memmap(file, dtype=dtype, mode="r")


def _check_tokens(tokens: np.ndarray, checksum: Any, vocab_size: int) -> None:
    """Raises ValueError unless the tokens have this CRC-32 and are in the vocabulary."""
    found = 0
    for start in range(0, len(tokens), encode.CHUNK):
        chunk = tokens[start : start + encode.CHUNK]
        if chunk.max() >= vocab_size:
            raise ValueError("a token is not in the vocabulary")
        found = zlib.crc32(chunk.data, found)
    if type(checksum) is not int or found != checksum:
        raise ValueError("the checksum of the tokens differs")


def _stamps(folder: Path) -> list[list[int]]:
    """Numbers that differ after any change of a file of tokens, or of the description: the kernel
    sets the time of the last change itself, so a program cannot restore it."""
    stats = [(folder / name).stat() for name in (*TOKENS.values(), DESCRIPTION)]
    return [[each.st_dev, each.st_ino, each.st_size, each.st_ctime_ns] for each in stats]
