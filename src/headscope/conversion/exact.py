"""Finds the class of another tool that computes exactly the function of a model of ours.

Every class whose configuration can be filled in is tried: both models get the same random weights,
and their logits are compared over the whole context.
"""

from collections.abc import Iterable
from typing import Any

from headscope.checkpoint.building import WithoutInitialization, build_model
from headscope.config.model import SCHEMAS, ModelConfig
from headscope.conversion.classes import CLASSES, HuggingFaceClass, Unfit
from headscope.conversion.proof import NotEqual, compare, logits, probe, redraw
from headscope.conversion.standard_form import standard_form
from headscope.nn import GPT


def find_class(
    gpt: GPT, config: ModelConfig, classes: Iterable[HuggingFaceClass] | None = None
) -> HuggingFaceClass | None:
    """The first of `classes` that computes the function of `gpt` for random weights, or None. The
    weights of `gpt` are not changed."""
    with WithoutInitialization():
        drawn = build_model(config, vocab_size=gpt.vocab_size, end_of_text=gpt.end_of_text).eval()
    redraw(drawn)
    tokens, positions = probe(gpt.vocab_size, gpt.block_size, gpt.end_of_text or 0)
    ours = logits(drawn, tokens, positions)
    for each in classes or (each for each in CLASSES if each.can_export):
        try:
            compare(ours, logits(converted(each, drawn, config)[1], tokens, positions))
        except (Unfit, NotEqual):
            continue
        return each
    return None


def converted(
    theirs: HuggingFaceClass, gpt: GPT, config: ModelConfig
) -> tuple[dict[str, Any], Any]:
    """The entries of config.json, and the model of the other tool, with the weights of `gpt`.
    Raises Unfit if a part of `gpt` has no counterpart."""
    entries = theirs.entries(gpt, standard_form(gpt, config)[0])
    model = theirs.build(entries)
    theirs.fill(model, gpt, config)
    return entries, model


def words(config: ModelConfig) -> str:
    """The words of the command line that select the parts of a model, and its unusual keys, for
    the message that another tool cannot express it."""
    parts = [
        f"model/{group}={choice_of(group, type(getattr(config, group)))}"
        for group in ("attention", "position", "norm", "activation", "feed_forward")
    ]
    unusual = {
        "model.attention.qk_norm": config.attention.qk_norm,
        "model.attention.out_proj": not config.attention.out_proj,
        "model.ngrams": config.ngrams > 1,
        "model.logit_cap": config.logit_cap is not None,
        "model.document_mask": config.document_mask,
        "model.bias": config.bias,
        "model.head_dim": config.head_dim is not None,
    }
    return ", ".join(parts + [key for key, present in unusual.items() if present])


def choice_of(group: str, schema: type[Any]) -> str:
    """The name of a choice in conf/model/<group>, from its schema."""
    return next((name for name, each in SCHEMAS[group].items() if each is schema), schema.__name__)
