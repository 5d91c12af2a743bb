"""What the heads of a checkpoint do, as a report: python scripts/analyze.py."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from headscope import command_line

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint
    from headscope.evaluation import ValidationText


def analyze(config: DictConfig) -> None:
    """Write tables, pictures and a page about every head into a folder, and print its table."""
    from functools import partial

    import torch
    from rich.console import Console
    from rich.progress import track

    from headscope import checkpoint, head_report
    from headscope.analysis.head_types import Thresholds
    from headscope.data.batches import spread_windows

    # The error of an ablation is that of a mean over windows.
    for key, least in (("windows", 1), ("ablation_windows", 2)):
        if config[key] < least:
            raise ValueError(f"{key}={config[key]} must be at least {least}")
    if config.replace_by not in ("zero", "mean"):
        raise ValueError(f"replace_by={config.replace_by} must be zero or mean")
    loaded = checkpoint.load(
        checkpoint.find(config.checkpoint), device=checkpoint.pick_device(config.device)
    )
    folder = Path(config.output_dir) if config.output_dir else folder_of(loaded.path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output_dir={folder} is a file: name a folder")
    text = command_line.read_standard_input() if config.text == "-" else config.text
    validation = None if text is not None and not config.ablation else text_of(loaded)
    if text is None:
        assert validation is not None
        # The first token is the end of text that stands before every document.
        reading = loaded.attention(validation.tokens[1:].tolist()[: loaded.model.block_size])
        length = loaded.model.block_size
        windows = spread_windows(validation.tokens, windows=config.windows, length=length)
    else:
        reading = loaded.attention(text)
        windows = torch.tensor([reading.tokens])
        given = len(loaded.tokenizer.encode_prompt(text))
        if given > len(reading.tokens):
            print(
                f"Looking at the first {len(reading.tokens)} of {given} tokens, as many as "
                "block_size has",
                file=sys.stderr,
            )
    console = Console(stderr=True)
    shown = partial(track, console=console, description="analyzing", transient=True)
    study = head_report.write_report(
        loaded,
        reading,
        folder,
        windows=windows,
        validation=validation,
        ablation=head_report.Ablation(config.replace_by, config.ablation_windows)
        if config.ablation
        else None,
        thresholds=Thresholds(**config.thresholds),
        track=shown if console.is_terminal else iter,
    )
    for name, kind in zip(study.names, study.types, strict=True):
        print(f"{name}  {kind}")
    print(f"{folder}/attention.html, heads.csv and pictures", file=sys.stderr)


def folder_of(path: Path) -> Path:
    """Where the report of a checkpoint goes: its run's folder, or beside it."""
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    return run / "analysis"


def text_of(loaded: "Checkpoint") -> "ValidationText":
    from headscope import checkpoint
    from headscope.evaluation import validation_text

    return validation_text(checkpoint.build_corpus(loaded.config), loaded.tokenizer)


if __name__ == "__main__":
    command_line.run(analyze, "analyze")
