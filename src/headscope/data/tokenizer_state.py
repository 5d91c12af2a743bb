"""Creates tokenizers from their saved state, which may come from a stranger."""

from collections.abc import Iterable
from typing import Any

from headscope.data.bpe import MAX_VOCAB_SIZE
from headscope.data.ranks import are_ranks, ranks_from_text
from headscope.data.tokenizer import (
    PATTERNS,
    CharTokenizer,
    TiktokenTokenizer,
    Tokenizer,
    with_vocab_size,
)
from headscope.errors import UserError


def stored(own: type | None, texts: Iterable[str], *, state: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a checkpoint (see `tokenizer_from_state`). Does not read `texts`."""
    return tokenizer_from_state(state, own)


def tokenizer_from_state(state: dict[str, Any], own: type | None = None) -> Tokenizer:
    """Creates the tokenizer whose method `state` returned `state`. `own` is its class, if it is not
    headscope's. Raises UserError if `state` is not valid."""
    made: Tokenizer | None = None
    match state:
        case {"kind": "char", "alphabet": str(alphabet)}:
            special_tokens = state.get("special_tokens", True)
            surrogates = any("\ud800" <= char <= "\udfff" for char in alphabet)
            distinct = len({*alphabet}) == len(alphabet) and not surrogates
            if distinct and type(special_tokens) is bool and (alphabet or special_tokens):
                made = CharTokenizer(alphabet, special_tokens=special_tokens)
        case {"kind": "tiktoken", "name": str(name), "ranks": str(text)} if name in PATTERNS:
            ranks = ranks_from_text(text)
            known = state | {"pattern": PATTERNS[name], "end_of_text": len(ranks)} == state
            if known and are_ranks(ranks):
                made = TiktokenTokenizer(name, ranks)
        case {"kind": "tokenizers", "json": str(text)}:
            # Few models need the library `tokenizers`, so it is imported only here.
            from headscope.data.tokenizers_tokenizer import TokenizersTokenizer

            more = {key: state.get(key) for key in ("end_of_text", "begin_token", "chat_template")}
            made = TokenizersTokenizer(text, **more)
        case {"kind": "own", "attributes": dict(attributes)} if own and issubclass(own, Tokenizer):
            size: Any = attributes.get("vocab_size")
            valid = type(size) is int and 0 < size <= MAX_VOCAB_SIZE
            if valid and not any(callable(getattr(own, name, None)) for name in attributes):
                made = own.__new__(own)
                vars(made).update(attributes)
    if made is None:
        raise UserError("this is not a tokenizer that headscope saved")
    end: Any = getattr(made, "end_of_text", None)
    for name, token in (("end-of-text", end), ("begin-of-text", made.begin_token)):
        if token is not None and not (type(token) is int and 0 <= token < made.vocab_size):
            raise UserError(f"the tokenizer has no {name} token {str(token)[:80]}")
    begins: Any = state.get("adds_begin", made.adds_begin)
    if type(begins) is not bool or not isinstance(made.chat_template, str | None):
        raise UserError("adds_begin and chat_template of the tokenizer must be a bool and a text")
    made = made.typed(begin=begins)
    return with_vocab_size(made, state.get("vocab_size", made.vocab_size))
