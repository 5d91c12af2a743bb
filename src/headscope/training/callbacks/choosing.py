"""What watches a run, built from its configuration."""

from pathlib import Path

from lightning.pytorch import Callback

from headscope.analysis.head_types import Thresholds
from headscope.analysis.report.inputs import classify_vocabulary
from headscope.config.training import TrainConfig
from headscope.data.batches import first_passage, spread_windows
from headscope.data.labels import token_labels
from headscope.data.store import TokenStore
from headscope.errors import UserError
from headscope.training.callbacks.attention import AttentionMaps
from headscope.training.callbacks.heads import HeadFigures
from headscope.training.callbacks.keeping import SnapshotSaver
from headscope.training.callbacks.samples import Samples
from headscope.training.callbacks.stopping import Patience


def watchers(
    config: TrainConfig, store: TokenStore, samples: Samples, folder: Path
) -> list[Callback]:
    """What the configuration switches on, of the run in `folder`."""
    callbacks, max_steps = config.callbacks, config.trainer.max_steps
    found: list[Callback] = []
    if callbacks.early_stopping_patience is not None:
        found.append(Patience(patience=callbacks.early_stopping_patience))
    if callbacks.attention.images:
        length = min(callbacks.attention.tokens, config.model.block_size)
        tokens = probe(store, callbacks.attention.text, length)
        maps = AttentionMaps(
            tokens=tokens,
            labels=token_labels(map(store.tokenizer.token_bytes, tokens)),
            heads=config.model.heads,
            images=callbacks.attention.images,
            max_steps=max_steps,
        )
        found.append(maps)
    if callbacks.heads.every_steps:
        windows = spread_windows(
            store.validation, windows=callbacks.heads.windows, length=config.model.block_size
        )
        figures = HeadFigures(
            windows=windows,
            every_steps=callbacks.heads.every_steps,
            images=callbacks.heads.images,
            max_steps=max_steps,
            kinds=classify_vocabulary(store.tokenizer, store.validation),
            thresholds=Thresholds(**vars(callbacks.heads.thresholds)),
        )
        found.append(figures)
    if callbacks.samples.max_new_tokens:
        found.append(samples)
    if callbacks.keep_steps:
        found.append(SnapshotSaver(folder=folder / "checkpoints", steps=callbacks.keep_steps))
    return found


def probe(store: TokenStore, text: str | None, length: int) -> list[int]:
    """The tokens whose attention is watched: those of `text`, or the first validation text's."""
    if text is not None:
        tokens = store.tokenizer.encode_prompt(text)[:length]
        if not tokens:
            raise UserError("callbacks.attention.text= is empty: there is nothing to look at")
        return tokens
    return first_passage(store.validation, length)
