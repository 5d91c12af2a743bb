"""The registry of conf/tokenizer and conf/data: the parts, and the types of keys."""

from dataclasses import dataclass
from typing import ClassVar

from headscope.config.parts import Part, part


class TokenizerConfig(Part):
    pass


@dataclass(kw_only=True)
class CorpusConfig(Part):
    _partial_: ClassVar[bool] = False  # type: ignore[misc]  # called at once


TOKENIZERS = {
    "bpe": part(
        TokenizerConfig,
        "headscope.data.tokenizer.bpe",
        vocab_size=int,
        sample_megabytes=(float, 100.0),
    ),
    "byte": part(TokenizerConfig, "headscope.data.tokenizer.byte"),
    "char": part(TokenizerConfig, "headscope.data.tokenizer.char"),
    "gpt2": part(TokenizerConfig, "headscope.data.tokenizer.gpt2", path=str | None),
}

CORPORA = {
    "sotu": part(CorpusConfig, "headscope.data.built_in.Sotu"),
    "tinyshakespeare": part(
        CorpusConfig, "headscope.data.built_in.TinyShakespeare", path=str | None
    ),
    "text": part(
        CorpusConfig,
        "headscope.data.own_files.TextFiles",
        path=str,
        column=(str, "text"),
        template=(str | None, None),
        deduplicate=(bool, False),
    ),
    "hub": part(
        CorpusConfig,
        "headscope.data.hub.Hub",
        name=str,
        subset=str | None,
        column=str,
        template=(str | None, None),
        train_split=str,
        validation_split=str | None,
        revision=str | None,
        streaming=(bool, False),
        max_tokens=(int | None, None),
        deduplicate=(bool, False),
    ),
    "repeats": part(
        CorpusConfig,
        "headscope.data.repeats.Repeats",
        alphabet=int,
        min_length=int,
        max_length=int,
        min_copies=int,
        max_copies=int,
        characters=int,
        seed=int,
    ),
    "modular": part(CorpusConfig, "headscope.data.tasks.Modular", prime=int, share=float, seed=int),
    "names": part(CorpusConfig, "headscope.data.tasks.Names", names=int, seed=int),
}

TextFilesConfig = CORPORA["text"]

# The tokenizer and the training text of an imported model cannot be chosen.
ImportedConfig = part(TokenizerConfig, "headscope.data.tokenizer.stored")
UnknownTextConfig = part(CorpusConfig, "headscope.data.corpus.unknown_text")

SCHEMAS: dict[str, dict[str, type]] = {"tokenizer": TOKENIZERS, "data": CORPORA}
