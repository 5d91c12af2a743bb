"""headscope: train a small GPT and see what its attention heads do."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headscope.analysis.head_types import Thresholds as Thresholds
    from headscope.cli.python import TrainResult as TrainResult
    from headscope.cli.python import train as train
    from headscope.conversion.load import load as load
    from headscope.data.corpus import Corpus as Corpus
    from headscope.data.corpus import Document as Document
    from headscope.data.module import TokenDataModule as TokenDataModule
    from headscope.data.store import TokenStore as TokenStore
    from headscope.data.store import open_store as open_store
    from headscope.data.store import prepare_store as prepare_store
    from headscope.data.tokenizer import Tokenizer as Tokenizer
    from headscope.errors import UserError as UserError
    from headscope.nn import *  # noqa: F403
    from headscope.show.report.roles import align as align
    from headscope.trained import TrainedModel as TrainedModel
    from headscope.trained.history import history as history
    from headscope.training.callbacks.attention import AttentionLog as AttentionLog
    from headscope.training.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from headscope.training.callbacks.heads import HeadWatch as HeadWatch
    from headscope.training.callbacks.hold import Hold as Hold
    from headscope.training.callbacks.progress import ProgressReport as ProgressReport
    from headscope.training.callbacks.samples import Samples as Samples
    from headscope.training.callbacks.saving import CheckpointSaver as CheckpointSaver
    from headscope.training.module import LanguageModel as LanguageModel
    from headscope.training.optimizer import adamw as adamw
    from headscope.training.optimizer import muon as muon
    from headscope.training.schedule import Schedule as Schedule
    from headscope.training.schedule import WarmupCosine as WarmupCosine
    from headscope.training.schedule import WarmupLinear as WarmupLinear

__version__ = "0.1.0"

MODULES = {
    "cli.python": "TrainResult train",
    "errors": "UserError",
    "nn": "GPT SingleHead MultiHead MultiQuery GroupedQuery MultiHeadAttention StackedHeads "
    "AdditiveAttention scaled_dot_product Position NoPosition Learned Sinusoidal Rotary Alibi "
    "Relative HeadBias Index Normalized Digits LayerNorm RMSNorm NoNorm Gelu GeluTanh ReluSquared "
    "FeedForward SwiGLU no_feed_forward Block ParallelBlock",
    "data.tokenizer": "Tokenizer bpe byte char gpt2",
    "data.corpus": "Corpus Document Sotu TinyShakespeare",
    "data.own_files": "TextFiles",
    "data.hub": "Hub",
    "data.generated": "Repeats Modular Names",
    "analysis.head_types": "Thresholds",
    "trained": "TrainedModel",
    "show.report.roles": "align",
    "trained.history": "history",
    "conversion.load": "load",
    "training.optimizer": "adamw muon",
    "training.schedule": "Schedule WarmupCosine WarmupLinear",
    "training.module": "LanguageModel",
    "training.callbacks.attention": "AttentionLog",
    "training.callbacks.early_stopping": "EarlyStopping",
    "training.callbacks.heads": "HeadWatch",
    "training.callbacks.hold": "Hold",
    "training.callbacks.progress": "ProgressReport",
    "training.callbacks.samples": "Samples",
    "training.callbacks.saving": "CheckpointSaver",
    "data.module": "TokenDataModule",
    "data.store": "TokenStore open_store prepare_store",
}
"""The public names, which conf/ uses as targets, and their modules. A module is imported when one
of its names is used, because importing torch and Hydra takes seconds."""

NAMES = {name: module for module, names in MODULES.items() for name in names.split()}

__all__ = [*NAMES]


def __getattr__(name: str) -> Any:
    if name == "nn":
        return import_module("headscope.nn")
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"headscope.{NAMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
