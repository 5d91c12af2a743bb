"""The command evaluate: evaluates a checkpoint on the whole validation split."""

from functools import partial
from typing import Literal

from headscope.cli import command_line
from headscope.config.parse import Positive, Texts, parse
from headscope.config.parts import Part, build_part
from headscope.files import json_text


def main() -> None:
    command_line.run(partial(parse, evaluate), "evaluate")


def evaluate(
    *,
    parts: Texts,
    checkpoint: str | None,
    data: Part | None = None,
    batch_size: Positive,
    block_size: list[Positive] | None,
    device: str,
    precision: Literal["auto", "fp32", "bf16-mixed", "bf16", "int8"],
) -> None:
    """Prints the losses to standard output as a JSON object. With `block_size=`, prints a list with
    one object for each block size."""
    from headscope.trained import evaluation, load
    from headscope.trained.checkpoint import find, pick_device

    loaded = load(find(checkpoint), device=pick_device(device))
    used = evaluation.choose_precision(precision, loaded)
    corpus = build_part(data, "data") if data else loaded.corpus()
    text = evaluation.validation_text(corpus, loaded.tokenizer)
    if block_size is None:
        found = evaluation.evaluate(loaded.model, text, batch_size=batch_size, precision=used)
        print(json_text(found, indent=2))
        return
    every = evaluation.evaluate_lengths(
        loaded, text, batch_size=batch_size, block_sizes=block_size, precision=used
    )
    print(json_text(every, indent=2))
