"""The laws of conf/: all of it composes and builds, and no mistake in it goes unnoticed."""

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from composing import CHOICES, ROOT_OF, SCRIPTS, composed, training_config
from lightning.pytorch import Callback
from omegaconf import DictConfig, OmegaConf
from refusals import refused

import headscope
from benchmarks.runner import suite
from headscope.analysis.head_types import Thresholds
from headscope.cli.compare import ChoicesConfig
from headscope.cli.conf import CONF, choices_of
from headscope.config.parse import checked, checked_keys, parse, parse_part
from headscope.config.parts import (
    GROUPS,
    arguments_of,
    build_part,
    defaults_in_conf,
    keys_of,
    locate,
)
from headscope.config.training import TrainConfig, TrainerConfig
from headscope.data.corpus import Corpus
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.loss import next_token_loss
from headscope.trained import checkpoint
from headscope.training.build import optimizer_of
from headscope.training.trainer import checked_arguments

ROOTS = sorted(file.stem for file in CONF.glob("*.yaml"))
OTHERS = [(group, option) for group, option in CHOICES if group != "experiment"]

MUST_BE_GIVEN = {
    "text": ["data.path=README.md"],
    "hub": ["data.name=someone/texts"],
    "own": ['compare.choices=["model.heads=2"]'],
}
SCHEMAS = {"trainer": TrainerConfig, "compare": ChoicesConfig}
"""The schemas of the groups without parts."""


def chosen(group: str, option: str, *overrides: str) -> DictConfig:
    more = [*MUST_BE_GIVEN.get(option, []), *overrides]
    return composed(f"{group}={option}", *more, root=ROOT_OF.get(group, "train"))


def plain(config: DictConfig) -> Any:
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)


# --- all of it builds ---


@pytest.mark.parametrize("root", ROOTS)
def test_every_root_composes_with_a_value_for_every_key(root):
    data = plain(composed(root=root))
    if root == "benchmark":
        checked_keys(arguments_of(suite("training", None)), data.pop("suite"), "suite", "", True)
    checked_keys(arguments_of(SCRIPTS.get(root, TrainConfig)), data, "", "", True)


@pytest.mark.parametrize(("group", "option"), [each for each in CHOICES if each[0] != "thresholds"])
def test_every_choice_builds_and_its_mistakes_are_refused(group, option, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("To be, or not to be: that is the question.")
    composition = chosen(group, option)
    data = plain(composition)
    config = parse(TrainConfig, {key.name: data[key.name] for key in fields(TrainConfig)})
    assert parse(TrainConfig, config.kept(), composed=False).kept() == config.kept()
    # A width that the tensor cores of a GPU take
    assert config.model.embed_dim // config.model.heads % 8 == 0
    config.model.layers = 1
    model = checkpoint.build_model(config.model, vocab_size=50)
    assert isinstance(model, GPT)
    assert model(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 50)
    assert isinstance(optimizer_of(config)(model), torch.optim.Optimizer)
    steps = config.trainer.max_steps
    assert 0 < build_part(config.schedule, "schedule", max_steps=steps)(0) <= 1
    for name, part in config.callbacks.items():
        assert isinstance(build_part(part, "callbacks", console=None), Callback), name
    if "heads" in config.callbacks:
        assert build_part(config.callbacks["heads"], "callbacks").thresholds == Thresholds()
    assert isinstance(build_part(config.data, "data"), Corpus)
    make_tokenizer = build_part(config.tokenizer, "tokenizer")
    if option in ("byte", "char"):
        assert isinstance(make_tokenizer(["some text"]), Tokenizer)
    assert not list(tmp_path.glob("*/"))  # to build is to open nothing
    if group == "data":
        evaluated = composed(f"data={option}", *MUST_BE_GIVEN.get(option, []), root="evaluate")
        assert evaluated.data == composition.data
    if group not in ("experiment", "logger", "debug") and option not in ("many_steps", "plain"):
        assert_mistakes_are_refused(group, option, composition)


def assert_mistakes_are_refused(group: str, option: str, composition: DictConfig) -> None:
    """A misspelt key, a word for a number, a list for a word; some keys may be several things."""
    place = group.replace("/", ".")
    if group == "callbacks":
        place += f".{option if option != 'default' else 'samples'}"
    data = plain(OmegaConf.select(composition, place))
    schema = suite(option, None) if group == "suite" else SCHEMAS.get(group)

    def check(data: Any) -> None:
        if group == "trainer":  # unknown keys are arguments of lightning.Trainer
            checked_arguments(parse(schema, data, place).arguments)
        elif schema:
            checked_keys(arguments_of(schema), data, place, "", True)
        else:
            parse_part(data, group, place)

    check(data)
    with pytest.raises(UserError, match=rf"{place}\.misspelt: "):
        check(data | {"misspelt": 1})
    for name in data.keys() - {"devices", "_target_"}:
        wrong = [3 if isinstance(data[name], list | dict) else [[]], {"a": 1}]
        for value in [*wrong, "many"] if isinstance(data[name], int | float) else wrong:
            with pytest.raises(UserError, match=re.escape(f"{place}.{name}")):
                check(data | {name: value})


@pytest.mark.parametrize("group", sorted({*GROUPS} - {"logger", "callbacks/thresholds", "metrics"}))
def test_the_keys_of_a_file_are_those_of_the_constructor_and_have_types(group):
    found = defaults_in_conf(group)
    based = {"model": ["gpt2", "modern"], "callbacks": ["default", "many_steps", "plain"]}
    based_on_another = based.get(group, [])
    named = {keys["choice"] for keys in found.values()}
    assert named == {*choices_of(group)} - {*based_on_another}
    for target, keys in found.items():
        assert target.rpartition(".")[0] == "headscope"
        assert target.rpartition(".")[2] in headscope.__all__
        parameters = keys_of(locate(target), group)
        inside = {name for name in parameters if f"{group}/{name}" in GROUPS}
        assert keys.keys() - {"_target_", "choice", "defaults"} == parameters.keys() - inside
        assert not any(each.annotation is each.empty for each in parameters.values())


def test_every_file_belongs_to_a_part_or_a_schema():
    groups = {group for group, _ in OTHERS}
    assert groups == {*GROUPS, *SCHEMAS, "suite", "debug"} - {"callbacks/thresholds", "metrics"}
    assert {*SCRIPTS, "benchmark"} == {*ROOTS}


@pytest.mark.parametrize(("option", "group"), [("attention",) * 2, ("positions", "position")])
def test_a_comparison_of_all_choices_leaves_none_out(option, group):
    compared = " ".join(chosen("compare", option).compare.choices).split()
    assert {f"model/{group}={name}" for name in choices_of(f"model/{group}")} <= set(compared)


# --- what the values are ---

# train.py and config/train_shakespeare_char.py of nanoGPT, and its README's command for a CPU.
NANOGPT = """
model.bias=false model.qkv_bias=false model.tied_head=true model.scale_embedding=false
model/position=learned tokenizer=char data=tinyshakespeare optimizer=adamw optimizer.lr=1e-3
optimizer.weight_decay=0.1 optimizer.beta1=0.9 optimizer.beta2=0.99 schedule=cosine
schedule.warmup_steps=100 trainer.accumulate=1 trainer.gradient_clip=1
"""
SIZES = {
    "nanogpt_cpu": """
    model.layers=4 model.heads=4 model.embed_dim=128 model.block_size=64 model.dropout=0
    trainer.batch_size=12 trainer.max_steps=2000""",
    "nanogpt_gpu": """
    model.layers=6 model.heads=6 model.embed_dim=384 model.block_size=256 model.dropout=0.2
    trainer.batch_size=64 trainer.max_steps=5000""",
}


@pytest.mark.parametrize("name", SIZES)
def test_the_nanogpt_recipes_are_as_published(name):
    """To choose what nanoGPT has published changes nothing."""
    recipe, published = f"experiment={name}", f"{NANOGPT} {SIZES[name]}".split()
    assert plain(composed(recipe)) == plain(composed(recipe, *published))
    config = training_config(recipe)
    steps = config.trainer.max_steps
    last = build_part(config.schedule, "schedule", max_steps=steps)(steps)
    assert config.optimizer["lr"] * last == pytest.approx(1e-4)


def built(line: str) -> GPT:
    """A model that could be trained, as a run would build it."""
    return checkpoint.build_model(training_config(*line.split()).model, vocab_size=50)


@pytest.mark.parametrize(
    ("line", "heads", "kv_heads"),
    [
        ("single_head", 1, 1),
        ("multi_head", 4, 4),
        ("multi_query model.heads=8 model/position=rotary model.position.base=10", 8, 1),
        ("grouped_query", 4, 2),
        ("grouped_query model.heads=8 model.kv_heads=4", 8, 4),
        ("grouped_query experiment=nanogpt_gpu model.layers=1", 6, 2),
        ("single_head experiment=nanogpt_cpu model.heads=1", 1, 1),
    ],
)
def test_an_attention_has_its_own_heads_unless_told_otherwise(line, heads, kv_heads):
    model = built(f"model/attention={line}")
    assert (model.attentions[0].heads, model.attentions[0].kv_heads) == (heads, kv_heads)
    assert model.position.heads == heads


@pytest.mark.parametrize(
    ("line", "scaled"),
    [
        *(("learned", False), ("sinusoidal", True), ("digits", True)),
        *(("sinusoidal experiment=nanogpt_cpu", True), ("rotary model.scale_embedding=true", True)),
        ("sinusoidal model.scale_embedding=false", False),
    ],
)
def test_tables_of_fixed_size_come_with_scaled_embeddings_unless_told_otherwise(line, scaled):
    assert built(f"model/position={line}").embedding_scale == (64.0 if scaled else 1.0)


@pytest.mark.parametrize(
    ("group", "option", "more"),
    [
        *((group, option, "") for group, option in CHOICES if group.startswith("model")),
        *(("experiment", option, "") for group, option in CHOICES if group == "experiment"),
        *(("model/position", "sinusoidal", f"model.embed_dim={width}") for width in (32, 768)),
    ],
)
def test_an_untrained_model_predicts_all_tokens_alike(group, option, more):
    """The law that the loss at step 0 is ln V: nothing is predicted, such as the current token."""
    config = training_config(f"{group}={option}", *more.split())
    choice = config.tokenizer["_target_"].rpartition(".")[2]
    size = {"char": 65, "byte": 257, "gpt2": 50257}.get(choice) or config.tokenizer["vocab_size"]
    torch.manual_seed(1)
    model = checkpoint.build_model(config.model, vocab_size=size).eval()
    text = torch.randint(size, (8, model.block_size + 1))
    with torch.no_grad():
        loss = next_token_loss(model(text[:, :-1]), text[:, 1:])
    assert loss < math.log(size) + 0.15


@pytest.mark.parametrize("kind", [int | float, float | int, int | float | None, list[int | float]])
def test_numbers_of_both_kinds_stay_what_they_are(kind):
    for value in (1, 1.0, 0.5):
        given: Any = [value] if kind == list[int | float] else value
        assert repr(checked(kind, given, "x", "", True)) == repr(given)


def test_a_whole_number_may_be_written_with_an_exponent():
    config = training_config("trainer.max_steps=1e1", "tokenizer.vocab_size=5e2", "model.heads=4.0")
    found = [config.trainer.max_steps, config.tokenizer.vocab_size, config.model.heads]
    assert [(type(each), each) for each in found] == [(int, 10), (int, 500), (int, 4)]
    of_trainer = checked_arguments({"num_sanity_val_steps": 1e1, "limit_val_batches": 1.0})
    assert [*map(repr, of_trainer.values())] == ["10", "1.0"]
    for value in ("1.5", "1e-1", "1e30", "inf", "nan", "-1e1"):
        with refused("trainer.max_steps="):
            training_config(f"trainer.max_steps={value}")
    for word in ("model.tied_head=1e0", "name=1e1"):
        with refused(word.partition("=")[0]):
            training_config(word)
