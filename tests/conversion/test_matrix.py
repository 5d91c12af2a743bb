"""The matrix in docs/ecosystem.md is that of the proofs, and covers every key and every choice in
conf/model."""

import dataclasses

import pytest
from running import ROOT

from headscope.cli.conversion_page import CHANGES, GROUPS, page
from headscope.config import SCHEMAS
from headscope.config.model import ModelConfig

SIZES = {"block_size", "embed_dim", "layers", "heads", "kv_heads", "ngram_buckets"}
"""Keys that no class restricts, or that a choice of another key sets."""


def test_the_matrix_has_a_row_for_every_key_and_choice():
    words = {word.partition("=")[0] for change in CHANGES for word in change.split()}
    keys = {field.name for field in dataclasses.fields(ModelConfig)} - {"_target_", *GROUPS, *SIZES}
    assert {f"model.{key}" for key in keys} <= words
    for group in GROUPS:
        assert {f"model/{group}={name}" for name in SCHEMAS[group]} <= {*CHANGES}


@pytest.mark.slow
def test_the_matrix_in_the_docs_is_up_to_date():
    """To update it: python -m headscope.cli.conversion_page docs/ecosystem.md"""
    pytest.importorskip("transformers")
    text = (ROOT / "docs" / "ecosystem.md").read_text(encoding="utf-8")
    assert text.count("<!-- matrix -->") == text.count("<!-- end matrix -->") == 1
    assert page(text) == text
