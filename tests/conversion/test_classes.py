"""The laws of the classes of transformers: a class that is found computes the same logits for other
weights too, in both directions. The matrix in docs/ecosystem.md says the same."""

from pathlib import Path

import pytest
import torch
from composing import training_config
from conversion.models import EXACT
from foreign_models import transformers

from benchmarks.pages import CHANGES, PARTS
from headscope.cli.conf import choices_of
from headscope.conversion.classes import CLASSES
from headscope.conversion.folder import empty_model, our_config, prove_architecture
from headscope.conversion.proof import converted, find_class
from headscope.trained.checkpoint import build_model

VOCABULARY = 19
SIZES = ["model.block_size=10", "model.embed_dim=16", "model.layers=2"]


def model_of(words):
    return training_config(*SIZES, *words.split()).model


def class_of(config):
    found = find_class(build_model(config, vocab_size=VOCABULARY), config)
    return None if found is None else found.name


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "chosen"), [(name, chosen) for name in EXACT for chosen in EXACT[name]]
)
def test_logits_both_ways(name, chosen):
    """The class `name` has the same logits with other weights, and the way back has them too."""
    config = model_of(chosen)
    assert class_of(config) == name
    theirs = next(each for each in CLASSES if each.name == name)
    torch.default_generator.manual_seed(0)
    ours = build_model(config, vocab_size=VOCABULARY).eval()
    for parameter in ours.parameters():
        parameter += 0.4 * torch.randn_like(parameter)
    entries, model = converted(theirs, ours, config)
    tokens = torch.randint(VOCABULARY, (2, 10), generator=torch.Generator().manual_seed(1))
    expected = ours(tokens)
    torch.testing.assert_close(model(tokens).logits, expected, atol=1e-4, rtol=0)
    if entries.get("mlp_bias") is False and entries["attention_bias"]:
        return  # ours has no output projection with a bias in a model without other biases
    config = transformers.AutoConfig.for_model(**entries)
    read = our_config(theirs, config, None)
    prove_architecture(Path("here"), theirs, config, read)
    again = empty_model(read, VOCABULARY)
    theirs.copy_to_ours(theirs.parameters(model), again)
    torch.testing.assert_close(again(tokens), expected, atol=1e-4, rtol=0)


UNRESTRICTED = {"block_size", "embed_dim", "layers", "heads", "kv_heads", "ngram_buckets"}
"""Keys that no class restricts, or that a choice of another key sets."""


def test_the_matrix_has_a_row_for_every_key_and_choice():
    words = {word.partition("=")[0] for change in CHANGES for word in change.split()}
    keys = {*model_of("model=gpt")} - {"_target_", *PARTS, *UNRESTRICTED}
    assert {f"model.{key}" for key in keys} <= words
    for group in PARTS:
        assert {f"model/{group}={name}" for name in choices_of(f"model/{group}")} <= {*CHANGES}
