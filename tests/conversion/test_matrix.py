"""The matrix in docs/ecosystem.md is true: transformers computes what our model computes in each
cell `yes`, and it covers every key and every choice in conf/model."""

import dataclasses

import pytest
import torch
from headscope.conversion.huggingface.classes import CLASSES
from running import ROOT

from headscope import checkpoint
from headscope.cli.conversion_page import BASES, CHANGES, GROUPS, exact_models, page
from headscope.config import SCHEMAS
from headscope.config.model import ModelConfig

transformers = pytest.importorskip("transformers")

SMALL = {"block_size": 8, "embed_dim": 16, "layers": 2, "dropout": 0.0}
SIZES = {"block_size", "embed_dim", "layers", "heads", "kv_heads", "ngram_buckets"}
"""Keys that no class restricts, or that a choice of another key sets."""


def test_the_matrix_has_a_row_for_every_key_and_choice():
    words = {word.partition("=")[0] for change in CHANGES for word in change.split()}
    keys = {field.name for field in dataclasses.fields(ModelConfig)} - {"_target_", *GROUPS, *SIZES}
    assert {f"model.{key}" for key in keys} <= words
    for group in GROUPS:
        assert {f"model/{group}={name}" for name in SCHEMAS[group]} <= {*CHANGES}


@pytest.mark.slow
@torch.no_grad()
def test_transformers_computes_the_same_logits_in_every_cell_yes():
    kinds = {kind.name: kind for kind in CLASSES}
    tokens = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(0))
    count = dict.fromkeys(BASES, 0)
    for name, change, full_size in exact_models():
        model = dataclasses.replace(full_size, **SMALL)
        ours = checkpoint.build_model(model, vocab_size=50).eval()
        for parameter in ours.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        kind = kinds[name]
        settings = kind.config(model, vocab_size=50, end_of_text=49)
        config = transformers.AutoConfig.for_model(**settings)
        weights = kind.to_theirs(model, ours.state_dict())
        # transformers renames some weights of other versions when it loads them.
        theirs, problems = getattr(transformers, name).from_pretrained(
            None, config=config, state_dict=weights, output_loading_info=True
        )
        assert not any(problems.values()), (name, change, problems)
        difference = (theirs.eval()(tokens).logits - ours(tokens)).abs().max()
        assert difference < 1e-4, (name, change)
        count[name] += 1
    assert min(count.values()) > 10


@pytest.mark.slow
def test_the_matrix_in_the_docs_is_up_to_date():
    """To update it: python -m headscope.cli.conversion_page docs/ecosystem.md"""
    text = (ROOT / "docs" / "ecosystem.md").read_text(encoding="utf-8")
    assert text.count("<!-- matrix -->") == text.count("<!-- end matrix -->") == 1
    assert page(text) == text
