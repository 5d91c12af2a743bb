"""A reading opens in BertViz: what `to_bertviz` returns, and what BertViz's page says of it."""

import json
from pathlib import Path

import pytest
import torch
from checkpoint_files import content, save

import headscope
from headscope.checkpoint import AttentionReading


@pytest.fixture
def reading(tmp_path: Path) -> AttentionReading:
    save(content()[0], tmp_path / "some.safetensors")
    return headscope.load(tmp_path / "some.safetensors").attention("a 多\n<b")


def test_it_has_a_map_of_a_batch_of_one_for_each_layer(reading: AttentionReading) -> None:
    attention, tokens = reading.to_bertviz()
    assert tokens == reading.labels == ["a", "·", "多 1/3", "多 2/3", "多 3/3", "⏎", "<", "b"]
    assert [each.shape for each in attention] == [(1, 4, 8, 8)] * 2
    assert torch.equal(torch.cat(attention), reading.weights)


def test_the_page_of_bertviz_has_the_same_attention(reading: AttentionReading) -> None:
    reason = "needs bertviz, which no extra has, because it brings boto3 and sentencepiece"
    bertviz = pytest.importorskip("bertviz", reason=reason)
    page = bertviz.head_view(*reading.to_bertviz(), html_action="return").data
    _, _, rest = page.partition("const params = ")
    params, _ = json.JSONDecoder().raw_decode(rest)
    [shown] = params["attention"]
    assert shown["left_text"] == shown["right_text"] == reading.labels
    assert torch.equal(torch.tensor(shown["attn"]), reading.weights)
