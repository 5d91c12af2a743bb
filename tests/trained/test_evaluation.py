"""The laws of evaluation at several lengths."""

import json
import math
from pathlib import Path

import pytest
import torch
from checkpoint_files import configuration, content, save

from headscope import trained
from headscope.cli.conf import choices_of
from headscope.data.own_files import TextFiles
from headscope.nn.loss import next_token_loss
from headscope.trained.evaluation import evaluate, evaluate_lengths, validation_text


def saved(path, *overrides):
    save(content(configuration(*overrides))[0], path)
    return trained.load(path)


def text_of(speeches, loaded, size):
    """The first tokens of the validation split."""
    text = validation_text(TextFiles(path=str(speeches)), loaded.tokenizer)
    return type(text)(text.tokens[:size], text.byte_lengths)


@pytest.mark.parametrize("size", [1, 5, 8, 20])
def test_the_loss_is_that_of_every_token_in_windows_of_that_length(tmp_path, speeches, size):
    loaded = saved(tmp_path / "a.safetensors", "model/position=alibi")
    text = text_of(speeches, loaded, 203)
    [found] = evaluate_lengths(loaded, text, batch_size=3, block_sizes=[size])
    model = loaded.with_block_size(20)
    nats = 0.0
    for start in range(0, 202, size):
        window = torch.tensor(text.tokens[start : start + size + 1].astype("int64"))[None]
        with torch.no_grad():
            nats += next_token_loss(model(window[:, :-1]), window[:, 1:], reduction="sum").item()
    assert found["block_size"] == size
    assert found["loss_nats_per_token"] == pytest.approx(nats / 202, rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / found["bytes"], rel=1e-5)


@pytest.mark.parametrize("position", choices_of("model/position"))
def test_a_position_reaches_further_or_says_why_not(tmp_path, speeches, position):
    loaded = saved(tmp_path / "a.safetensors", f"model/position={position}")
    text = text_of(speeches, loaded, 500)
    short, own, far = evaluate_lengths(loaded, text, batch_size=16, block_sizes=[4, 8, 16])
    assert own == {"block_size": 8, **evaluate(loaded.model, text, batch_size=16)}
    assert short["tokens"] == own["tokens"] == 499
    limit = loaded.model.position.limit
    if limit:
        assert far.keys() == {"block_size", "not_possible"}
        assert limit in far["not_possible"]
        assert "block_size=8" in far["not_possible"]
    else:
        assert far["tokens"] == 499
        longer = loaded.with_block_size(16)
        tokens = torch.arange(8)[None]
        torch.testing.assert_close(longer(tokens), loaded.model(tokens))


def test_evaluating_in_bf16_changes_nothing_of_the_callers_model(tmp_path, speeches):
    loaded = saved(tmp_path / "a.safetensors", "model/position=alibi")
    text = text_of(speeches, loaded, 100)
    before = evaluate(loaded.model, text, batch_size=16)
    for sizes in ([8, 16], [4], [8]):
        evaluate_lengths(loaded, text, batch_size=16, block_sizes=sizes, precision="bf16")
    assert {weight.dtype for weight in loaded.model.state_dict().values()} == {torch.float32}
    assert evaluate(loaded.model, text, batch_size=16) == before


def test_the_script_prints_a_list_and_refuses_what_is_no_list_of_lengths(script, speeches):
    saved(Path("a.safetensors"), "data=text", f"data.path={speeches}", "model/position=learned")
    said = script("evaluate", "checkpoint=a.safetensors", "block_size=[8,16]")
    assert said.code == 0, said.err
    own, far = json.loads(said.out)
    assert own == {"block_size": 8} | json.loads(script("evaluate", "checkpoint=a.safetensors").out)
    assert "Learned was trained at block_size=8" in far["not_possible"]
    for wrong in ("block_size=[0]", "block_size=8"):
        said = script("evaluate", "checkpoint=a.safetensors", wrong)
        assert said.err.splitlines()[-1].startswith("Error: block_size")
