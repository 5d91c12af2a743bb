"""The command evaluate: evaluates a checkpoint on the whole validation split."""

from typing import Any, Literal

from headscope.config.parse import Positive, Texts
from headscope.config.parts import Part, build_part
from headscope.files import json_text


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
    """Prints the losses as a JSON object, or with `block_size=` as a list, one for each size."""
    from headscope.conversion.load import load
    from headscope.data.encode import validation_text
    from headscope.trained import evaluation

    loaded = load(checkpoint, device=device)
    used = evaluation.choose_precision(precision, loaded)
    corpus = build_part(data, "data") if data else loaded.corpus()
    text = validation_text(corpus, loaded.tokenizer)
    options: Any = {"batch_size": batch_size, "precision": used}
    losses: Any
    if block_size is None:
        losses = evaluation.evaluate(loaded.model, text, **options)
    else:
        losses = evaluation.evaluate_lengths(loaded, text, block_sizes=block_size, **options)
    print(json_text(losses, indent=2))
