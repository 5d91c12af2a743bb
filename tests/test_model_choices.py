"""The laws of choosing a model's parts: what a choice brings, and what does not fit together."""

import shutil

import pytest
from composing import composed, training_config

from headscope.cli.conf import CONF, choices_of
from headscope.config.parse import parse
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.trained import checkpoint


def built(*overrides: str) -> GPT:
    """A model that could be trained, as a run would build it."""
    config = training_config("model.layers=1", *overrides)
    return checkpoint.build_model(config.model, vocab_size=50)


@pytest.mark.parametrize(
    ("line", "heads", "kv_heads"),
    [
        ("single_head", 1, 1),
        ("multi_head", 4, 4),
        ("multi_query", 4, 1),
        ("multi_query model.heads=8 model/position=rotary model.position.base=10", 8, 1),
        ("grouped_query", 4, 2),
        ("grouped_query model.heads=8 model.kv_heads=4", 8, 4),
        ("stacked_heads model.heads=2", 2, 2),
        ("additive model.kv_heads=2", 4, 2),
        ("grouped_query experiment=nanogpt_gpu", 6, 2),
        ("single_head experiment=nanogpt_cpu model.heads=1", 1, 1),
    ],
)
def test_an_attention_has_its_own_heads_unless_told_otherwise(line, heads, kv_heads):
    model = built(*f"model/attention={line}".split())
    [attention] = model.attentions
    assert (attention.heads, attention.kv_heads) == (heads, kv_heads)
    assert model.position.heads == heads


def test_heads_that_an_attention_cannot_have_are_refused_before_a_run():
    for line, named in [
        ("single_head model.heads=8", "^model.heads=8"),
        ("multi_head model.kv_heads=2", "^model.kv_heads=2"),
        ("grouped_query model.kv_heads=3", "kv_heads=3"),
        ("grouped_query model.kv_heads=null", "kv_heads"),
        ("multi_head model.attention.scale=0", "^model.attention.scale=0"),
        ("multi_head model/position=rotary model.position.base=0", "^model.position.base=0"),
        ("multi_head model.norm.eps=0", "^model.norm.eps=0"),
    ]:
        with pytest.raises(UserError, match=named):
            built(*f"model/attention={line}".split())


@pytest.mark.parametrize("option", choices_of("model/attention"))
def test_an_experiment_may_choose_the_attention(option, tmp_path):
    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    (conf / "experiment" / "ours.yaml").write_text(
        "# @package _global_\n"
        f"defaults: [override /model/attention: {option}, override /model/position: alibi]\n"
        "model: {layers: 1, attention: {qk_norm: true}}\n"
    )
    config = composed("experiment=ours", conf=conf)
    words = [f"model/attention={option}", "model/position=alibi", "model.attention.qk_norm=true"]
    expected = composed("model.layers=1", *words)
    assert config.model == expected.model
    parse(TrainConfig, config)


def test_tables_of_fixed_size_come_with_scaled_embeddings_unless_told_otherwise():
    for line, scaled in [
        *(("learned", False), ("sinusoidal", True), ("digits", True)),
        *(("sinusoidal experiment=nanogpt_cpu", True), ("rotary model.scale_embedding=true", True)),
        ("sinusoidal model.scale_embedding=false", False),
    ]:
        model = built(*f"model/position={line}".split())
        assert model.embedding_scale == (128**0.5 if scaled else 1.0), line
