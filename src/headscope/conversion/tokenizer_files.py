"""Writes a tokenizer as the files that `tokenizers` and `transformers` read.

The files give the same tokens as headscope, with one difference: in a text, transformers takes the
name of a special token, such as <|endoftext|>, for the special token. To headscope, it is ordinary
text. `AutoTokenizer.from_pretrained(folder, split_special_tokens=True)` makes both equal.
"""

import json
from typing import Any

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from headscope.data.bpe import byte_symbols
from headscope.data.ranks import merges_of_ranks
from headscope.data.tokenizer import END_OF_TEXT, CharTokenizer, TiktokenTokenizer, Tokenizer
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
        library = tokenizer.library
    elif isinstance(tokenizer, CharTokenizer):
        library = characters(tokenizer)
    else:
        assert isinstance(tokenizer, TiktokenTokenizer)
        library = byte_level(tokenizer)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        # transformers 4 would also return token_type_ids, which no such model takes.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if tokenizer.end_of_text is not None:
        # A document begins with the token that ended the previous one. The same token fills up
        # shorter texts of a batch, as config.json says.
        end = library.id_to_token(tokenizer.end_of_text)
        config |= {"bos_token": end, "eos_token": end, "pad_token": end}
    if library.token_to_id(UNKNOWN) is not None:
        config["unk_token"] = UNKNOWN
    return {"tokenizer.json": library.to_str(), CONFIG: json.dumps(config, indent=2)}


def byte_level(tokenizer: TiktokenTokenizer) -> Library:
    """A byte-level BPE, in which a printable character stands for each byte. The tokens of `byte`
    are single bytes, so it needs no pattern."""
    merges = merges_of_ranks(tokenizer.ranks)
    if merges is None:
        raise UserError(
            "this tokenizer has a token that no pair of other tokens is merged to, so it cannot be "
            "written as a tokenizer.json"
        )
    symbols = byte_symbols()

    def written(token: bytes) -> str:
        return "".join(symbols[value] for value in token)

    vocabulary = {written(token): rank for token, rank in tokenizer.ranks.items()}
    vocabulary[END_OF_TEXT] = tokenizer.end_of_text
    pairs = [(written(left), written(right)) for left, right in merges]
    made = Library(models.BPE(vocab=vocabulary, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=tokenizer.name != "byte"
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END_OF_TEXT])
    return made


def characters(tokenizer: CharTokenizer) -> Library:
    """A BPE without merges, which divides a text into its characters."""
    names = [*tokenizer.alphabet, *([UNKNOWN, END_OF_TEXT] if tokenizer.special_tokens else [])]
    vocabulary = {name: number for number, name in enumerate(names)}
    unknown = UNKNOWN if tokenizer.special_tokens else None
    made = Library(models.BPE(vocab=vocabulary, merges=[], unk_token=unknown))
    made.decoder = decoders.Fuse()
    made.add_special_tokens([name for name in (UNKNOWN, END_OF_TEXT) if name in vocabulary])
    return made
