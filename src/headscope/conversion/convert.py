"""What scripts/convert.py does: one conversion in or out."""

from collections.abc import Callable
from pathlib import Path

from headscope.checkpoint import Checkpoint
from headscope.conversion.gguf_file import export_gguf
from headscope.conversion.huggingface import export_huggingface
from headscope.conversion.imported import write_checkpoint
from headscope.conversion.nanogpt import is_nanogpt, read_nanogpt
from headscope.conversion.nanogpt_export import export_nanogpt
from headscope.conversion.plain import export_safetensors
from headscope.errors import UserError

FORMATS: dict[str, Callable[[Checkpoint, Path], list[str]]] = {
    "huggingface": export_huggingface,
    "nanogpt": export_nanogpt,
    "safetensors": export_safetensors,
    "gguf": export_gguf,
}
"""A function for each value of `to`. It writes a checkpoint to a new folder in the format of
another tool, proves that the logits agree, and returns lines to print."""


def import_model(
    source: str, output: Path, *, text: Path | None = None, block_size: int | None = None
) -> list[str]:
    """Converts the model `source` of another tool to a checkpoint in the new folder `output`.
    Returns lines to print. Raises UserError if the model cannot be converted."""
    if is_nanogpt(Path(source)):
        config, weights, tokenizer, step = read_nanogpt(Path(source), text, block_size)
        write_checkpoint(
            output, model=config, weights=weights, tokenizer=tokenizer, step=step, text=text
        )
        return [f"Wrote {output}: {len(weights)} weights of {source}, step {step}"]
    raise UserError(f"source={source} is not a model that headscope can read")


def export_model(loaded: Checkpoint, to: str, output: Path) -> list[str]:
    """Writes a checkpoint to the new folder `output` in the format `to`. Returns lines to print.
    Raises UserError if the model does not fit the format."""
    if to not in FORMATS:
        raise UserError(f"to={to} must be one of {', '.join(FORMATS)}")
    return FORMATS[to](loaded, output)
