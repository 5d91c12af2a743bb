"""Reads the tokenizer in the folder of a Hugging Face model, which may come from a stranger.

Only files in the folder are read, as JSON or as lines of text. Code in the folder is never run.
"""

import json
from pathlib import Path
from typing import Any

from headscope.data.base_tokenizer import END_OF_TEXT, Tokenizer
from headscope.data.bpe import byte_symbols
from headscope.data.gpt2 import is_gpt2
from headscope.data.merges import merges_of_ranks
from headscope.data.tokenizer import are_ranks, tiktoken_tokenizer, with_vocab_size
from headscope.data.tokenizer_json import parts_of
from headscope.data.tokenizers_tokenizer import TokenizersTokenizer
from headscope.errors import UserError
from headscope.files import MAX_JSON_BYTES, parse_json

SPECIAL_NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The special tokens of BERT's tokenizer."""

END_NAMES = (END_OF_TEXT, "</s>", "<eos>", "[SEP]")
"""Names of end-of-text tokens, for folders whose files do not name one."""


def read_tokenizer(folder: Path, vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer in a Hugging Face folder: its `tokenizer.json`, or `vocab.json` with
    `merges.txt` (GPT-2), or `vocab.txt` (BERT). It gives the same tokens as the tokenizer of
    `transformers` that adds no special tokens, and with `split_special_tokens=True`.

    `vocab_size` is the number of rows of the model's embedding, if it has more rows than the
    tokenizer has tokens. The end-of-text token is the `eos` token that config.json,
    generation_config.json, tokenizer_config.json or special_tokens_map.json name, in this order, or
    else the `sep` token.

    Raises UserError if there is no tokenizer, or if a file is damaged, too large or not allowed.
    """
    settings = read_object(folder, "tokenizer_config.json")
    content = _content(folder, settings)
    imported = TokenizersTokenizer(json.dumps(content, ensure_ascii=False))
    imported.end_of_text = _end_of_text(folder, imported.ids)
    tokenizer = _as_tiktoken(content, imported.end_of_text) or imported
    return tokenizer if vocab_size is None else with_vocab_size(tokenizer, vocab_size)


# --- files ---


def file_in(folder: Path, name: str) -> Path | None:
    """The file `name` in the folder, or None if it does not exist. Raises UserError if it is a link
    to a file outside the folder, or not a regular file. In the cache of the hub, the files in
    <model>/snapshots/<revision>/ are links to files in <model>/blobs/."""
    path = folder / name
    if not path.exists() and not path.is_symlink():
        return None
    try:
        here, target = folder.resolve(), path.resolve()
    except (OSError, RuntimeError):  # RuntimeError: Python 3.12 and older
        raise UserError(f"{path} is a link that leads to itself") from None
    in_cache = here.parent.name == "snapshots" and target.parent == here.parents[1] / "blobs"
    if not target.is_relative_to(here) and not in_cache:
        raise UserError(f"{path} is a link to a file outside the folder: copy that file there")
    if not path.is_file():
        raise UserError(f"{path} is not a regular file")
    return path


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """The content of a JSON file in the folder, or an empty dictionary if the file does not exist.
    Raises UserError if it is damaged, too large or not an object."""
    path = file_in(folder, name)
    if path is None:
        return {}
    try:
        content = parse_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object")
    return content


def _lines(path: Path) -> list[str]:
    """The lines of a text file, without their line ends."""
    if path.stat().st_size > MAX_JSON_BYTES:
        raise UserError(f"{path} has more than {MAX_JSON_BYTES:,} bytes")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return text.removesuffix("\n").split("\n")


# --- the content of tokenizer.json ---


def _content(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The content of the folder's tokenizer.json, or what it would be for the older files."""
    content = read_object(folder, "tokenizer.json")
    if content:
        _add_type(content.get("model"))
    elif (words := file_in(folder, "vocab.json")) and (pairs := file_in(folder, "merges.txt")):
        content = _gpt2_content(read_object(folder, words.name), _lines(pairs))
    elif words := file_in(folder, "vocab.txt"):
        content = _bert_content(_lines(words))
    else:
        raise UserError(
            f"{folder} has no tokenizer.json, no vocab.json with merges.txt and no vocab.txt: "
            "write a tokenizer.json with AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder) of transformers"
        )
    _apply_settings(content, settings)
    return content


def _add_type(model: Any) -> None:
    """Old versions of the library did not write the type of the model."""
    if isinstance(model, dict) and "type" not in model:
        kinds = {"merges": "BPE", "max_input_chars_per_word": "WordPiece", "unk_id": "Unigram"}
        model["type"] = next((kind for key, kind in kinds.items() if key in model), "WordLevel")


def _gpt2_content(vocabulary: dict[str, Any], lines: list[str]) -> dict[str, Any]:
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    added = [_special(END_OF_TEXT, vocabulary[END_OF_TEXT])] if END_OF_TEXT in vocabulary else []
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def _bert_content(lines: list[str]) -> dict[str, Any]:
    vocabulary = {line: number for number, line in enumerate(lines)}
    return {
        "version": "1.0",
        "added_tokens": [
            _special(name, vocabulary[name])
            for name in sorted(SPECIAL_NAMES, key=lambda name: vocabulary.get(name, 0))
            if name in vocabulary
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def _special(name: str, number: Any) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, **flags, "special": True}


def _apply_settings(content: dict[str, Any], settings: dict[str, Any]) -> None:
    """Applies the settings in tokenizer_config.json with which transformers overrides the parts of
    BERT's and GPT-2's tokenizers. For tokenizers of other classes, it ignores those of BERT."""
    is_bert = "Bert" in str(settings.get("tokenizer_class", "Bert"))
    keys = {
        "do_lower_case": "lowercase",
        "tokenize_chinese_chars": "handle_chinese_chars",
        "strip_accents": "strip_accents",
    }
    for part in parts_of(content.get("normalizer"), "normalizer"):
        if is_bert and part["type"] == "BertNormalizer":
            part |= {ours: settings[key] for key, ours in keys.items() if _is_bool(settings, key)}
    first = content.get("pre_tokenizer")
    byte_level = isinstance(first, dict) and first.get("type") == "ByteLevel"
    if byte_level and _is_bool(settings, "add_prefix_space"):
        content["pre_tokenizer"] |= {"add_prefix_space": settings["add_prefix_space"]}


def _is_bool(settings: dict[str, Any], key: str) -> bool:
    return type(settings.get(key)) is bool


# --- the end-of-text token ---


def _end_of_text(folder: Path, ids: dict[str, int]) -> int | None:
    """The id of the end-of-text token, or None if there is none. `ids` maps the name of each token
    to its id."""
    known = set(ids.values())
    for file in ("config.json", "generation_config.json"):
        found = read_object(folder, file).get("eos_token_id")
        for number in found if isinstance(found, list) else [found]:
            if type(number) is int and number in known:
                return number
    files = ("tokenizer_config.json", "special_tokens_map.json")
    objects = [read_object(folder, file) for file in files]
    for key in ("eos_token", "sep_token"):
        for settings in objects:
            found = settings.get(key)
            name = found.get("content") if isinstance(found, dict) else found
            if isinstance(name, str) and name in ids:
                return ids[name]
    return next((ids[name] for name in END_NAMES if name in ids), None)


# --- tiktoken ---


def _as_tiktoken(content: dict[str, Any], end_of_text: int | None) -> Tokenizer | None:
    """The tokenizer as a `TiktokenTokenizer`, or None unless tiktoken gives the same tokens: a
    byte-level BPE with GPT-2's pattern, with <|endoftext|> as its last and only special token, and
    with the merges that follow from its ranks."""
    model = content["model"]
    plain = (
        model["type"] == "BPE"
        and not any(model.get(key) for key in ("byte_fallback", "ignore_merges"))
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and content.get("normalizer") is None
        and _is_plain_byte_level(content.get("pre_tokenizer"))
        and (content.get("decoder") or {}).get("type") == "ByteLevel"
    )
    names = dict(model["vocab"]) if plain else {}
    added = [each["content"] for each in content.get("added_tokens", [])]
    if names.setdefault(END_OF_TEXT, len(names)) != end_of_text or added not in ([], [END_OF_TEXT]):
        return None
    ranks = _ranks({name: number for name, number in names.items() if name != END_OF_TEXT})
    if ranks is None or end_of_text != len(ranks):
        return None
    symbols = byte_symbols()
    merges = [
        tuple("".join(symbols[value] for value in part) for part in pair)
        for pair in merges_of_ranks(ranks) or []
    ]
    if merges != [tuple(_pair(merge)) for merge in model.get("merges", [])]:
        return None
    return tiktoken_tokenizer("gpt2" if is_gpt2(ranks) else "bpe", ranks)


def _is_plain_byte_level(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.get("type") == "ByteLevel"
        and part.get("add_prefix_space") is False
        and part.get("use_regex", True) is True
    )


def _pair(merge: Any) -> list[Any]:
    """The two parts of a merge, which old versions of the library wrote as one text."""
    if isinstance(merge, str):
        return merge.split(" ")
    return merge if isinstance(merge, list) else []


def _ranks(names: dict[str, int]) -> dict[bytes, int] | None:
    """The ranks of tokens that are written in the symbols of byte-level BPE. None if tiktoken
    cannot use them."""
    byte_of = {symbol: value for value, symbol in enumerate(byte_symbols())}
    if any(symbol not in byte_of for name in names for symbol in name):
        return None
    ranks = {
        bytes(byte_of[symbol] for symbol in name): number
        for name, number in sorted(names.items(), key=lambda item: item[1])
    }
    return ranks if are_ranks(ranks) else None
