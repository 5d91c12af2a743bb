"""What scripts/convert.py does: one conversion in or out."""

from collections.abc import Callable
from pathlib import Path

import torch

from headscope.checkpoint import Checkpoint, read
from headscope.checkpoint.building import build_model
from headscope.conversion.export import export_huggingface
from headscope.conversion.folder import folder_of, load_folder
from headscope.conversion.gguf import export_gguf
from headscope.conversion.imported import write_checkpoint, write_weights
from headscope.conversion.nanogpt import export_nanogpt, is_nanogpt, read_nanogpt
from headscope.errors import UserError
from headscope.nn import GPT


def export_safetensors(loaded: Checkpoint, output: Path) -> list[str]:
    """Writes the new run folder `output` with a copy of the checkpoint without optimizer state.
    Returns lines to print."""
    stored = read(loaded.path)
    data = {key: value for key, value in stored.data.items() if key not in ("training", "shards")}
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
        config, weights, tokenizer, step = read_nanogpt(Path(source), text, block_size)
        write_checkpoint(
            output, model=config, weights=weights, tokenizer=tokenizer, step=step, text=text
        )
        with torch.device("meta"):
            model = build_model(config, vocab_size=tokenizer.vocab_size)
        return summary(model, output)
    if text is not None:
        raise UserError(f"text={text} is only for checkpoints of nanoGPT, .pt files: leave it out")
    loaded = load_folder(folder_of(source), block_size=block_size)
    write_checkpoint(
        output,
        model=loaded.config.model,
        weights=loaded.model.state_dict(),
        tokenizer=loaded.tokenizer,
        step=0,
        text=None,
    )
    return summary(loaded.model, output)


def summary(model: GPT, output: Path) -> list[str]:
    """Lines that say what was imported and how to use it."""
    heads = model.attentions[0].heads
    return [
        f"Imported: {model.parameter_count():,} parameters, {len(model.blocks)} layers with "
        f"{heads} heads, {model.block_size} tokens of context, {model.vocab_size:,} tokens in the "
        "vocabulary",
        f"Written: {output}/checkpoints/best.safetensors. To use it:",
        f"  python scripts/sample.py checkpoint={output} prompt=...",
        f"  python scripts/analyze.py checkpoint={output} text=...",
        f"  python scripts/evaluate.py checkpoint={output} data.path=...",
        f"  python scripts/train.py init_from={output} experiment=finetune data.path=...",
    ]


def export_model(loaded: Checkpoint, to: str, output: Path) -> list[str]:
    """Writes a checkpoint to the new folder `output` in the format `to`. Returns lines to print.
    Raises UserError if the model does not fit the format."""
    if to not in FORMATS:
        raise UserError(f"to={to} must be one of {', '.join(FORMATS)}")
    return FORMATS[to](loaded, output)
