"""The command convert: converts models of other tools to checkpoints, and back."""

from pathlib import Path
from typing import Any, Literal

from headscope.config.parse import Texts
from headscope.errors import UserError
from headscope.terminal import printable


def convert(
    *,
    parts: Texts,
    source: str | None,
    revisions: list[str] | None,
    text: str | None,
    block_size: int | None,
    begin: bool | None,
    checkpoint: str | None,
    to: Literal["huggingface", "nanogpt", "safetensors", "gguf"] | None,
    output: str | None,
) -> None:
    """Converts one model and prints what was written."""
    from headscope.conversion.convert import FORMATS, import_model
    from headscope.conversion.revisions import FolderSteps
    from headscope.conversion.steps import StepImport
    from headscope.trained import load
    from headscope.trained.checkpoint import find

    if (source is None) == (to is None):
        raise UserError("give source=, a model of another tool, or to=, a format for a checkpoint")
    way = "source" if source else "to"
    of_source = {"revisions": revisions, "text": text, "block_size": block_size, "begin": begin}
    unused = {"checkpoint": checkpoint} if source else of_source
    for key, value in unused.items():
        if value is not None:
            raise UserError(f"{key}={value} has no effect with {way}=: leave it out")
    if output is None:
        raise UserError("output= is missing: name the folder to write, such as output=outputs/gpt2")
    folder = Path(output)
    file = Path(text).expanduser() if text else None
    options: Any = {"text": file, "block_size": block_size, "begin": begin}
    if source is not None and (revisions is not None or FolderSteps.are_in(source)):
        from headscope.training.snapshot_events import event_file  # needs tensorboard

        lines = StepImport(source, revisions, folder, event_file, **options).run()
    elif folder.exists() or folder.is_symlink():
        raise UserError(f"output={output} already exists: name a new folder")
    elif source is not None:
        lines = import_model(source, folder, **options)
    else:
        lines = FORMATS[str(to)](load(find(checkpoint)), folder)
    for line in lines:
        print(printable(line))
