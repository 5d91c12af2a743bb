"""The command convert: converts models of other tools to checkpoints, and back."""

from pathlib import Path

from omegaconf import DictConfig

from headscope import stop
from headscope.cli import command_line
from headscope.errors import UserError
from headscope.terminal import printable


def main() -> None:
    with stop.stop_on_signal():
        command_line.run(convert, "convert")


def convert(composed: DictConfig) -> None:
    """Converts one model and prints what was written."""
    from headscope import checkpoint
    from headscope.config.parse import from_hydra
    from headscope.config.scripts import ConvertConfig
    from headscope.conversion.convert import export_model, import_model
    from headscope.stop import stop_on_signal

    config = from_hydra(ConvertConfig, composed)
    if (config.source is None) == (config.to is None):
        raise UserError(
            "name one of the two: source= (a model of another tool to convert to a checkpoint), or "
            "to= (the format to convert a checkpoint to)"
        )
    way, unused = ("source", ["checkpoint"]) if config.source else ("to", ["text", "block_size"])
    for key in unused:
        if (value := getattr(config, key)) is not None:
            raise UserError(f"{key}={value} has no effect with {way}=: leave it out")
    if config.output is None:
        raise UserError("output= is missing: name the folder to write, such as output=outputs/gpt2")
    output = Path(config.output)
    if output.exists() or output.is_symlink():
        raise UserError(f"output={output} already exists: name a new folder")
    if config.source is not None:
        text = None if config.text is None else Path(config.text)
        lines = import_model(config.source, output, text=text, block_size=config.block_size)
    else:
        loaded = checkpoint.load(checkpoint.find(config.checkpoint))
        with stop_on_signal():
            lines = export_model(loaded, str(config.to), output)
    for line in lines:
        print(printable(line))
