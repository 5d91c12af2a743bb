"""Write a report on the attention heads of a checkpoint: python scripts/analyze.py."""

import math
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
"""How many of the most important heads to print. Each is printed with the change in loss when that
head is removed."""


def analyze(composed: DictConfig) -> None:
    """Write tables, pictures and an HTML page about all heads into a folder. Print the type of each
    head."""
    from functools import cache, partial

    from rich.console import Console
    from rich.progress import track

    from headscope import checkpoint
    from headscope.analysis.ablation import Replacement
    from headscope.analysis.head_types import Thresholds
    from headscope.analysis.report import selection
    from headscope.analysis.report.inputs import Ablation, ReportInput
    from headscope.analysis.report.page import shown_tokens
    from headscope.analysis.report.write import write_report
    from headscope.config import from_hydra
    from headscope.config.scripts import AnalyzeConfig

    config = from_hydra(AnalyzeConfig, composed)
    check(config)
    thresholds = Thresholds(**vars(config.thresholds))
    load = partial(checkpoint.load, device=checkpoint.pick_device(config.device))
    files = selection.checkpoint_files(config.checkpoints or [])
    history = sorted(map(load, files), key=lambda stored: stored.step)
    if history and config.checkpoint is None:
        loaded = history[-1]
    else:
        loaded = load(checkpoint.find(config.checkpoint))
    selection.check_one_run(history, loaded)
    other = load(checkpoint.find(config.other, key="other")) if config.other else None
    if other:
        selection.check_other(loaded, other)
    names = config.difference
    pair = selection.parse_head_pair(names, loaded) if names is not None else None
    folder = Path(config.output_dir) if config.output_dir else default_folder(loaded.path)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output_dir={folder} is a file: name a folder")
    if folder.is_symlink() and not config.output_dir:
        raise UserError(
            f"{folder} is a symbolic link, perhaps to another place: name a folder with output_dir="
        )

    validation = cache(partial(validation_text_of, loaded))
    length = loaded.model.block_size
    if config.text is None:
        report = ReportInput.of_validation(loaded, validation(), config.windows)
    else:
        text = command_line.read_standard_input() if config.text == "-" else config.text
        report = ReportInput.of_text(loaded, text)
        tokens = len(loaded.tokenizer.encode_prompt(text))
        if tokens > length:
            notify(f"Only the first {length} of {tokens} tokens are analyzed (the block_size)")
    ablation = None
    if config.ablation:
        windows = config.ablation_windows
        replace_by = cast(Replacement, config.replace_by)  # checked above
        ablation = Ablation.on(validation(), replace_by, windows=windows, length=length)
    console = Console(stderr=True)
    progress = partial(track, console=console, description="analyzing", transient=True)
    statistics, ablation_result = write_report(
        report,
        folder,
        thresholds=thresholds,
        ablation=ablation,
        pair=pair,
        other=other,
        history=history,
        track=progress if console.is_terminal else iter,
    )
    for name, head_type in zip(statistics.names, statistics.types, strict=True):
        print(f"{name}  {head_type.name}")
    if ablation_result:
        print(
            "most important heads: change of the loss without the head (with all heads "
            f"{ablation_result.loss:.4f} nats per token), and the largest induction of the others"
        )
        for name, figures in ablation_result.most_important(MOST_IMPORTANT):
            change, error = figures["loss_change"], figures["loss_change_error"]
            others = figures.get("other_induction", math.nan)  # not measured on very short texts
            print(f"{name}  {change:+.4f} ± {error:.4f}  {others:.2f}")
    tokens = len(report.reading.tokens)
    shown = shown_tokens(report.reading, len({stored.step for stored in [loaded, *history]}))
    if shown < tokens:
        notify(
            f"attention.html has the first {shown} of {tokens} tokens: a larger page would be slow"
        )
    notify(f"Written: {folder}/attention.html, heads.csv and pictures")


def check(config: "AnalyzeConfig") -> None:
    """Raises UserError if a value is out of range."""
    # The standard error of the ablation can be computed only from two or more windows.
    for key, minimum in (("windows", 1), ("ablation_windows", 2)):
        if getattr(config, key) < minimum:
            raise UserError(f"{key}={getattr(config, key)} must be at least {minimum}")
    if config.replace_by not in ("zero", "mean"):
        raise UserError(f"replace_by={config.replace_by} must be zero or mean")


def notify(line: str) -> None:
    print(line, file=sys.stderr)


def default_folder(path: Path) -> Path:
    """The default folder of the report: `analysis` in the run folder of the checkpoint, or next to
    a checkpoint that is not in a run folder."""
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    return run / "analysis"


def validation_text_of(loaded: "Checkpoint") -> "ValidationText":
    from headscope import checkpoint
    from headscope.evaluation import validation_text

    return validation_text(checkpoint.stored_corpus(loaded.config), loaded.tokenizer)


if __name__ == "__main__":
    command_line.run(analyze, "analyze")
