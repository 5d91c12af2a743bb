"""The laws of the classes of transformers: a class that is found computes the same logits for other
weights too, in both directions, and no class is found for what no class can compute."""

import itertools
from dataclasses import replace

import pytest
import torch
from composing import training_config
from foreign_models import transformers

from headscope.checkpoint import build_model
from headscope.config import SCHEMAS
from headscope.config.model import ModelConfig
from headscope.conversion.classes import CLASSES
from headscope.conversion.folder import proven_architecture
from headscope.conversion.proof import converted, find_class, logits, probe, redraw, words
from headscope.conversion.settings import Settings
from headscope.nn import GPT

VOCABULARY = 19
SIZES = ["block_size=10", "embed_dim=16", "layers=2"]


def model_of(*words: str) -> ModelConfig:
    """A small model, given keys and choices of conf/model."""
    prefixed = [f"model{'' if word[0] in '/=' else '.'}{word}" for word in words]
    return training_config(*(f"model.{word}" for word in SIZES), *prefixed).model


def with_random_weights(config: ModelConfig) -> GPT:
    torch.default_generator.manual_seed(0)
    model = build_model(config, vocab_size=VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return model


def class_of(config: ModelConfig) -> str | None:
    found = find_class(build_model(config, vocab_size=VOCABULARY), config)
    return None if found is None else found.name


@torch.no_grad()
def assert_exact(config: ModelConfig, name: str) -> None:
    """The class `name` has the same logits with other weights, and the way back has them too."""
    theirs = next(each for each in CLASSES if each.name == name)
    ours = with_random_weights(config)
    entries, model = converted(theirs, ours, config)
    tokens = torch.randint(VOCABULARY, (2, 10), generator=torch.Generator().manual_seed(1))
    expected = ours(tokens)
    torch.testing.assert_close(model(tokens).logits, expected, atol=1e-4, rtol=0)
    if entries.get("attention_bias", False) != entries.get("mlp_bias", False):
        return  # ours has no output projection with a bias in a model without other biases
    settings = Settings(transformers.AutoConfig.for_model(**entries), entries)
    again, _ = proven_architecture("here", theirs, settings, None)
    theirs.copy_to_ours(model, again)
    torch.testing.assert_close(again(tokens), expected, atol=1e-4, rtol=0)


EXACT: dict[str, list[list[str]]] = {
    "GPT2LMHeadModel": [
        ["=gpt2"],
        ["=gpt2", "bias=false", "qkv_bias=false", "ff_dim=40", "norm.eps=0.01"],
        ["=gpt2", "/activation=gelu", "tied_head=false", "bias=false"],
        ["=gpt2", "/attention=stacked_heads", "/activation=relu_squared"],
        ["=gpt2", "/position=sinusoidal", "scale_embedding=true", "attention.scale=0.6"],
        ["/position=none", "attention.out_proj=false"],
        ["/position=digits", "heads=1", "/attention=single_head"],
    ],
    "GPTNeoXForCausalLM": [
        [],
        ["bias=true", "qkv_bias=true", "heads=2", "position.base=500"],
        ["position.interleaved=true", "qkv_bias=true", "tied_head=false", "attention.scale=0.1"],
        ["/attention=stacked_heads", "position.interleaved=true", "qkv_bias=true"],
        ["/activation=gelu_tanh", "attention.out_proj=false"],
    ],
    "MptForCausalLM": [
        ["/position=alibi"],
        ["/position=alibi", "heads=6", "embed_dim=24", "tied_head=false", "scale_embedding=true"],
        ["/position=alibi", "attention.scale=0.7", "norm.eps=0.01"],
    ],
    "ArceeForCausalLM": [
        ["/norm=rms", "/activation=relu_squared"],
        ["/norm=rms", "/activation=gelu", "norm.gain=true", "bias=true", "qkv_bias=true"],
        ["/norm=rms", "/attention=grouped_query", "qkv_bias=true"],
    ],
    "LlamaForCausalLM": [
        ["/norm=rms", "/feed_forward=swiglu", "norm.gain=true", "norm.eps=0.01"],
        ["/norm=rms", "/feed_forward=swiglu", "bias=true", "qkv_bias=true"],
        [
            *("/norm=rms", "/feed_forward=swiglu", "/attention=multi_query", "head_dim=12"),
            *("position.interleaved=true", "tied_head=false"),
        ],
    ],
    "Qwen3ForCausalLM": [
        [
            *("/norm=rms", "/feed_forward=swiglu", "norm.eps=1e-6", "attention.qk_norm=true"),
            *("norm.gain=true", "position.interleaved=true", "qkv_bias=true"),
        ],
        [
            *("/norm=rms", "/feed_forward=swiglu", "norm.eps=1e-6", "/attention=grouped_query"),
            *("attention.qk_norm=true", "heads=6", "kv_heads=3", "head_dim=4", "tied_head=false"),
            "attention.scale=0.2",
        ],
    ],
}


@pytest.mark.parametrize(
    ("name", "chosen"), [(name, chosen) for name in EXACT for chosen in EXACT[name]], ids=str
)
def test_logits_both_ways(name, chosen):
    config = model_of(*chosen)
    assert class_of(config) == name
    assert_exact(config, name)


@torch.no_grad()
@pytest.mark.parametrize("name", EXACT)
def test_random_weights_show_caps_and_clips(name):
    gpt = build_model(model_of(*EXACT[name][0]), vocab_size=VOCABULARY).eval()
    redraw(gpt)
    largest: list[float] = []
    for layer in gpt.attentions:
        layer.qkv.register_forward_hook(lambda _, __, out: largest.append(out.abs().max().item()))
    assert logits(gpt, *probe(VOCABULARY, 10, None)).abs().max() > 10
    assert max(largest) > 8


NOWHERE = {
    "ngrams": 2,
    "logit_cap": 10_000.0,
    "document_mask": True,
    "head_dim": 6,
}


@pytest.mark.parametrize("size", [2, 10])
@pytest.mark.parametrize("key", NOWHERE)
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "GPTNeoXForCausalLM", "MptForCausalLM"])
def test_what_no_class_computes_has_none(name, key, size):
    config = model_of(*EXACT[name][0], f"block_size={size}")
    changed = replace(config, **{key: NOWHERE[key]})
    assert class_of(config) == name
    assert class_of(changed) is None
    assert f"model.{key}" in words(changed)


PARTS = ("attention", "position", "norm", "activation", "feed_forward")
FITS = {
    ("layer", "mlp"): {"rotary": "GPTNeoXForCausalLM", "alibi": "MptForCausalLM"},
    ("rms", "mlp"): {"rotary": "ArceeForCausalLM"},
    ("rms", "swiglu"): {"rotary": "LlamaForCausalLM"},
}


@pytest.mark.slow
@pytest.mark.parametrize("attention", SCHEMAS["attention"])
def test_every_combination_of_parts(attention):
    """The class that is found is the one that theory says."""
    for others in itertools.product(*(SCHEMAS[part] for part in PARTS[1:])):
        names = dict(zip(PARTS, (attention, *others), strict=True))
        config = model_of(*(f"/{part}={name}" for part, name in names.items()))
        fits = FITS.get((names["norm"], names["feed_forward"]), {})
        expected = fits.get(names["position"])
        added = names["position"] not in ("rotary", "alibi", "relative", "head_bias")
        if added and (names["norm"], names["feed_forward"]) == ("layer", "mlp"):
            expected = "GPT2LMHeadModel"
        shared = attention in ("multi_query", "grouped_query") and names["norm"] == "layer"
        no_gelu = expected == "MptForCausalLM" and names["activation"] != "gelu"
        if attention == "additive" or shared or no_gelu:
            expected = None
        assert class_of(config) == expected, names


def test_each_class_has_its_own_name_and_type():
    assert len({each.name for each in CLASSES}) == len({each.model_type for each in CLASSES}) == 7
