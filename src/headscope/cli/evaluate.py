"""The command evaluate: evaluates a checkpoint on the whole validation split."""

from typing import Any

from omegaconf import DictConfig

from headscope.cli import command_line
from headscope.files import json_text


def main() -> None:
    command_line.run(evaluate, "evaluate")


def evaluate(composed: DictConfig) -> None:
    """Prints the losses to standard output as a JSON object. With `block_size=`, prints a list with
    one object for each block size."""
    from headscope import checkpoint, evaluation
    from headscope.config.parse import from_hydra
    from headscope.config.parts import build_part
    from headscope.config.scripts import EvaluateConfig

    config = from_hydra(EvaluateConfig, composed)
    loaded = checkpoint.load(
        checkpoint.find(config.checkpoint), device=checkpoint.pick_device(config.device)
    )
    precision = evaluation.choose_precision(config.precision, loaded)
    corpus = build_part(config.data, "data") if config.data else checkpoint.stored_corpus(loaded)
    text = evaluation.validation_text(corpus, loaded.tokenizer)
    metrics: dict[str, Any] | list[dict[str, Any]]
    if config.block_size is None:
        metrics = evaluation.evaluate(
            loaded.model, text, batch_size=config.batch_size, precision=precision
        )
    else:
        metrics = evaluation.evaluate_lengths(
            loaded,
            text,
            batch_size=config.batch_size,
            block_sizes=config.block_size,
            precision=precision,
        )
    print(json_text(metrics, indent=2))
