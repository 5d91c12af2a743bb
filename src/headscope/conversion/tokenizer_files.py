"""Writes a tokenizer as the files that `tokenizers` and `transformers` read, and reads such files.

The written files give the same tokens as headscope, with one difference: in a text, transformers
takes the name of a special token, such as <|endoftext|>, for the special token. To headscope, it is
ordinary text. `AutoTokenizer.from_pretrained(folder, split_special_tokens=True)` makes both equal.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from headscope.conversion.settings import SAFE, transformers_for
from headscope.data.bpe import byte_symbols
from headscope.data.ranks import SHA256, merges_of_ranks
from headscope.data.tokenizer import (
    END_OF_TEXT,
    UNKNOWN,
    CharTokenizer,
    TiktokenTokenizer,
    Tokenizer,
    with_vocab_size,
)
from headscope.data.tokenizers_tokenizer import TokenizersTokenizer, check_ids
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


def tokenizer_files(tokenizer: Tokenizer, **config: Any) -> dict[str, str]:
    """The names and contents of the files of a tokenizer: tokenizer.json, and tokenizer_config.json
    with the entries `config`. Raises UserError if the tokenizer cannot be written in this form."""
    if isinstance(tokenizer, TokenizersTokenizer):
        library = tokenizer.library
    elif isinstance(tokenizer, CharTokenizer):
        library = characters(tokenizer)
    else:
        assert isinstance(tokenizer, TiktokenTokenizer)
        library = byte_level(tokenizer)
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        # transformers 4 would also return token_type_ids, which no such model takes.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if tokenizer.end_of_text is not None:
        # A document begins with the token that ended the previous one. There is no pad token: if it
        # were this token too, fine-tuning would ignore it, and the model would not learn to stop.
        config["eos_token"] = library.id_to_token(tokenizer.end_of_text)
    if tokenizer.begin_token is not None:
        begin = config["bos_token"] = library.id_to_token(tokenizer.begin_token)
        if tokenizer.adds_begin and library.encode("a").ids[:1] != [tokenizer.begin_token]:
            library = Library.from_str(library.to_str())
            special = [(begin, tokenizer.begin_token)]
            library.post_processor = TemplateProcessing(f"{begin} $A", special_tokens=special)
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    if library.token_to_id(UNKNOWN) is not None:
        config["unk_token"] = UNKNOWN
    return {
        "tokenizer.json": library.to_str(),
        "tokenizer_config.json": json.dumps(config, indent=2),
    }


def byte_level(tokenizer: TiktokenTokenizer) -> Library:
    """A byte-level BPE, in which a printable character stands for each byte. The tokens of `byte`
    are single bytes, so it needs no pattern."""
    merges = merges_of_ranks(tokenizer.ranks)
    if merges is None:
        problem = "this tokenizer has a token that no pair of other tokens is merged to"
        raise UserError(f"{problem}, so it cannot be written as a tokenizer.json")
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
    special = [UNKNOWN, END_OF_TEXT] if tokenizer.special_tokens else []
    vocabulary = {name: number for number, name in enumerate([*tokenizer.alphabet, *special])}
    unknown = UNKNOWN if special else None
    made = Library(models.BPE(vocab=vocabulary, merges=[], unk_token=unknown))
    made.decoder = decoders.Fuse()
    made.add_special_tokens(special)
    return made


def read_tokenizer(folder: Path, *, rows: int | None = None) -> Tokenizer:
    """The tokenizer in a Hugging Face folder. It gives the same tokens as that of transformers
    which adds no special tokens, and with `split_special_tokens=True`. `rows` is the number of rows
    of the model's embedding, which may be larger than the number of tokens.

    Raises UserError if there is no tokenizer, or if the library tokenizers cannot express it.
    """
    from transformers import AutoTokenizer

    if not any((folder / name).exists() for name in FILES):
        raise UserError(f"{folder}: it has no tokenizer, none of {', '.join(FILES)}")
    with transformers_for(folder):
        theirs: Any = AutoTokenizer.from_pretrained(folder, **SAFE)
        wanted = theirs(PROBE, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        plain, begun = (theirs("a", add_special_tokens=on)["input_ids"] for on in (False, True))
    library, kind = getattr(theirs, "backend_tokenizer", None), type(theirs).__name__
    if library is None:
        raise UserError(f"{folder}: its tokenizer {kind} is not one of the library tokenizers")
    check_ids(library)
    begins, templates = begun != plain == begun[1 : len(plain) + 1], theirs.chat_template
    imported = TokenizersTokenizer(
        library.to_str(),
        end_of_text=end_of_text(folder, theirs, library.get_vocab()),
        begin_token=begun[0] if begins else theirs.bos_token_id,
        chat_template=templates.get("default") if isinstance(templates, dict) else templates,
    )
    tokenizer = (as_gpt2(imported) or imported).typed(begin=begins)
    if tokenizer.encode(PROBE).tolist() != wanted:
        raise UserError(f"{folder}: headscope encodes a text differently than its {kind}")
    return tokenizer if rows is None else with_vocab_size(tokenizer, rows)


def end_of_text(folder: Path, theirs: Any, ids: dict[str, int]) -> int | None:
    """The end-of-text token, or None: `eos` of config.json, of generation_config.json or of the
    tokenizer, in this order, or else its `sep`. `ids` maps the name of each token to its id."""
    named: list[Any] = []
    for file in (folder / "config.json", folder / "generation_config.json"):
        content = read_json(file)
        ends = content.get("eos_token_id") if isinstance(content, dict) else None
        named += ends if isinstance(ends, list) else [ends]
    named += [theirs.eos_token_id, theirs.sep_token_id, *(ids.get(name) for name in END_NAMES)]
    known = set(ids.values())
    return next((each for each in named if type(each) is int and each in known), None)


def as_gpt2(imported: TokenizersTokenizer) -> Tokenizer | None:
    """GPT-2's own tokenizer, if `imported` has its tokens, merges and pattern, or None."""
    content = json.loads(imported.json)
    merges = [*map(" ".join, content["model"].get("merges", []))]
    file = "\n".join(["#version: 0.2", *merges, ""])
    symbols = byte_symbols()
    names = [*sorted(symbols), *(merge.replace(" ", "") for merge in merges)]
    cut = content["pre_tokenizer"] or {"type": None}
    same = (
        hashlib.sha256(file.encode()).hexdigest() == SHA256["vocab.bpe"]
        and imported.names == [*names, END_OF_TEXT]
        and content["normalizer"] is None
        and (cut["type"], cut.get("add_prefix_space")) == ("ByteLevel", False)
        and cut.get("use_regex", True)
        and [each["content"] for each in content["added_tokens"]] == [END_OF_TEXT]
        and imported.chat_template is None
    )
    ranks = {bytes(map(symbols.index, name)): rank for rank, name in enumerate(names) if same}
    return TiktokenTokenizer("gpt2", ranks) if same else None
