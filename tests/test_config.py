"""The laws of conf/: all of it composes and builds, and no mistake in it goes unnoticed."""

import inspect
import re
import shutil
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import torch
from composing import composed, training_config
from hydra.errors import HydraException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from benchmarks.schemas import SUITES
from headscope import checkpoint
from headscope.cli.conf import CONF, choices_of
from headscope.config import SCHEMAS, build_part, from_hydra, parse
from headscope.config.parse import keys_of
from headscope.config.training import TrainConfig
from headscope.data.corpus import Corpus
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.nn import GPT

SHARED = "head_types"  # a part of train.yaml and of analyze.yaml, no root
ROOTS = sorted(file.stem for file in CONF.glob("*.yaml") if file.stem != SHARED)
CHOICES = sorted(
    (file.parent.relative_to(CONF).as_posix(), file.stem)
    for file in CONF.glob("*/**/*.yaml")
    if not file.is_relative_to(CONF / "hydra")
)
EXPERIMENTS = [option for group, option in CHOICES if group == "experiment"]
GROUPS = [(group, option) for group, option in CHOICES if group != "experiment"]
ROOT_OF = {"compare": "compare", "suite": "benchmark"}  # the other groups are train.yaml's
MUST_BE_GIVEN = {
    "text": ["data.path=README.md"],
    "hub": ["data.name=someone/texts"],
    "own": ['compare.choices=["model.heads=2"]'],
}
OF_GROUPS = {**SCHEMAS, "suite": SUITES}
PARTS = [
    (group, option)
    for group, option in GROUPS
    if group.startswith("model/") or group in ("tokenizer", "data", "optimizer", "schedule")
]
SEVERAL_TYPES = ("devices",)


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
        parse(SUITES["training"], data.pop("suite"))
        del data["output"]
    parse(SCHEMAS["script"].get(root, TrainConfig), data)


@pytest.mark.parametrize(("group", "option"), CHOICES)
def test_every_choice_builds(group, option, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("To be, or not to be: that is the question.")
    composition = chosen(group, option)
    config = parse(TrainConfig, {key: plain(composition)[key] for key in keys_of(TrainConfig)})
    config.model.layers = 1
    model = checkpoint.build_model(config.model, vocab_size=50)
    assert isinstance(model, GPT)
    assert model(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 50)
    assert isinstance(build_part(config.optimizer)(model), torch.optim.Optimizer)
    assert 0 < build_part(config.schedule, max_steps=config.trainer.max_steps)(0) <= 1
    assert isinstance(build_part(config.data), Corpus)
    assert build_part(config.logger, save_dir=str(tmp_path)) is not None
    make_tokenizer = build_part(config.tokenizer)
    if option in ("byte", "char"):
        assert isinstance(make_tokenizer(["some text"]), Tokenizer)
    assert not list(tmp_path.glob("*/"))  # to build is to open nothing


@pytest.mark.parametrize("option", choices_of("data"))
def test_a_checkpoint_can_be_evaluated_on_every_corpus(option):
    config = composed(f"data={option}", *MUST_BE_GIVEN.get(option, []), root="evaluate")
    assert config.data == chosen("data", option).data


def test_every_schema_has_its_file_and_every_file_its_schema():
    files = {(group.removeprefix("model/"), option) for group, option in GROUPS}
    files |= {("script", root) for root in ROOTS}
    schemas = OF_GROUPS | {"script": {**SCHEMAS["script"], "benchmark": None}}
    assert files == {(group, option) for group, named in schemas.items() for option in named}


@pytest.mark.parametrize(("group", "option"), PARTS)
def test_the_types_of_a_part_are_those_of_its_parameters(group, option):
    schema = SCHEMAS[group.split("/")[-1]][option]
    target = get_object(vars(schema)["_target_"])
    parameters = inspect.signature(target, eval_str=True).parameters
    for name, expected in keys_of(schema).items():
        if name in parameters or "options" not in parameters:
            kind = get_args(expected)[0] if get_origin(expected) is Annotated else expected
            assert parameters[name].annotation == kind


@pytest.mark.parametrize(("option", "group"), [("attention",) * 2, ("positions", "position")])
def test_a_comparison_of_all_choices_leaves_none_out(option, group):
    compared = " ".join(chosen("compare", option).compare.choices).split()
    assert {f"model/{group}={name}" for name in SCHEMAS[group]} <= set(compared)


# --- no mistake goes unnoticed ---


@pytest.mark.parametrize(("group", "option"), GROUPS)
def test_a_misspelt_key_and_a_value_of_another_type_are_refused(group, option):
    """A word for a number, a list for a word; but some keys may be several things."""
    place = group.replace("/", ".")
    with pytest.raises(HydraException, match="misspelt"):
        chosen(group, option, f"{place}.misspelt=1")
    schema = OF_GROUPS[group.split("/")[-1]][option]
    data = plain(OmegaConf.select(chosen(group, option), place))
    parse(schema, data, place)
    with pytest.raises(UserError, match=rf"{place}\.misspelt: there is no such key"):
        parse(schema, data | {"misspelt": 1}, place)
    for name in keys_of(schema).keys() - SEVERAL_TYPES:
        wrong = [3 if isinstance(data[name], list | dict) else [1], {"a": 1}]
        for value in [*wrong, "many"] if isinstance(data[name], int | float) else wrong:
            with pytest.raises(UserError, match=re.escape(f"{place}.{name}")):
                parse(schema, data | {name: value}, place)


@pytest.mark.parametrize("mistake", ["sead=1", "modle=gpt", "modle/norm=rms", "experiment=no"])
def test_a_mistake_on_the_command_line_is_refused(mistake):
    with pytest.raises((HydraException, OmegaConfBaseException)):
        composed(mistake)


@pytest.mark.parametrize("mistake", ["sead: 1", "model: {heads: many}", "model: {norm: {a: 1}}"])
def test_a_mistake_in_an_experiment_is_refused(mistake, tmp_path):
    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    for name, line in (("good", "seed: 3"), ("bad", mistake)):
        (conf / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{line}\n")
    assert from_hydra(TrainConfig, composed("experiment=good", conf=conf)).seed == 3
    with pytest.raises(UserError):
        from_hydra(TrainConfig, composed("experiment=bad", conf=conf))


# --- what the values are ---

# train.py and config/train_shakespeare_char.py of nanoGPT, and its README's command for a CPU.
NANOGPT = {
    "model.bias": False,
    "model.qkv_bias": False,
    "model.tied_head": True,
    "model.scale_embedding": False,
    "model.position._target_": "headscope.nn.Learned",
    "tokenizer._target_": "headscope.data.tokenizer.char",
    "data._target_": "headscope.data.built_in.TinyShakespeare",
    "optimizer._target_": "headscope.training.optimizer.adamw",
    "optimizer.lr": 1e-3,
    "optimizer.weight_decay": 0.1,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.99,
    "schedule._target_": "headscope.training.schedule.warmup_cosine",
    "schedule.warmup_steps": 100,
    "trainer.accumulate": 1,
    "trainer.gradient_clip": 1.0,
}
SIZES = ["layers", "heads", "embed_dim", "block_size", "dropout"]


@pytest.mark.parametrize(
    ("experiment", "sizes", "batch_size", "max_steps"),
    [
        ("nanogpt_cpu", [4, 4, 128, 64, 0.0], 12, 2000),
        ("nanogpt_gpu", [6, 6, 384, 256, 0.2], 64, 5000),
    ],
)
def test_the_nanogpt_recipes_are_as_published(experiment, sizes, batch_size, max_steps):
    config = composed(f"experiment={experiment}")
    assert {key: OmegaConf.select(config, key) for key in NANOGPT} == NANOGPT
    assert [config.model[size] for size in SIZES] == sizes
    assert config.trainer.batch_size == batch_size
    assert config.trainer.max_steps == max_steps
    schedule = build_part(training_config(f"experiment={experiment}").schedule, max_steps=max_steps)
    assert config.optimizer.lr * schedule(max_steps) == pytest.approx(1e-4)


def test_widths_are_of_a_size_that_tensor_cores_take():
    for overrides in [[], *([f"experiment={name}"] for name in EXPERIMENTS)]:
        model = composed(*overrides).model
        assert model.embed_dim % 8 == 0
        assert model.embed_dim // model.heads % 8 == 0
