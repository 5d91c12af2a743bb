"""Creates the optional callbacks of a training run from its configuration."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lightning.pytorch import Callback

from headscope.analysis.report.inputs import classify_vocabulary
from headscope.config.parts import build_part
from headscope.config.training import TrainConfig
from headscope.data.batches import first_passage, spread_windows
from headscope.data.store import TokenStore
from headscope.errors import UserError
from headscope.training.callbacks.early_stopping import ResumableEarlyStopping
from headscope.training.callbacks.head_watch import HeadWatch, ProbeText, WatchSteps
from headscope.training.callbacks.samples import Samples
from headscope.training.callbacks.step_callback import StepSaver, evenly_chosen, snapshot_steps
from headscope.viewer.snapshot import tokens_within

MEGABYTE = 10**6


def optional_callbacks(
    config: TrainConfig,
    store: TokenStore,
    samples: Samples,
    folder: Path,
    *,
    probe: str | None,
    say: Callable[[str], None],
) -> list[Callback]:
    """The callbacks that `config.callbacks` turns on, for the run in `folder`. `probe` is the text
    on which the corpus shows attention. `say` prints a line."""
    settings = config.callbacks
    callbacks: list[Callback] = []
    if settings.early_stopping_patience is not None:
        callbacks.append(ResumableEarlyStopping(patience=settings.early_stopping_patience))
    attention, heads = settings.attention, settings.heads
    if attention.steps or attention.images or heads.every_steps:
        callbacks.append(head_watch(config, store, probe, say))
    if settings.samples.max_new_tokens:
        callbacks.append(samples)
    if settings.keep_steps:
        callbacks.append(StepSaver(folder=folder / "checkpoints", steps=settings.keep_steps))
    return callbacks


def head_watch(
    config: TrainConfig, store: TokenStore, probe: str | None, say: Callable[[str], None]
) -> HeadWatch:
    """The callback that watches the heads of a run."""
    attention, heads = config.callbacks.attention, config.callbacks.heads
    length, last = config.model.block_size, config.trainer.max_steps
    snapshots = snapshot_steps(attention.steps, last)
    steps = snapshot_steps(max(attention.steps, attention.images), last)
    run_bytes = int(attention.run_megabytes * MEGABYTE)
    text = probe_text(store, probe if attention.text is None else attention.text, length)
    if snapshots:
        limit = min(int(attention.step_megabytes * MEGABYTE), run_bytes // len(snapshots))
        text = shortened(text, limit, layers=config.model.layers, heads=config.model.heads)
    return HeadWatch(
        text=text,
        windows=spread_windows(store.validation, windows=heads.windows, length=length),
        kinds=classify_vocabulary(store.tokenizer, store.validation),
        thresholds=build_part(heads.thresholds, "thresholds"),
        steps=WatchSteps(
            every=heads.every_steps,
            snapshots=frozenset(snapshots),
            images=frozenset(evenly_chosen(steps, attention.images)),
            last=last,
        ),
        max_bytes=run_bytes,
        say=say,
    )


def probe_text(store: TokenStore, text: str | None, length: int) -> ProbeText:
    """The first `length` tokens of `text`, or of the validation split if `text` is None."""
    if text is None:
        tokens = first_passage(store.validation, length)
        whole = len(tokens)
    else:
        every = store.tokenizer.encode_prompt(text)
        tokens, whole = every[:length], len(every)
    if not tokens:
        raise UserError(
            "callbacks.attention.text= is empty: give a text, or null for a text of the corpus"
        )
    tokenizer = store.tokenizer
    return ProbeText(tokens, tokenizer.labels(tokens), whole, tokenizer.vocabulary_labels())


def shortened(text: ProbeText, limit: int, *, layers: int, heads: int) -> ProbeText:
    """The beginning of `text`, so that a snapshot of it has at most `limit` bytes."""
    kept = tokens_within(
        limit, layers=layers, heads=heads, tokens=len(text.tokens), vocabulary=text.vocabulary
    )
    if not kept:
        raise UserError(
            "callbacks.attention.step_megabytes and callbacks.attention.run_megabytes have no room "
            f"for one token of {layers} x {heads} heads in a step: raise them, or set "
            "callbacks.attention.steps=0"
        )
    return replace(text, tokens=text.tokens[:kept], labels=text.labels[:kept])
