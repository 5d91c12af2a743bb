"""What the command convert does: one conversion in or out."""

from collections.abc import Callable
from pathlib import Path

from headscope.conversion.export import export_huggingface
from headscope.conversion.folder import folder_of, load_folder
from headscope.conversion.gguf import export_gguf
from headscope.conversion.imported import write_checkpoint, write_weights
from headscope.conversion.load import load_foreign
from headscope.conversion.nanogpt import export_nanogpt, read_nanogpt
from headscope.data.encode import validation_text
from headscope.data.own_files import TextFiles, errors_of_text
from headscope.terminal import command
from headscope.trained import TrainedModel
from headscope.trained.checkpoint import read
from headscope.trained.records import add_records, head_recorder


def export_safetensors(loaded: TrainedModel, output: Path) -> list[str]:
    """Writes a copy without optimizer state to the run folder `output`. Returns lines to print."""
    stored = read(loaded.path)
    data = {key: value for key, value in stored.data.items() if key != "training"}
    write_weights(output, stored.weights(), data)
    return [f"Written: {output}/checkpoints/best.safetensors, without optimizer state"]


FORMATS: dict[str, Callable[[TrainedModel, Path], list[str]]] = {
    "huggingface": export_huggingface,
    "nanogpt": export_nanogpt,
    "safetensors": export_safetensors,
    "gguf": export_gguf,
}
"""A function for each value of `to`. It writes a checkpoint to a new folder, checks that it is the
same model, and returns lines to print. It raises UserError if the model does not fit the format."""


def import_model(
    source: str,
    output: Path,
    *,
    text: Path | None = None,
    block_size: int | None = None,
    begin: bool | None = None,
) -> list[str]:
    """Converts the model `source` of another tool to a checkpoint in the new folder `output`.
    The heads are measured on the validation split of the file `text`, if it is given. `begin` is as
    in `load`. Returns lines to print. Raises UserError if the model cannot be converted."""
    path = Path(source)
    if path.suffix == ".pt" and path.is_file():
        loaded = read_nanogpt(path, text, block_size)
    else:
        foreign = load_foreign(source, block_size=block_size)
        loaded = foreign or load_folder(folder_of(source), block_size=block_size)
    loaded = loaded.typed(begin=begin)
    with errors_of_text(text):
        of_text = validation_text(TextFiles(path=str(text)), loaded.tokenizer) if text else None
    write_checkpoint(output, loaded)
    model, folder = loaded.model, output / "checkpoints"
    if of_text is not None:
        recorder = head_recorder(model, loaded.tokenizer, of_text.tokens, f"{text}")
        add_records(folder, [recorder(model, digest=loaded.digest, step=loaded.known_step)])
    return [
        f"Imported: {model.parameter_count():,} parameters, {len(model.blocks)} layers with "
        f"{model.attentions[0].heads} heads, {model.block_size} tokens of context, "
        f"{model.vocab_size:,} tokens in the vocabulary",
        f"Written: {folder}/best.safetensors. To use it:",
        f"  {command('explore')} checkpoint={output}",
        f"  {command('sample')} checkpoint={output} prompt=...",
        f"  {command('analyze')} checkpoint={output} text=...",
        f"  {command('evaluate')} checkpoint={output} data.path=...",
        f"  {command('train')} init_from={output} experiment=finetune data.path=...",
    ]
