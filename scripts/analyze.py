"""What the heads of a checkpoint do, as a report: python scripts/analyze.py."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from omegaconf import DictConfig

from headscope.cli import command_line
from headscope.errors import UserError

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint
    from headscope.config.scripts import AnalyzeConfig
    from headscope.evaluation import ValidationText

MOST_IMPORTANT = 5
"""Heads whose change of the loss is printed."""


def analyze(composed: DictConfig) -> None:
    """Write tables, pictures and a page about every head into a folder, and print its table."""
    from functools import cache, partial

    from rich.console import Console
    from rich.progress import track

    from headscope import checkpoint
    from headscope.analysis.ablation import Replacement
    from headscope.analysis.head_types import Thresholds
    from headscope.analysis.report import chosen
    from headscope.analysis.report.subject import Ablation, Subject
    from headscope.analysis.report.write import write_report
    from headscope.config import from_hydra
    from headscope.config.scripts import AnalyzeConfig

    config = from_hydra(AnalyzeConfig, composed)
    check(config)
    thresholds = Thresholds(**vars(config.thresholds))
    load = partial(checkpoint.load, device=checkpoint.pick_device(config.device))
    moments = sorted(map(load, chosen.kept(config.checkpoints or [])), key=lambda one: one.step)
    of_last = bool(moments) and config.checkpoint is None
    loaded = moments[-1] if of_last else load(checkpoint.find(config.checkpoint))
    chosen.check_one_run(moments, loaded)
    other = load(checkpoint.find(config.other, key="other")) if config.other else None
    if other:
        chosen.check_other(loaded, other)
    pair = chosen.pair_named(config.difference, loaded) if config.difference is not None else None
    folder = Path(config.output_dir) if config.output_dir else folder_of(loaded.path)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output_dir={folder} is a file: name a folder")
    if folder.is_symlink() and not config.output_dir:
        raise UserError(f"{folder} is a link out of the run: give output_dir=")

    validation = cache(partial(text_of, loaded))
    length = loaded.model.block_size
    if config.text is None:
        subject = Subject.of_validation(loaded, validation(), config.windows)
    else:
        text = command_line.read_standard_input() if config.text == "-" else config.text
        subject = Subject.of_text(loaded, text)
        whole = len(loaded.tokenizer.encode_prompt(text))
        if whole > length:
            say(f"Looking at the first {length} of {whole} tokens, as many as block_size has")
    ablation = None
    if config.ablation:
        windows = config.ablation_windows
        replace_by = cast(Replacement, config.replace_by)  # checked above
        ablation = Ablation.on(validation(), replace_by, windows=windows, length=length)
    console = Console(stderr=True)
    progress = partial(track, console=console, description="analyzing", transient=True)
    study, worth = write_report(
        subject,
        folder,
        thresholds=thresholds,
        ablation=ablation,
        pair=pair,
        other=other,
        moments=moments,
        track=progress if console.is_terminal else iter,
    )
    for name, kind in zip(study.names, study.types, strict=True):
        print(f"{name}  {kind}")
    if worth:
        print(
            f"most important, by the change of the loss of {worth.loss:.4f} nats per token without"
        )
        for name, change, error in worth.most_important(MOST_IMPORTANT):
            print(f"{name}  {change:+.4f} ± {error:.4f}")
    shown, tokens = subject.shown_tokens, len(subject.reading.tokens)
    if shown < tokens:
        say(f"attention.html has the first {shown} of {tokens} tokens: more is slow in a browser")
    say(f"{folder}/attention.html, heads.csv and pictures")


def check(config: "AnalyzeConfig") -> None:
    """Raises UserError when a setting is out of range."""
    # The error of an ablation is that of a mean over windows.
    for key, least in (("windows", 1), ("ablation_windows", 2)):
        if getattr(config, key) < least:
            raise UserError(f"{key}={getattr(config, key)} must be at least {least}")
    if config.replace_by not in ("zero", "mean"):
        raise UserError(f"replace_by={config.replace_by} must be zero or mean")


def say(line: str) -> None:
    print(line, file=sys.stderr)


def folder_of(path: Path) -> Path:
    """Where the report of a checkpoint goes: its run's folder, or beside it."""
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    return run / "analysis"


def text_of(loaded: "Checkpoint") -> "ValidationText":
    from headscope import checkpoint
    from headscope.evaluation import validation_text

    return validation_text(checkpoint.stored_corpus(loaded.config), loaded.tokenizer)


if __name__ == "__main__":
    command_line.run(analyze, "analyze")
