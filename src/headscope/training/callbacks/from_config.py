"""Creates the optional callbacks of a training run from its configuration."""

from pathlib import Path

from lightning.pytorch import Callback

from headscope.analysis.head_types import Thresholds
from headscope.analysis.report.inputs import classify_vocabulary
from headscope.config.training import TrainConfig
from headscope.data.batches import first_passage, spread_windows
from headscope.data.labels import token_labels
from headscope.data.store import TokenStore
from headscope.errors import UserError
from headscope.training.callbacks.attention_maps import AttentionMaps
from headscope.training.callbacks.early_stopping import ResumableEarlyStopping
from headscope.training.callbacks.head_figures import HeadFigures
from headscope.training.callbacks.samples import Samples
from headscope.training.callbacks.snapshot_saver import SnapshotSaver


def optional_callbacks(
    config: TrainConfig, store: TokenStore, samples: Samples, folder: Path
) -> list[Callback]:
    """The callbacks that `config.callbacks` turns on, for the run in `folder`."""
    settings, max_steps = config.callbacks, config.trainer.max_steps
    callbacks: list[Callback] = []
    if settings.early_stopping_patience is not None:
        callbacks.append(ResumableEarlyStopping(patience=settings.early_stopping_patience))
    if settings.attention.images:
        length = min(settings.attention.tokens, config.model.block_size)
        tokens = probe_tokens(store, settings.attention.text, length)
        maps = AttentionMaps(
            tokens=tokens,
            labels=token_labels(map(store.tokenizer.token_bytes, tokens)),
            heads=config.model.heads,
            images=settings.attention.images,
            max_steps=max_steps,
        )
        callbacks.append(maps)
    if settings.heads.every_steps:
        windows = spread_windows(
            store.validation, windows=settings.heads.windows, length=config.model.block_size
        )
        figures = HeadFigures(
            windows=windows,
            every_steps=settings.heads.every_steps,
            images=settings.heads.images,
            max_steps=max_steps,
            kinds=classify_vocabulary(store.tokenizer, store.validation),
            thresholds=Thresholds(**vars(settings.heads.thresholds)),
        )
        callbacks.append(figures)
    if settings.samples.max_new_tokens:
        callbacks.append(samples)
    if settings.keep_steps:
        callbacks.append(SnapshotSaver(folder=folder / "checkpoints", steps=settings.keep_steps))
    return callbacks


def probe_tokens(store: TokenStore, text: str | None, length: int) -> list[int]:
    """The tokens for the attention maps. These tokens come from `text`, or from the start of the
    validation split if `text` is None."""
    if text is not None:
        tokens = store.tokenizer.encode_prompt(text)[:length]
        if not tokens:
            raise UserError(
                "callbacks.attention.text= is empty: give a text, or null for validation text"
            )
        return tokens
    return first_passage(store.validation, length)
