"""Every metric and every head name is in the glossary, and docs/glossary.md is current."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from running import ROOT
from small_gpt import gpt, some_tokens

from headscope.analysis import diversity, metrics
from headscope.analysis.glossary import FIGURES, HEAD_NAMES, as_javascript, as_markdown
from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.head_types import BROAD, GLOBAL, MIXED, NARROW, NONE
from headscope.analysis.report.inputs import Ablation
from headscope.analysis.report.tables import between_heads, head_rows
from headscope.analysis.tokens import classify_tokens

JAVASCRIPT = "src/headscope/viewer/static/glossary.js"
FILES = {"docs/glossary.md": as_markdown, JAVASCRIPT: as_javascript}


def metrics_of_the_report() -> set[str]:
    """The columns of heads.csv with an ablation, and what is said of pairs of heads."""
    model = gpt(block_size=12)
    windows = some_tokens(length=13, batch=2)
    kinds = classify_tokens([",", *"abcdefghij"], torch.ones(11))
    study = measure_heads(model, windows[:, :-1], kinds=kinds)
    loaded: Any = SimpleNamespace(model=model)
    worth = Ablation("zero", windows, bytes_per_token=1.0, gradients=True).run(loaded, iter)
    columns = set(head_rows(study, worth.figures)[0]) - {"layer", "head", "type"}
    columns |= {"denoising", "noising"}  # in patching.csv
    assert "diversity" in between_heads(study)
    pairs = {diversity.cosine_similarity.__name__, diversity.jensen_shannon.__name__}
    return columns | {"diversity"} | pairs


def test_every_metric_and_head_name_has_an_entry_that_says_what_a_high_value_means():
    expected = metrics_of_the_report() | set(metrics.METRICS) | set(metrics.NON_CAUSAL_METRICS)
    assert set(FIGURES) == expected
    assert list(HEAD_NAMES) == [*NARROW.values(), *BROAD.values(), GLOBAL, MIXED, NONE]
    assert all(text.endswith(".") for text in [*FIGURES.values(), *HEAD_NAMES.values()])
    assert all(". A high value means" in text for text in FIGURES.values())


@pytest.mark.parametrize("file", FILES)
def test_the_files_made_from_the_glossary_are_current(file):
    function = FILES[file]
    write = (
        f'python -c "from headscope.analysis.glossary import {function.__name__} as text; '
        f"print(text(), end='')\" > {file}"
    )
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text == function(), f"write it again: {write}"
