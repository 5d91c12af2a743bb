"""Checks the content of a `tokenizer.json`, which may come from a stranger, before the library
`tokenizers` gets it.

A malicious file could make the library run forever (a regular expression that takes exponential
time), fill the memory (replacements that double the text again and again), or abort. So only the
parts in `PARTS` and the regular expressions in `PATTERNS` are allowed, and the sizes are limited.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from headscope.data.bpe import MAX_VOCAB_SIZE
from headscope.errors import UserError

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    # GPT-2
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    # Llama 3 and GPT-4; Qwen 2; Qwen 3.5
    rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}{{1,3}}|{OTHERS}|{ENDS}",
    rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}|{OTHERS}|{ENDS}",
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{ENDS}",
    # Single characters and runs of them
    *(r"\s+", r"\s", r"\n", r"[\r\n]", r"[\n\r\t]", r" {2,}", r"\s{2,}|[\n\r\t]"),
    *(r"\d", r"\d+", r"\d{1,3}", r"\p{N}", r"\p{N}{1,3}", r"[0-9]", r"[0-9][0-9][0-9]"),
    *(r".", r"[\s\S]"),
}
"""The regular expressions of known tokenizers. At each place of a text, the time to match one of
them does not depend on what follows a run of equal kinds of characters."""

PARTS = {
    "normalizer": {
        *("Sequence", "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip"),
        *("StripAccents", "Nmt", "Prepend", "Replace", "Precompiled", "ByteLevel"),
    },
    "pre_tokenizer": {
        *("Sequence", "BertPreTokenizer", "ByteLevel", "Whitespace", "WhitespaceSplit"),
        *("Metaspace", "Punctuation", "Digits", "Split", "CharDelimiterSplit", "UnicodeScripts"),
    },
    "decoder": {
        *("Sequence", "ByteLevel", "WordPiece", "Metaspace", "BPEDecoder", "ByteFallback"),
        *("Fuse", "Strip", "Replace"),
    },
    "post_processor": {
        *("Sequence", "TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel"),
    },
    "model": {"BPE", "WordPiece", "Unigram", "WordLevel"},
}
"""The allowed types of each part of a `tokenizer.json`."""

ITEMS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
    "post_processor": "processors",
}
"""The key with the items of a `Sequence`."""

MAX_PARTS = 32
"""Maximum number of parts of one kind."""
MAX_TOKEN = 1024
"""Maximum length of a token in characters. Unigram looks for each token at each place."""
MAX_WORD = 200
"""Maximum length of the words that WordPiece divides. Its time grows with the cube."""
MAX_REPLACEMENT = 64
"""Maximum size in bytes of what `Precompiled` writes for one character. In Unicode's NFKC, it is
33."""


def check_tokenizer_json(content: Any) -> None:
    """Raises UserError unless `content`, which was read from a `tokenizer.json`, has only allowed
    parts. The library checks the rest when it loads the tokenizer."""
    if not isinstance(content, dict):
        raise UserError("it is not a JSON object")
    for kind in ITEMS:
        parts = list(parts_of(content.get(kind), kind))
        if len(parts) > MAX_PARTS:
            raise UserError(f"it has more than {MAX_PARTS} parts in {kind}")
        for name in ("Precompiled", "ByteLevel"):  # each makes the text a few times longer
            if [part["type"] for part in parts].count(name) > 1:
                raise UserError(f"its {kind} has two parts of the type {name}")
        for part in parts:
            _check_part(part, kind)
    _check_model(content.get("model"))
    added = content.get("added_tokens", [])
    if not isinstance(added, list) or not all(isinstance(each, dict) for each in added):
        raise UserError("its added_tokens is not a list of tokens")
    if len(added) > MAX_VOCAB_SIZE:
        raise UserError(f"it has more than {MAX_VOCAB_SIZE:,} added tokens")
    _check_tokens(each.get("content") for each in added)


def parts_of(part: Any, kind: str, depth: int = 0) -> Iterator[dict[str, Any]]:
    """The part, or the parts of a `Sequence`. Raises UserError if a type is not allowed."""
    if part is None and not depth:
        return
    allowed = PARTS[kind]
    if not isinstance(part, dict) or part.get("type") not in allowed or depth > MAX_PARTS:
        name = part.get("type") if isinstance(part, dict) else part
        raise UserError(
            f"its {kind} has the type {str(name)[:80]}; allowed are {', '.join(sorted(allowed))}"
        )
    if part["type"] != "Sequence":
        yield part
        return
    items = part.get(ITEMS[kind])
    if not isinstance(items, list):
        raise UserError(f"its {kind} is a Sequence without a list")
    for item in items:
        yield from parts_of(item, kind, depth + 1)


def _check_part(part: dict[str, Any], kind: str) -> None:
    match part["type"]:
        case "Split":
            _check_pattern(part.get("pattern"), kind)
        case "Replace":
            length = _check_pattern(part.get("pattern"), kind)
            written = part.get("content")
            if not isinstance(written, str) or len(written) > length:
                raise UserError(f"its {kind} has a Replace that makes the text longer")
        case "Prepend":
            if not isinstance(part.get("prepend"), str) or len(part["prepend"]) > MAX_REPLACEMENT:
                raise UserError(f"its {kind} has a Prepend that is not a short text")
        case "Strip" if part.get("stop"):  # the library crashes if a text is shorter
            raise UserError(
                f"its {kind} has a Strip with stop={str(part['stop'])[:80]}: set it to 0"
            )
        case "Precompiled":
            _check_precompiled(part.get("precompiled_charsmap"))


def _check_pattern(pattern: Any, kind: str) -> int:
    """The minimum number of characters that a pattern matches. Raises UserError if it is a regular
    expression that is not in PATTERNS."""
    match pattern:
        case {"String": str(text)} if text and len(pattern) == 1:
            return len(text)
        case {"Regex": str(text)} if text in PATTERNS and len(pattern) == 1:
            return 1
    raise UserError(
        f"its {kind} has the pattern {str(pattern)[:120]}, which is not the pattern of a tokenizer "
        "that headscope knows: matching an unknown pattern could take forever"
    )


def _check_precompiled(text: Any) -> None:
    """Checks the table of SentencePiece. It has the size of a trie, the trie, and the texts that it
    writes, each ending in a NUL."""
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (ValueError, binascii.Error):
        data = b""
    size = int.from_bytes(data[:4], "little")
    texts = data[4 + size :]
    if len(data) < 4 or size % 4 or 4 + size > len(data):
        raise UserError("its normalizer Precompiled has no valid table")
    if max(map(len, texts.split(b"\0"))) > MAX_REPLACEMENT:
        raise UserError("its normalizer Precompiled makes the text much longer")


def _check_model(model: Any) -> None:
    kind = model.get("type") if isinstance(model, dict) else None
    if kind not in PARTS["model"]:
        raise UserError(
            f"its model has the type {str(kind)[:80]}; allowed are "
            f"{', '.join(sorted(PARTS['model']))}"
        )
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, list if kind == "Unigram" else dict) or not vocabulary:
        raise UserError("its model has no vocabulary")
    if len(vocabulary) > MAX_VOCAB_SIZE:
        raise UserError(f"it has more than {MAX_VOCAB_SIZE:,} tokens")
    if kind == "Unigram":
        if not all(isinstance(each, list) and len(each) == 2 for each in vocabulary):
            raise UserError("its model has no list of tokens with scores")
        _check_tokens(token for token, _ in vocabulary)
    else:
        _check_tokens(vocabulary)
        numbers = dict(vocabulary).values()
        if not all(type(each) is int and 0 <= each < MAX_VOCAB_SIZE for each in numbers):
            raise UserError(f"its model has a token that is not numbered below {MAX_VOCAB_SIZE:,}")
    prefix, suffix = (
        model.get(key) or "" for key in ("continuing_subword_prefix", "end_of_word_suffix")
    )
    if not all(isinstance(text, str) and len(text) <= MAX_REPLACEMENT for text in (prefix, suffix)):
        raise UserError("its model has a prefix or suffix that is not a short text")
    if kind == "BPE" and prefix:  # the library crashes if a part of a merge has no such prefix
        raise UserError(f"its model has the type BPE with continuing_subword_prefix={prefix!r}")
    if model.get("dropout"):
        raise UserError(f"its model has dropout={str(model['dropout'])[:80]}: set it to null")
    longest = model.get("max_input_chars_per_word", 0)
    if type(longest) is not int or not 0 <= longest <= MAX_WORD:
        raise UserError(f"its model has max_input_chars_per_word above {MAX_WORD}")


def _check_tokens(tokens: Any) -> None:
    for token in tokens:
        if not isinstance(token, str) or len(token) > MAX_TOKEN:
            raise UserError(f"it has a token that is not a text of at most {MAX_TOKEN} characters")
