"""The laws of what fits: the fewest parts that fit are chosen, runs that cannot fit are refused
with settings that do fit, and a run keeps its batches. The numbers of scripts/estimate.py agree
with each other and with the model, and more devices need less of each."""

import json
import re
import shlex
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from checkpoint_files import assert_same_weights, configuration, content, save
from composing import training_config
from running import SMALL

from headscope import checkpoint
from headscope.config.training import TrainConfig
from headscope.data.machine import available_memory
from headscope.errors import UserError
from headscope.training.fit import ERROR, Capacity, changed
from headscope.training.flops import training_flops
from headscope.training.memory import estimate

SIZES = ["model.block_size=64", "model.embed_dim=32", "model.layers=3", "trainer.val_batch_size=1"]
ESTIMATED = partial(estimate, vocab_size=60, precision="32-true", traces={})


def config_of(*words: str) -> TrainConfig:
    return training_config("callbacks=plain", *SIZES, *words)


def enough_for(config: TrainConfig) -> float:
    """The smallest memory in which `config` certainly fits."""
    return ESTIMATED(config).peak * (1 + ERROR)


@pytest.mark.parametrize(
    ("size", "accumulate", "parts"), [(12, 1, 1), (12, "auto", 3), (30, 2, 5), (7, "auto", 7)]
)
def test_the_fewest_parts_that_fit_are_chosen(size, accumulate, parts):
    config = config_of(f"trainer.batch_size={size}", f"trainer.accumulate={accumulate}")
    before = 1 if accumulate == "auto" else accumulate
    wanted = changed(config, batch_size=size // parts, accumulate=before * parts)
    assert Capacity(enough_for(wanted), ESTIMATED).fewest_parts(config) == wanted


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_the_smallest_parts_are_chosen_if_nothing_fits_and_devices_share_them(devices):
    estimated = partial(ESTIMATED, devices=devices)
    found = Capacity(1000, estimated, devices).fewest_parts(config_of("trainer.batch_size=24"))
    assert (found.trainer.batch_size, found.trainer.accumulate) == (devices, 24 // devices)


def test_a_run_is_refused_only_if_it_certainly_does_not_fit():
    config = config_of()
    fits, may_fit, cannot = (ESTIMATED(config).peak * factor for factor in (1.16, 1.0, 0.84))
    assert Capacity(fits, ESTIMATED).check(config, ESTIMATED(config)) is None
    assert "may run out of memory" in (
        Capacity(may_fit, ESTIMATED).check(config, ESTIMATED(config)) or ""
    )
    assert Capacity(cannot, ESTIMATED, error=0.4).check(config, ESTIMATED(config)) is not None
    with pytest.raises(UserError, match="only"):
        Capacity(cannot, ESTIMATED).check(config, ESTIMATED(config))


@pytest.mark.parametrize(
    ("words", "share", "fixed"),
    [
        (["trainer.batch_size=32"], 0.5, False),
        (["trainer.batch_size=32", "model.layers=12"], 0.3, True),
        (["trainer.val_batch_size=200", "trainer.batch_size=1"], 0.3, False),
        (["callbacks=default", "model.block_size=256", "trainer.batch_size=1"], 0.5, False),
        (["trainer.batch_size=64", "trainer.loss_chunk_tokens=null"], 0.06, False),
    ],
)
def test_the_advised_settings_fit(words, share, fixed):
    config = config_of(*words)
    assert "smaller model" in Capacity(10, ESTIMATED).advice(config)
    available = ESTIMATED(config).peak * share
    capacity = Capacity(available, ESTIMATED, fixed_batch=fixed)
    advice = capacity.advice(config)
    assert advice.startswith("set ")
    for setting in advice.removeprefix("set ").split(" or "):
        assert not (fixed and "batch_size=" in setting.replace("val_batch_size", ""))
        assert capacity.fits(ESTIMATED(config_of(*words, *shlex.split(setting))))


def test_memory_is_scarce_before_it_ends():
    needed = ESTIMATED(config_of())
    assert Capacity(1.9 * needed.peak, ESTIMATED).is_scarce(needed)
    assert not Capacity(2.1 * needed.peak, ESTIMATED).is_scarce(needed)
    many = replace(needed, peaks={"forward": 2.0**40})
    assert not Capacity(2.0**40 + 2.0**31, ESTIMATED).is_scarce(many)


# --- in a run ---

QUICK = [*SMALL, "callbacks=plain", "~logger", "trainer.max_steps=2", "trainer.val_every_steps=2"]
RUN = "hydra.run.dir=run"


def batches_of(run: str) -> tuple[int, int]:
    trainer = checkpoint.read(checkpoint.find(run)).config.trainer
    return trainer.batch_size, trainer.accumulate


def test_a_run_that_cannot_fit_is_refused_before_it_starts(script, speeches):
    said = script("train", *QUICK, f"data.path={speeches}", "trainer.batch_size=1048576", RUN)
    assert said.code == 1
    advice = (
        r"Error: training needs .* GiB are available: set trainer.batch_size=\d+ trainer.acc.*\n"
    )
    assert re.fullmatch(advice, said.err)
    assert "step 1 of" not in said.out


def test_auto_splits_the_batch_and_the_run_keeps_the_parts(script, speeches, monkeypatch):
    words = [*QUICK, f"data.path={speeches}", "trainer.batch_size=8", "trainer.val_batch_size=1"]
    assert script("train", *words, "trainer.accumulate=auto", RUN).code == 0
    assert batches_of("run") == (8, 1)
    parts = ["trainer.batch_size=2", "trainer.accumulate=4"]
    config = training_config(*QUICK, "trainer.val_batch_size=1", *parts)
    limit = 1.01 * (1 + ERROR) * estimate(config, vocab_size=320, precision="32-true").peak
    with monkeypatch.context() as patched:
        patched.setattr("headscope.training.build.available_memory", lambda: limit)
        split = script("train", *words, "trainer.accumulate=auto", "hydra.run.dir=split")
    assert split.code == 0, split.err
    assert batches_of("split") == (2, 4)
    assert script("train", *words, *parts, "hydra.run.dir=named").code == 0
    assert_same_weights("split", "named")
    assert available_memory() > 10 * limit  # so auto would now choose one part
    assert script("train", "resume=split", "trainer.max_steps=3").code == 0
    assert batches_of("split") == (2, 4)


def test_the_same_sweep_with_auto_finds_its_runs_finished(script, speeches):
    words = [*QUICK, f"data.path={speeches}", "trainer.batch_size=4", "trainer.accumulate=auto"]
    for _ in range(2):
        said = script("train", "-m", *words, "seed=1,2", "hydra.sweep.dir=sweep")
        assert said.code == 0, said.err
    assert said.out.count("already finished") == 2
    assert batches_of("sweep/0") == (4, 1)
    other = [word.replace("batch_size=4", "batch_size=8") for word in words]
    said = script("train", "-m", *other, "seed=1,2", "hydra.sweep.dir=sweep")
    assert "other settings of trainer" in said.err


# --- scripts/estimate.py ---

GPU = ["callbacks=plain", "optimizer=adamw", "estimate.gpu_gib=80", "estimate.tflops=100"]


@pytest.fixture
def plan(script):
    def planned(*words: str) -> dict[str, Any]:
        said = script("estimate", *GPU, *words)
        assert said.code == 0, said.err
        return json.loads(said.out)

    return planned


def test_the_numbers_agree(plan):
    found = plan("tokenizer=gpt2", "trainer.accumulate=2", "estimate.tokens=1e7")
    config = training_config(*GPU[:2])
    model = checkpoint.build_model(config.model, vocab_size=50257)
    assert found["parameters"] == model.parameter_count()
    assert found["tokens_per_step"] == 12 * 2 * 64
    assert 1e7 <= found["tokens"] < 1e7 + found["tokens_per_step"]
    assert found["tokens"] == found["steps"] * found["tokens_per_step"]
    assert found["flops"] == training_flops(model) * found["tokens"]
    seconds = found["flops"] / (100e12 * 0.4)
    assert found["hours"] == pytest.approx(seconds / 3600, rel=1e-3)
    assert found["seconds_per_step"] == pytest.approx(seconds / found["steps"], rel=1e-3)
    assert found["peak_gib"] == max(found["peaks_gib"].values())
    assert found["checkpoint_gb"] == pytest.approx(3 * 4 * found["parameters"] / 1e9, abs=1e-3)
    assert found["text_gb"] == pytest.approx(2 * found["tokens"] / 1e9, abs=1e-3)
    assert found["precision"] == "bf16-mixed"
    assert found["fits"] is True


def test_devices_share_the_work_and_with_fsdp_the_model(plan):
    wide = ["model.embed_dim=1024", "model.layers=24", "model.heads=16", "trainer.batch_size=8"]
    one, ddp, fsdp = (
        plan(*wide, f"estimate.devices={devices}", f"estimate.strategy={strategy}")
        for devices, strategy in ((1, "ddp"), (8, "ddp"), (8, "fsdp"))
    )
    assert one["sent_gb_per_step"] == 0
    assert one["flops"] == ddp["flops"] == fsdp["flops"]
    assert one["hours"] == pytest.approx(8 * ddp["hours"], rel=1e-3)
    assert ddp["memory_gib"]["optimizer"] == one["memory_gib"]["optimizer"]
    shared = 8 * fsdp["memory_gib"]["optimizer"]
    assert shared == pytest.approx(one["memory_gib"]["optimizer"], abs=0.01)
    assert fsdp["peak_gib"] < ddp["peak_gib"]
    assert fsdp["sent_gb_per_step"] == pytest.approx(1.5 * ddp["sent_gb_per_step"], abs=0.002)
    assert fsdp["checkpoint_gb"] == ddp["checkpoint_gb"] == one["checkpoint_gb"]


def test_auto_splits_for_the_planned_device(plan):
    words = ["model.embed_dim=1024", "trainer.batch_size=512", "trainer.accumulate=auto"]
    large, small = plan(*words), plan(*words, "estimate.gpu_gib=2")
    assert large["batch_size"] * large["accumulate"] == 512
    assert small["batch_size"] * small["accumulate"] == 512
    assert large["accumulate"] < small["accumulate"]
    assert large["fits"] is small["fits"] is True


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("estimate.devices=0", "estimate.devices=0 must be at least 1"),
        ("estimate.devices=5", "trainer.batch_size=12 must be a multiple of the number of devices"),
        ("estimate.strategy=zero", "must be one of ddp, fsdp"),
        ("tokenizer=char", "give its size"),
    ],
)
def test_a_mistake_is_one_line(script, word, said):
    answer = script("estimate", word)
    assert answer.code == 1
    assert answer.err.startswith("Error: ")
    assert answer.err.count("\n") == 1
    assert said in answer.err


def test_a_run_from_trained_weights_has_their_model_and_vocabulary(plan, tmp_path):
    trained, model = content(configuration("model.embed_dim=24", "model.layers=3"))
    save(trained, tmp_path / "best.safetensors")
    start = f"init_from={tmp_path}/best.safetensors"
    found = plan(start, "experiment=finetune")
    assert found["parameters"] == model.parameter_count()
    assert found["tokens_per_step"] == 8 * found["accumulate"] * model.block_size
    other = plan(start, "model.block_size=4", "estimate.vocab_size=1000")
    assert other["tokens_per_step"] == 12 * 4
    assert other["parameters"] == found["parameters"] + (1000 - 257) * 24
