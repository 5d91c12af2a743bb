"""Reads the tokenizer in a Hugging Face folder with transformers."""

import hashlib
import json
from pathlib import Path
from typing import Any

from headscope.conversion.settings import SAFE, transformers_for
from headscope.data.base_tokenizer import END_OF_TEXT, Tokenizer
from headscope.data.bpe import byte_symbols
from headscope.data.gpt2 import SHA256, is_gpt2
from headscope.data.tokenizer import tiktoken_tokenizer, with_vocab_size
from headscope.data.tokenizers_tokenizer import TokenizersTokenizer
from headscope.errors import UserError
from headscope.files import read_json

FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
"""A folder without any of these files has no tokenizer. transformers 5 would make an empty one."""

END_NAMES = (END_OF_TEXT, "</s>", "<eos>", "[SEP]")
"""Names of end-of-text tokens, for folders whose files do not name one."""

PROBE = (
    "My fellow citizens: don't look back.  Élan, naïve\n\n\tx = 12345; a_b != 3.14 今天天气很好，"
    "مرحبا 🦜👩‍🚀 <s></s><|endoftext|>[SEP] <unk> HELLO ﬁne ½ \u200b\u00a0end "
)
"""A text with many kinds of characters, which our tokenizer must encode like transformers."""


def read_tokenizer(folder: Path, *, rows: int | None = None) -> Tokenizer:
    """The tokenizer in a Hugging Face folder. It gives the same tokens as that of transformers
    which adds no special tokens, and with `split_special_tokens=True`.

    `rows` is the number of rows of the model's embedding, which may be larger than the number of
    tokens. The end-of-text token is the `eos` token of config.json, generation_config.json or the
    tokenizer, in this order, or else the `sep` token.

    Raises UserError if there is no tokenizer, or if it cannot be expressed by the library
    tokenizers.
    """
    from transformers import AutoTokenizer

    if not any((folder / name).exists() for name in FILES):
        raise UserError(f"{folder}: it has no tokenizer, none of {', '.join(FILES)}")
    with transformers_for(folder):
        theirs: Any = AutoTokenizer.from_pretrained(folder, **SAFE)
        wanted = theirs(PROBE, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    library = getattr(theirs, "backend_tokenizer", None)
    if library is None:
        raise UserError(
            f"{folder}: its tokenizer {type(theirs).__name__} is not one of the library tokenizers"
        )
    imported = TokenizersTokenizer(library.to_str())
    imported.end_of_text = end_of_text(folder, theirs, imported.ids)
    tokenizer = as_gpt2(imported) or imported
    if tokenizer.encode(PROBE).tolist() != wanted:
        raise UserError(
            f"{folder}: headscope encodes a text differently than its {type(theirs).__name__}"
        )
    return tokenizer if rows is None else with_vocab_size(tokenizer, rows)


def end_of_text(folder: Path, theirs: Any, ids: dict[str, int]) -> int | None:
    """The id of the end-of-text token, or None. `ids` maps the name of each token to its id."""
    named: list[Any] = []
    for file in (folder / "config.json", folder / "generation_config.json"):
        content = read_json(file)
        found = content.get("eos_token_id") if isinstance(content, dict) else None
        named += found if isinstance(found, list) else [found]
    named += [theirs.eos_token_id, theirs.sep_token_id, *(ids.get(name) for name in END_NAMES)]
    known = set(ids.values())
    return next((each for each in named if type(each) is int and each in known), None)


def as_gpt2(imported: TokenizersTokenizer) -> Tokenizer | None:
    """GPT-2's own tokenizer, if `imported` has its tokens, merges and pattern, or None."""
    content = json.loads(imported.json)
    model, cut = content["model"], content.get("pre_tokenizer") or {}
    added = {each["content"] for each in content.get("added_tokens", [])}
    names = {name: number for name, number in imported.ids.items() if name != END_OF_TEXT}
    byte_of = {symbol: value for value, symbol in enumerate(byte_symbols())}
    if (
        model["type"] != "BPE"
        or content.get("normalizer") is not None
        or (cut.get("type"), cut.get("add_prefix_space")) != ("ByteLevel", False)
        or not cut.get("use_regex", True)
        or added != {END_OF_TEXT}
        or not byte_of.keys() >= set("".join(names))
    ):
        return None
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    file = "\n".join(["#version: 0.2", *merges, ""])
    ranks = {
        bytes(byte_of[symbol] for symbol in name): number
        for name, number in sorted(names.items(), key=lambda item: item[1])
    }
    same = hashlib.sha256(file.encode()).hexdigest() == SHA256["vocab.bpe"] and is_gpt2(ranks)
    return tiktoken_tokenizer("gpt2", ranks) if same else None
