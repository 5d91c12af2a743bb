"""The laws of the table of classes: what it calls exact is exact, in both directions."""

import itertools
import re
from dataclasses import replace

import pytest
import torch
from composing import training_config
from foreign_models import transformers
from headscope.conversion.huggingface.classes import CLASSES, find_class, reasons

from headscope.checkpoint import build_model
from headscope.config import SCHEMAS
from headscope.config.model import ModelConfig
from headscope.errors import UserError

VOCABULARY = 19
SIZES = ["block_size=10", "embed_dim=16", "layers=2"]


def model_of(*words: str) -> ModelConfig:
    """A small model, given keys and choices of conf/model."""
    prefixed = [f"model{'' if word[0] in '/=' else '.'}{word}" for word in words]
    return training_config(*(f"model.{word}" for word in SIZES), *prefixed).model


def with_random_weights(config: ModelConfig) -> torch.nn.Module:
    torch.default_generator.manual_seed(0)
    model = build_model(config, vocab_size=VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return model


@torch.no_grad()
def assert_exact(config: ModelConfig) -> None:
    """The class that the table names computes the same logits, from config.json and weights of the
    table alone, and the way back gives the same weights."""
    theirs = find_class(config)
    assert theirs is not None, reasons(config)
    ours = with_random_weights(config)
    weights = theirs.to_theirs(config, ours.state_dict())
    settings = theirs.config(config, vocab_size=VOCABULARY, end_of_text=VOCABULARY - 1)
    made = transformers.AutoConfig.for_model(**settings)
    model = getattr(transformers, theirs.name)(made).eval()
    in_memory = {name.replace("embed_out", "lm_head"): weight for name, weight in weights.items()}
    if not hasattr(model, "lm_head"):  # GPTNeoX of transformers 4.57
        in_memory = weights
    missing, unexpected = model.load_state_dict(in_memory, strict=False)
    assert not unexpected
    assert len(missing) == config.tied_head
    model.tie_weights()
    tokens = torch.randint(VOCABULARY, (2, 10), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(tokens), model(tokens).logits, atol=1e-4, rtol=0)
    back = theirs.to_ours(config, weights)
    state = ours.state_dict()
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], weight) for name, weight in state.items())
    if "mlp_bias" in settings and settings["attention_bias"] != settings["mlp_bias"]:
        with pytest.raises(UserError, match="attention_bias"):
            theirs.model_config(settings)
        return
    # Our model from their configuration alone gives the same logits too.
    again = theirs.model_config(settings)
    imported = build_model(again, vocab_size=VOCABULARY).eval()
    imported.load_state_dict(theirs.to_ours(again, weights))
    torch.testing.assert_close(imported(tokens), ours(tokens), atol=1e-5, rtol=0)


EXACT = {
    "gpt2": ["=gpt2"],
    "gpt2 without biases": ["=gpt2", "bias=false", "qkv_bias=false", "ff_dim=40", "norm.eps=0.01"],
    "gpt2 untied": ["=gpt2", "/activation=gelu", "tied_head=false", "bias=false"],
    "gpt2 stacked": ["=gpt2", "/attention=stacked_heads", "/activation=relu_squared"],
    "neox": [],
    "neox with biases": ["bias=true", "qkv_bias=true", "heads=2", "position.base=500"],
    "neox interleaved": ["position.interleaved=true", "qkv_bias=true", "tied_head=false"],
    "neox stacked": ["/attention=stacked_heads", "position.interleaved=true", "qkv_bias=true"],
    "neox single": ["/attention=single_head"],
    "mpt": ["/position=alibi"],
    "mpt, other heads": ["/position=alibi", "heads=6", "embed_dim=24", "tied_head=false"],
    "mpt, other scale": ["/position=alibi", "attention.scale=0.7", "norm.eps=0.01"],
    "arcee": ["/norm=rms", "/activation=relu_squared"],
    "arcee with biases": ["/norm=rms", "/activation=gelu", "norm.gain=true", "bias=true"],
    "arcee grouped": ["/norm=rms", "/attention=grouped_query", "qkv_bias=true"],
    "llama": ["/norm=rms", "/feed_forward=swiglu", "norm.gain=true", "norm.eps=0.01"],
    "llama with biases": ["/norm=rms", "/feed_forward=swiglu", "bias=true", "qkv_bias=true"],
    "llama grouped": [
        *("/norm=rms", "/feed_forward=swiglu", "/attention=multi_query", "head_dim=12"),
        *("position.interleaved=true", "tied_head=false"),
    ],
    "qwen3": [
        *("/norm=rms", "/feed_forward=swiglu", "norm.eps=1e-6", "attention.qk_norm=true"),
        *("norm.gain=true", "position.interleaved=true", "qkv_bias=true"),
    ],
    "qwen3 grouped": [
        *("/norm=rms", "/feed_forward=swiglu", "norm.eps=1e-6", "/attention=grouped_query"),
        *("attention.qk_norm=true", "heads=6", "kv_heads=3", "head_dim=4", "tied_head=false"),
    ],
}


@pytest.mark.parametrize("words", EXACT.values(), ids=EXACT)
def test_logits_and_weights_both_ways(words):
    assert_exact(model_of(*words))


PARTS = ("position", "norm", "activation", "feed_forward")
NOWHERE = {
    "attention.out_proj": False,
    "scale_embedding": True,
    "ngrams": 2,
    "logit_cap": 15.0,
    "document_mask": True,
}
"""Changes of keys with which no class computes the same function."""


def every_choice() -> list[ModelConfig]:
    """Every combination of the parts of a model, with the default keys."""
    plain = {
        (group, name): model_of(f"/{group}={name}")
        for group in ("attention", *PARTS)
        for name in SCHEMAS[group]
    }
    models = []
    for attention in SCHEMAS["attention"]:
        base = plain["attention", attention]
        for names in itertools.product(*(SCHEMAS[part] for part in PARTS)):
            chosen = {
                part: getattr(plain[part, name], part)
                for part, name in zip(PARTS, names, strict=True)
            }
            models.append(replace(base, **chosen))
    return models


def changed(model: ModelConfig, key: str, value: object) -> ModelConfig:
    group, _, name = key.rpartition(".")
    if not group:
        return replace(model, **{name: value})
    return replace(model, **{group: replace(getattr(model, group), **{name: value})})


def test_every_combination_of_parts_fits_one_class_or_none_with_reasons():
    """The words of each reason name a key and the class, in one line."""
    models = every_choice()
    fitting = [model for model in models if find_class(model)]
    assert len(models) == 720
    assert {find_class(model).name for model in fitting} == {
        *("GPT2LMHeadModel", "GPTNeoXForCausalLM", "MptForCausalLM", "ArceeForCausalLM"),
        "LlamaForCausalLM",
    }
    for model in models:
        for name, reason in reasons(model).items():
            if reason is not None:
                assert re.fullmatch(rf"model[./]\w+(\.\w+)?=[^:]+: .*{name}.*", reason), reason
    # What no class has, in a model that is exact otherwise. The reason names the key.
    distinct = {type(find_class(model)): model for model in fitting}.values()
    for model, (key, value) in itertools.product(distinct, NOWHERE.items()):
        one = changed(model, key, value)
        assert find_class(one) is None
        assert f"model.{key}=" in reasons(one)[find_class(model).name]


@pytest.mark.parametrize("attention", SCHEMAS["attention"])
def test_what_the_table_calls_exact_is_exact(attention):
    fitting = [model for model in every_choice() if find_class(model)]
    of_attention = SCHEMAS["attention"][attention]
    chosen = [model for model in fitting if type(model.attention) is of_attention]
    assert bool(chosen) == (attention != "additive")
    for model in chosen:
        assert_exact(model)


def test_each_class_has_its_own_name_and_type():
    assert len({each.name for each in CLASSES}) == len({each.model_type for each in CLASSES}) == 7
