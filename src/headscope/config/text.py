"""Schemas of conf/tokenizer and conf/data."""

from dataclasses import dataclass

from omegaconf import MISSING


@dataclass
class TokenizerConfig:
    _target_: str = MISSING
    _partial_: bool = True


@dataclass
class ByteConfig(TokenizerConfig):
    _target_: str = "headscope.data.tokenizer.byte"


@dataclass
class CharConfig(TokenizerConfig):
    _target_: str = "headscope.data.tokenizer.char"


@dataclass
class BpeConfig(TokenizerConfig):
    _target_: str = "headscope.data.tokenizer.bpe"
    vocab_size: int = MISSING
    sample_megabytes: float = 100.0


@dataclass
class Gpt2Config(TokenizerConfig):
    _target_: str = "headscope.data.tokenizer.gpt2"
    path: str | None = MISSING


@dataclass
class ImportedConfig(TokenizerConfig):
    """The tokenizer of an imported model. Only its checkpoint has it, so it cannot be chosen."""

    _target_: str = "headscope.data.tokenizer.stored"


@dataclass
class CorpusConfig:
    _target_: str = MISSING


@dataclass
class SotuConfig(CorpusConfig):
    _target_: str = "headscope.data.built_in.Sotu"


@dataclass
class TinyShakespeareConfig(CorpusConfig):
    _target_: str = "headscope.data.built_in.TinyShakespeare"
    path: str | None = MISSING


@dataclass
class TextFilesConfig(CorpusConfig):
    _target_: str = "headscope.data.own_files.TextFiles"
    path: str = MISSING
    # These keys, and those below with a value, are newer than some checkpoints.
    column: str = "text"
    template: str | None = None
    deduplicate: bool = False


@dataclass
class HubConfig(CorpusConfig):
    _target_: str = "headscope.data.hub.Hub"
    name: str = MISSING
    subset: str | None = MISSING
    column: str = MISSING
    template: str | None = None
    train_split: str = MISSING
    validation_split: str | None = MISSING
    revision: str | None = MISSING
    streaming: bool = False
    max_tokens: int | None = None
    deduplicate: bool = False


@dataclass
class RepeatsConfig(CorpusConfig):
    _target_: str = "headscope.data.repeats.Repeats"
    alphabet: int = MISSING
    min_length: int = MISSING
    max_length: int = MISSING
    min_copies: int = MISSING
    max_copies: int = MISSING
    characters: int = MISSING
    seed: int = MISSING


@dataclass
class UnknownTextConfig(CorpusConfig):
    """The training text of an imported model. It cannot be chosen."""

    _target_: str = "headscope.data.corpus.unknown_text"


SCHEMAS: dict[str, dict[str, type]] = {
    "tokenizer": {
        "bpe": BpeConfig,
        "byte": ByteConfig,
        "char": CharConfig,
        "gpt2": Gpt2Config,
    },
    "data": {
        "sotu": SotuConfig,
        "tinyshakespeare": TinyShakespeareConfig,
        "text": TextFilesConfig,
        "hub": HubConfig,
        "repeats": RepeatsConfig,
    },
}
