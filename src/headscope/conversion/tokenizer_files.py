"""Writes a tokenizer as the files that `tokenizers` and `transformers` read.

The files give the same tokens as headscope, with one difference: in a text, transformers takes the
name of a special token, such as <|endoftext|>, for the special token. To headscope, it is ordinary
text. `AutoTokenizer.from_pretrained(folder, split_special_tokens=True)` makes both equal.
"""

import json
from typing import Any

from headscope.data.base_tokenizer import END_OF_TEXT, Tokenizer
from headscope.data.bpe import byte_symbols
from headscope.data.char_tokenizer import CharTokenizer
from headscope.data.merges import merges_of_ranks
from headscope.data.tokenizer import TiktokenTokenizer
from headscope.data.tokenizers_tokenizer import TokenizersTokenizer
from headscope.errors import UserError

CONFIG = "tokenizer_config.json"
"""The name of the file with the settings of the tokenizer."""

UNKNOWN = "<|unknown|>"
"""The name of the token for unknown characters."""


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, str]:
    """The names and contents of the files of a tokenizer: tokenizer.json and tokenizer_config.json.
    Raises UserError if the tokenizer cannot be written in this form."""
    if isinstance(tokenizer, TokenizersTokenizer):
        return _files(tokenizer.json, tokenizer, tokenizer.names)
    if isinstance(tokenizer, CharTokenizer):
        content = _char_content(tokenizer)
    else:
        assert isinstance(tokenizer, TiktokenTokenizer)
        content = _byte_level_content(tokenizer)
    names = [*content["model"]["vocab"]]  # in the order of their ids
    return _files(json.dumps(content, ensure_ascii=False), tokenizer, names)


def _files(content: str, tokenizer: Tokenizer, names: list[str]) -> dict[str, str]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        # transformers 4 would also return token_type_ids, which no such model takes.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if tokenizer.end_of_text is not None:
        # A document begins with the token that ended the previous one. The same token fills up
        # shorter texts of a batch, as config.json says.
        end = names[tokenizer.end_of_text]
        config |= {"bos_token": end, "eos_token": end, "pad_token": end}
    if UNKNOWN in names:
        config["unk_token"] = UNKNOWN
    return {"tokenizer.json": content, CONFIG: json.dumps(config, indent=2)}


def _byte_level_content(tokenizer: TiktokenTokenizer) -> dict[str, Any]:
    """A byte-level BPE, in which a printable character stands for each byte. The tokens of `byte`
    are single bytes, so it needs no pattern."""
    merges = merges_of_ranks(tokenizer.ranks)
    if merges is None:
        raise UserError(
            "this tokenizer has a token that no pair of other tokens is merged to, so it cannot be "
            "written as a tokenizer.json"
        )
    symbols = byte_symbols()

    def in_symbols(token: bytes) -> str:
        return "".join(symbols[value] for value in token)

    vocabulary = {
        in_symbols(token): rank
        for token, rank in sorted(tokenizer.ranks.items(), key=lambda item: item[1])
    }
    vocabulary[END_OF_TEXT] = tokenizer.end_of_text
    flags = {"add_prefix_space": False, "trim_offsets": True, "use_regex": tokenizer.name != "byte"}
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocabulary,
        "merges": [f"{in_symbols(left)} {in_symbols(right)}" for left, right in merges],
    }
    return _content(
        model,
        special={END_OF_TEXT: tokenizer.end_of_text},
        pre_tokenizer={"type": "ByteLevel", **flags},
        decoder={"type": "ByteLevel", **flags},
    )


def _char_content(tokenizer: CharTokenizer) -> dict[str, Any]:
    """A BPE without merges, which divides a text into its characters."""
    special: dict[str, int] = {}
    if tokenizer.special_tokens:
        special = {UNKNOWN: tokenizer.unknown, END_OF_TEXT: tokenizer.unknown + 1}
    alphabet = {character: number for number, character in enumerate(tokenizer.alphabet)}
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": UNKNOWN if special else None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": alphabet | special,
        "merges": [],
    }
    return _content(model, special=special, pre_tokenizer=None, decoder={"type": "Fuse"})


def _content(
    model: dict[str, Any], *, special: dict[str, int], pre_tokenizer: Any, decoder: Any
) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": name, **flags, "special": True}
            for name, number in special.items()
        ],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
