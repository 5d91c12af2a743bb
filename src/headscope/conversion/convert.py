"""What the command convert does: one conversion in or out."""

from collections.abc import Callable
from pathlib import Path

from headscope.checkpoint import Checkpoint, read
from headscope.conversion.export import export_huggingface
from headscope.conversion.folder import folder_of, load_folder
from headscope.conversion.gguf import export_gguf
from headscope.conversion.imported import write_checkpoint, write_weights
from headscope.conversion.nanogpt import export_nanogpt, is_nanogpt, read_nanogpt
from headscope.errors import UserError
from headscope.terminal import command


def export_safetensors(loaded: Checkpoint, output: Path) -> list[str]:
    """Writes the new run folder `output` with a copy of the checkpoint without optimizer state.
    Returns lines to print."""
    stored = read(loaded.path)
    data = {key: value for key, value in stored.data.items() if key != "training"}
    write_weights(output, stored.weights(), data)
    return [f"Written: {output}/checkpoints/best.safetensors, without optimizer state"]


FORMATS: dict[str, Callable[[Checkpoint, Path], list[str]]] = {
    "huggingface": export_huggingface,
    "nanogpt": export_nanogpt,
    "safetensors": export_safetensors,
    "gguf": export_gguf,
}
"""A function for each value of `to`. It writes a checkpoint to a new folder in the format of
another tool, checks that it is the same model, and returns lines to print."""


def import_model(
    source: str, output: Path, *, text: Path | None = None, block_size: int | None = None
) -> list[str]:
    """Converts the model `source` of another tool to a checkpoint in the new folder `output`.
    Returns lines to print. Raises UserError if the model cannot be converted."""
    if is_nanogpt(Path(source)):
        loaded = read_nanogpt(Path(source), text, block_size)
    elif text is not None:
        raise UserError(f"text={text} is only for checkpoints of nanoGPT, .pt files: leave it out")
    else:
        loaded = load_folder(folder_of(source), block_size=block_size)
    write_checkpoint(output, loaded)
    model = loaded.model
    return [
        f"Imported: {model.parameter_count():,} parameters, {len(model.blocks)} layers with "
        f"{model.attentions[0].heads} heads, {model.block_size} tokens of context, "
        f"{model.vocab_size:,} tokens in the vocabulary",
        f"Written: {output}/checkpoints/best.safetensors. To use it:",
        f"  {command('sample')} checkpoint={output} prompt=...",
        f"  {command('analyze')} checkpoint={output} text=...",
        f"  {command('evaluate')} checkpoint={output} data.path=...",
        f"  {command('train')} init_from={output} experiment=finetune data.path=...",
    ]


def export_model(loaded: Checkpoint, to: str, output: Path) -> list[str]:
    """Writes a checkpoint to the new folder `output` in the format `to`. Returns lines to print.
    Raises UserError if the model does not fit the format."""
    return FORMATS[to](loaded, output)
