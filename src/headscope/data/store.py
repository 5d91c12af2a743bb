"""The token store: an encoded corpus on disk, whose tokens are memory-mapped.

A store is a folder with four files. `train.bin` and `validation.bin` are raw arrays of tokens
(uint16, or uint32 for a large vocabulary). `store.json` contains the tokenizer, a fingerprint of
the text and the options of the tokenizer, and the bytes of text per byte of the validation tokens.
`checksums.json` contains the CRC-32 of the other files. Opening a store verifies them.

A store is a `new_folder`: it is complete or not there. One process prepares a store at a time, and
the others wait.
"""

import hashlib
import json
import math
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from headscope.data.corpus import SPLITS, Corpus
from headscope.data.encode import EncodedCorpus, Track, token_dtype
from headscope.data.tokenizer import Tokenizer, splits_characters
from headscope.data.tokenizer_state import tokenizer_from_state
from headscope.errors import UserError
from headscope.files import new_folder, parse_json

FORMAT = 5
DESCRIPTION, CHECKSUMS = "store.json", "checksums.json"
TOKENS = {split: f"{split}.bin" for split in SPLITS}
LOCK = ".preparing.lock"

MAX_RATIO = 2.0**20
"""The bytes of text per byte of tokens are below this number in every store."""
CHARACTERS_PER_TOKEN = 8
"""A token has fewer characters than this on average."""


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
    track: Track | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> TokenStore:
    """Opens the store of this corpus and tokenizer in the folder `root`. Creates it if necessary.

    `make_tokenizer` is called with the training documents. It is a class or function, or a
    `functools.partial` that binds its options. `say` is called with messages for the user: the
    `notice` of the corpus, that another process is preparing a store, that rows have no value, that
    documents are in both splits, or that the tokenizer does not suit the text.

    Raises UserError if the text cannot be read, changes while it is read, or is too short for the
    tokenizer, or if an existing store is damaged. Raises OSError if `root` cannot be written.
    """
    of_corpus = corpus.fingerprint()
    make = make_tokenizer if isinstance(make_tokenizer, partial) else partial(make_tokenizer)
    makers = [maker for maker in (make.func, *make.args) if maker]
    named = [f"{maker.__module__}.{maker.__qualname__}" for maker in makers]
    settings = [FORMAT, of_corpus, named, make.keywords]
    fingerprint = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    folder = Path(root) / f"{corpus.name}-{fingerprint[:16]}"
    if corpus.notice:
        say(corpus.notice)
    if not folder.exists():
        with _lock(folder.parent, say):
            if not folder.exists():  # another process may have created it meanwhile
                encoded = EncodedCorpus(corpus, make_tokenizer(training_texts(corpus)))
                with new_folder(folder) as new:
                    write_store(new, encoded, fingerprint, track)
                    if corpus.fingerprint() != of_corpus:
                        raise UserError(f"data={corpus.name} changed while it was read: try again")
                for line in notes(encoded):
                    say(line)
    own = next((maker for maker in makers if isinstance(maker, type)), None)
    store = open_store(folder, fingerprint=fingerprint, own=own)
    if splits_characters(store.tokenizer, store.tokenizer.decode(store.train[:16384])):
        say("the tokenizer needs several tokens per character of this text: try tokenizer=char")
    return store


@contextmanager
def _lock(root: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Inside the `with` block, no other process prepares a store in the folder `root`."""
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
        yield


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
    folder: Path, encoded: EncodedCorpus, fingerprint: str, track: Track | None
) -> None:
    """Encodes a corpus into the files of a store. Raises UserError if the text cannot be read, if a
    split has no text, or if the tokens cannot be written."""
    checksums = dict.fromkeys(TOKENS.values(), 0)
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in TOKENS.values()}
        for split, tokens in stack.enter_context(closing(encoded.token_arrays(track))):
            files[TOKENS[split]].write(tokens.data)
            checksums[TOKENS[split]] = zlib.crc32(tokens.data, checksums[TOKENS[split]])
    for split, count in encoded.counts.items():
        if not count.tokens:
            raise UserError(f"data={encoded.corpus.name} has no text for the {split} split")
    description = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "text_per_token_byte": encoded.counts["validation"].text_per_token_byte,
        "tokenizer": encoded.tokenizer.state(),
    }
    text = json.dumps(description, indent=1, ensure_ascii=False)
    checksums[DESCRIPTION] = zlib.crc32(text.encode())
    (folder / DESCRIPTION).write_text(text, encoding="utf-8")
    (folder / CHECKSUMS).write_text(json.dumps(checksums))


def notes(encoded: EncodedCorpus) -> Iterator[str]:
    """What the user should know about a corpus that has been encoded."""
    corpus = encoded.corpus
    if lost := {source: counts for source, counts in corpus.left_out.items() if counts[0]}:
        count, rows = map(sum, zip(*lost.values(), strict=True))
        yield f"left out: {count:,} of {rows:,} rows without a value, as in {min(lost)}"
    if not corpus.deduplicate and (in_both := encoded.in_both_splits()):
        yield (
            f"validation documents that are also in the training split: {in_both:,}; this makes "
            "the validation loss too low: data.deduplicate=true keeps only the first of equal "
            "documents"
        )


def open_store(
    folder: Path, *, fingerprint: str | None = None, own: type | None = None
) -> TokenStore:
    """Opens the store in `folder`. If a `fingerprint` is given, the store must have it. `own` is
    the class of its tokenizer, if it is not headscope's.

    Raises UserError if the store is incomplete, or if its files do not match the checksums.
    """
    try:
        if parse_json(folder / CHECKSUMS) != _checksums(folder):
            raise ValueError(f"the checksums in {CHECKSUMS} differ")
        match parse_json(folder / DESCRIPTION):
            case {
                "format": version,
                "fingerprint": str(of_store),
                "text_per_token_byte": float(ratio),
                "tokenizer": dict(state),
            } if version == FORMAT and fingerprint in (None, of_store) and 0 <= ratio < MAX_RATIO:
                tokenizer = tokenizer_from_state(state, own)
            case _:
                raise ValueError(f"{DESCRIPTION} does not describe it")
        dtype = token_dtype(tokenizer.vocab_size)
        tokens = {
            split: np.memmap(folder / name, dtype, mode="r") for split, name in TOKENS.items()
        }
        if max(array.max() for array in tokens.values()) >= tokenizer.vocab_size:
            raise ValueError("a token is not in the vocabulary")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{folder} is not a token store ({reason}): delete it") from error
    return TokenStore(folder=folder, tokenizer=tokenizer, text_per_token_byte=ratio, **tokens)


def _checksums(folder: Path) -> dict[str, int]:
    """The CRC-32 of each file, except that of the checksums. Raises ValueError if one is empty, or
    is not a regular file."""
    checksums = {}
    for name in (DESCRIPTION, *TOKENS.values()):
        if not stat.S_ISREG((folder / name).lstat().st_mode):  # a link could point to any file
            raise ValueError(f"{name} is not a regular file")
        checksums[name] = zlib.crc32(np.memmap(folder / name, mode="r").data)
    return checksums
