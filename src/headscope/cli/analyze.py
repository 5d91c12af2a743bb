"""The command analyze: writes a report on the attention heads of a checkpoint."""

import os
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from headscope.cli import command_line
from headscope.errors import UserError
from headscope.terminal import read_standard_input
from headscope.viewer import TAB

if TYPE_CHECKING:
    from headscope.analysis.report.write import EventFile
    from headscope.checkpoint import Checkpoint
    from headscope.evaluation import ValidationText


def main() -> None:
    command_line.run(analyze, "analyze")


def analyze(composed: DictConfig) -> None:
    """Write tables, pictures and an HTML page about all heads into a folder. Print the type of each
    head."""
    from functools import cache, partial

    from rich.console import Console
    from rich.progress import track

    from headscope import checkpoint
    from headscope.analysis.head_types import NONE
    from headscope.analysis.patch_texts import patch_texts
    from headscope.analysis.report import selection
    from headscope.analysis.report.console import print_ablation, print_gradients, print_patching
    from headscope.analysis.report.inputs import Ablation, ReportInput
    from headscope.analysis.report.page import shown_tokens
    from headscope.analysis.report.write import write_report
    from headscope.config.parse import from_hydra
    from headscope.config.scripts import AnalyzeConfig

    config = from_hydra(AnalyzeConfig, composed)
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
    patching = None
    if any(value is not None for value in vars(config.patch).values()):
        texts = patch_texts(loaded, **vars(config.patch))
        patching = texts, texts.run(loaded)

    validation = cache(partial(validation_text_of, loaded))
    length = loaded.model.block_size
    if config.text is None:
        report = ReportInput.of_validation(loaded, validation(), config.windows)
    else:
        text = read_standard_input() if config.text == "-" else config.text
        if os.path.isfile(text):
            say(f"text={text} is analyzed as it is; to analyze this file: text=- < {quote(text)}")
        report = ReportInput.of_text(loaded, text)
        tokens = len(loaded.tokenizer.encode_prompt(text))
        if tokens > length:
            say(f"Only the first {length} of {tokens} tokens are analyzed (the block_size)")
    ablation = None
    if config.ablation or config.gradients:
        ablation = Ablation.on(
            validation(),
            config.replace_by,
            windows=config.ablation_windows,
            length=length,
            removes=config.ablation,
            gradients=config.gradients,
        )
    console = Console(stderr=True)
    progress = partial(track, console=console, description="analyzing", transient=True)
    statistics, ablation_result = write_report(
        report,
        folder,
        thresholds=config.thresholds,
        ablation=ablation,
        patching=patching,
        pair=pair,
        other=other,
        history=history,
        event_file=event_encoder() if config.tensorboard else None,
        track=progress if console.is_terminal else iter,
    )
    for name, head_type in zip(statistics.heads, statistics.types, strict=True):
        offset = f", {head_type.label}" if head_type.offset else ""
        print(f"{name}  {'without a name' if head_type.name == NONE else head_type.name}{offset}")
    if ablation_result and config.ablation:
        print_ablation(ablation_result)
    if ablation_result and config.gradients:
        print_gradients(ablation_result)
    if patching:
        print_patching(*patching)
    tokens = len(report.reading.tokens)
    shown = shown_tokens(
        report.reading, loaded, len({stored.step for stored in [loaded, *history]})
    )
    if shown < tokens:
        say(f"attention.html has the first {shown} of {tokens} tokens: a larger page would be slow")
    if "induction" not in statistics.metrics:
        say("Induction is not measurable with this vocabulary or block_size: see docs/glossary.md")
    say(f"Names and metrics are measured on {statistics.windows} x {statistics.tokens} tokens")
    say(f"Written: {folder}/attention.html, heads.csv and pictures")
    if config.tensorboard:
        say(f"See the tab Attention, {TAB}: tensorboard --logdir {folder}")


def event_encoder() -> "EventFile":
    from headscope.tensorboard.snapshot_events import event_file  # needs tensorboard

    return event_file


def say(line: str) -> None:
    print(line, file=sys.stderr)


def default_folder(path: Path) -> Path:
    """The default folder of the report: `analysis` in the run folder of the checkpoint, or next to
    a checkpoint that is not in a run folder."""
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    return run / "analysis"


def validation_text_of(loaded: "Checkpoint") -> "ValidationText":
    from headscope import checkpoint
    from headscope.evaluation import validation_text

    return validation_text(checkpoint.stored_corpus(loaded), loaded.tokenizer)
