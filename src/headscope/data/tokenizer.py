"""Makes the tokenizers of conf/tokenizer, and creates a tokenizer from its saved state.

Most tokenizers use a `tiktoken.Encoding`. The others are `CharTokenizer`, and `TokenizersTokenizer`
for the tokenizers of imported models that tiktoken cannot express.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import numpy as np
import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from headscope.data.base_tokenizer import END_OF_TEXT, Tokenizer
from headscope.data.bpe import MAX_VOCAB_SIZE, train_bpe
from headscope.data.char_tokenizer import CODE_POINTS, CharTokenizer, code_points
from headscope.data.gpt2 import gpt2_ranks
from headscope.errors import UserError

BYTE_PATTERN = r"(?s)."

PATTERNS = {"byte": BYTE_PATTERN, "bpe": r50k_pat_str, "gpt2": r50k_pat_str}
"""The regular expression with which each tokenizer splits text. `tokenizer_from_state` accepts no
other pattern, because matching a malicious pattern could take forever."""


class TiktokenTokenizer(Tokenizer):
    """A tokenizer that uses a `tiktoken.Encoding`, with the end-of-text token as its only special
    token."""

    end_of_text: int

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self.encoding = encoding
        self.name = encoding.name
        self.vocab_size = encoding.n_vocab
        self.end_of_text = encoding.eot_token
        # Without merges, a table is much faster than `encoding`.
        ranks = encoding._mergeable_ranks
        single = [ranks[bytes([value])] for value in range(256)] if len(ranks) == 256 else None
        self.token_of_byte = None if single is None else np.array(single, dtype=np.uint32)

    @property
    def ranks(self) -> dict[bytes, int]:
        """Maps the bytes of each token, except the end-of-text token, to the token's id."""
        return self.encoding._mergeable_ranks

    def encode(self, text: str) -> np.ndarray:
        if self.token_of_byte is not None:
            return self.token_of_byte[np.frombuffer(text.encode(), dtype=np.uint8)]
        return self.encoding.encode_to_numpy(text, disallowed_special=())

    def token_bytes(self, token: int) -> bytes:
        if token >= self.end_of_text:
            return b""
        return self.encoding.decode_single_token_bytes(token)

    def state(self) -> dict[str, Any]:
        state = {
            "kind": "tiktoken",
            "name": self.encoding.name,
            "pattern": self.encoding._pat_str,
            "ranks": _ranks_to_text(self.ranks),
            "end_of_text": self.end_of_text,
        }
        padded = self.vocab_size > self.encoding.n_vocab
        return state | {"vocab_size": self.vocab_size} if padded else state


def tokenizer_from_state(state: dict[str, Any]) -> Tokenizer:
    """Creates the tokenizer whose method `state` returned `state`. Raises UserError if `state` is
    not valid."""
    match state:
        case {"kind": "char", "alphabet": str(alphabet)}:
            special_tokens = state.get("special_tokens", True)
            surrogates = any("\ud800" <= char <= "\udfff" for char in alphabet)
            distinct = len(set(alphabet)) == len(alphabet) and not surrogates
            if distinct and type(special_tokens) is bool and (alphabet or special_tokens):
                return CharTokenizer(alphabet, special_tokens=special_tokens)
        case {
            "kind": "tiktoken",
            "name": str(name),
            "pattern": str(pattern),
            "ranks": str(ranks),
            "end_of_text": int(end_of_text),
        }:
            token_of = _ranks_from_text(ranks)
            if (
                PATTERNS.get(name) == pattern
                and are_ranks(token_of)
                and end_of_text == len(token_of)
            ):
                return _with_rows(tiktoken_tokenizer(name, token_of), state)
        case {"kind": "tokenizers", "json": str(text)}:
            # Few models need the library `tokenizers`, so it is imported only here.
            from headscope.data.tokenizers_tokenizer import TokenizersTokenizer

            made = TokenizersTokenizer(text, end_of_text=state.get("end_of_text"))
            return _with_rows(made, state)
    raise UserError("this is not a tokenizer that headscope saved")


def with_vocab_size(tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    """A copy of the tokenizer of an imported model, for an embedding with `vocab_size` rows. Raises
    UserError if the tokenizer has more tokens than this, or if a tokenizer of this kind cannot have
    rows without tokens."""
    if vocab_size == tokenizer.vocab_size:
        return tokenizer
    copy = tokenizer_from_state(tokenizer.state() | {"vocab_size": vocab_size})
    if copy.vocab_size != vocab_size:
        raise UserError(
            f"the model has {vocab_size} tokens, but its tokenizer {tokenizer.vocab_size}"
        )
    return copy


def _with_rows(tokenizer: Tokenizer, state: dict[str, Any]) -> Tokenizer:
    """Sets the number of rows of the embedding from a state. By default, it is the number of
    tokens. Raises UserError if it is not a number or out of range."""
    tokens = tokenizer.vocab_size
    rows = state.get("vocab_size", tokens)
    if type(rows) is not int or not tokens <= rows <= max(tokens, MAX_VOCAB_SIZE):
        raise UserError(
            f"the tokenizer has {tokens} tokens, which do not fit in a vocabulary of "
            f"{str(rows)[:80]}: the files do not belong together"
        )
    tokenizer.vocab_size = rows
    return tokenizer


def are_ranks(ranks: dict[bytes, int]) -> bool:
    """Whether tiktoken can use these ranks. It crashes if one of the 256 bytes or one of the ranks
    is missing."""
    every_byte = {bytes([value]) for value in range(256)} <= ranks.keys()
    return every_byte and sorted(ranks.values()) == list(range(len(ranks)))


def byte(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer with 257 tokens: one token for each byte, and the end-of-text token. Does not
    read `texts`."""
    return tiktoken_tokenizer("byte", {bytes([value]): value for value in range(256)})


def char(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer with one token for each different character in `texts`, in the order of code
    points."""
    seen = np.zeros(CODE_POINTS, dtype=bool)
    for text in texts:
        seen[code_points(text)] = True
    return CharTokenizer("".join(map(chr, np.flatnonzero(seen).tolist())))


def bpe(texts: Iterable[str], *, vocab_size: int, sample_megabytes: float = 100.0) -> Tokenizer:
    """Trains a byte-level byte-pair encoding (Sennrich 2016) on `texts`, split by GPT-2's pattern.
    If the texts have more than `sample_megabytes`, it is trained on a sample spread over them.

    The vocabulary is the 256 bytes, then the merges in the order in which they were learned, then
    the end-of-text token. Raises UserError if `texts` contain too little text for a vocabulary of
    `vocab_size` tokens.
    """
    ranks = train_bpe(texts, vocab_size=vocab_size, sample_megabytes=sample_megabytes)
    return tiktoken_tokenizer("bpe", ranks)


def stored(texts: Iterable[str], *, state: dict[str, Any]) -> Tokenizer:
    """The tokenizer that is stored in a checkpoint. Does not read `texts`."""
    return tokenizer_from_state(state)


def gpt2(texts: Iterable[str], *, path: str | None = None) -> Tokenizer:
    """GPT-2's own encoding, with 50257 tokens. Does not read `texts`. For `path`, see
    `gpt2_ranks`."""
    return tiktoken_tokenizer("gpt2", gpt2_ranks(path))


def tiktoken_tokenizer(name: str, ranks: dict[bytes, int]) -> TiktokenTokenizer:
    """The tokenizer with these `ranks` that splits text as the tokenizer `name` in `PATTERNS`."""
    encoding = tiktoken.Encoding(
        name,
        pat_str=PATTERNS[name],
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: len(ranks)},
    )
    return TiktokenTokenizer(encoding)


def _ranks_to_text(ranks: dict[bytes, int]) -> str:
    """The ranks in the .tiktoken file format: one line per token, with the token's bytes in base64
    and its rank."""
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())


def _ranks_from_text(text: str) -> dict[bytes, int]:
    try:
        lines = (line.split() for line in text.splitlines())
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (ValueError, binascii.Error) as error:
        raise UserError(f"the tokenizer's ranks are not in .tiktoken format: {error}") from None
