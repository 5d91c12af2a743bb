"""The laws of what fits: the fewest parts that fit are chosen, runs that cannot fit are refused
with settings that do fit, and a run keeps its batches."""

import re
import shlex
from dataclasses import replace
from functools import partial

import pytest
from composing import training_config
from running import SMALL
from torch import Tensor

from headscope import checkpoint
from headscope.config.training import TrainConfig
from headscope.data.machine import available_memory
from headscope.errors import UserError
from headscope.training.capacity import Capacity, changed, readable
from headscope.training.estimate import ERROR, estimate

SIZES = ["model.block_size=64", "model.embed_dim=32", "model.layers=3", "trainer.val_batch_size=1"]
ESTIMATED = partial(estimate, vocab_size=60, precision="32-true")


def config_of(*words: str) -> TrainConfig:
    return training_config("callbacks=plain", *SIZES, *words)


def enough_for(config: TrainConfig) -> float:
    """The smallest memory in which `config` certainly fits."""
    return ESTIMATED(config).peak * (1 + ERROR)


@pytest.mark.parametrize(("size", "parts"), [(12, 1), (12, 3), (30, 5), (7, 7)])
def test_the_fewest_parts_that_fit_are_chosen(size, parts):
    config = config_of(f"trainer.batch_size={size}")
    wanted = changed(config, batch_size=size // parts, accumulate=parts)
    found, needed = Capacity(enough_for(wanted), ESTIMATED).fewest_parts(config)
    assert (found, needed) == (wanted, ESTIMATED(wanted))


def test_the_smallest_parts_are_chosen_if_nothing_fits():
    found, _ = Capacity(1000, ESTIMATED).fewest_parts(config_of("trainer.batch_size=6"))
    assert (found.trainer.batch_size, found.trainer.accumulate) == (1, 6)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_devices_share_every_part(devices):
    estimated = partial(ESTIMATED, devices=devices)
    found, _ = Capacity(1000, estimated, devices).fewest_parts(config_of("trainer.batch_size=24"))
    assert (found.trainer.batch_size, found.trainer.accumulate) == (devices, 24 // devices)


def test_a_run_is_refused_only_if_it_certainly_does_not_fit():
    config = config_of()
    needed = ESTIMATED(config)
    fits, may_fit, cannot = (needed.peak * factor for factor in (1.16, 1.0, 0.84))
    assert Capacity(fits, ESTIMATED).check(config, needed) is None
    assert "may run out of memory" in (Capacity(may_fit, ESTIMATED).check(config, needed) or "")
    assert Capacity(cannot, ESTIMATED, error=0.4).check(config, needed) is not None
    with pytest.raises(UserError, match="only"):
        Capacity(cannot, ESTIMATED).check(config, needed)


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
    available = ESTIMATED(config).peak * share
    capacity = Capacity(available, ESTIMATED, fixed_batch=fixed)
    advice = capacity.advice(config)
    assert advice.startswith("set ")
    for setting in advice.removeprefix("set ").split(" or "):
        assert not (fixed and "batch_size=" in setting.replace("val_batch_size", ""))
        assert capacity.fits(ESTIMATED(config_of(*words, *shlex.split(setting))))


def test_no_setting_is_advised_if_none_fits():
    assert "smaller model" in Capacity(10, ESTIMATED).advice(config_of("trainer.batch_size=4"))


def test_memory_is_scarce_before_it_ends():
    needed = ESTIMATED(config_of())
    assert Capacity(1.9 * needed.peak, ESTIMATED).is_scarce(needed)
    assert not Capacity(2.1 * needed.peak, ESTIMATED).is_scarce(needed)
    many = replace(needed, step=replace(needed.step, forward=2.0**40))
    assert not Capacity(2.0**40 + 2.0**31, ESTIMATED).is_scarce(many)


def test_sizes_are_readable():
    assert readable(3.2 * 2**20) == "3 MiB"
    assert readable(1.5 * 2**30) == "1.5 GiB"


# --- in a run ---

QUICK = [*SMALL, "callbacks=plain", "~logger", "trainer.max_steps=2", "trainer.val_every_steps=2"]
RUN = "hydra.run.dir=run"


def batches_of(run: str) -> tuple[int, int]:
    trainer = checkpoint.config_of(checkpoint.read(checkpoint.find(run))).trainer
    return trainer.batch_size, trainer.accumulate


def weights_of(run: str) -> dict[str, Tensor]:
    return dict(checkpoint.model_weights(checkpoint.read(checkpoint.find(run))))


def test_a_run_that_cannot_fit_is_refused_before_it_starts(script, speeches):
    said = script("train", *QUICK, f"data.path={speeches}", "trainer.batch_size=1048576", RUN)
    assert said.code == 1
    assert re.fullmatch(
        r"Error: training needs about [\d,.]+ GiB of memory, but only [\d.]+ GiB are available: "
        r"set trainer.batch_size=\d+ trainer.accumulate=\d+.*\n",
        said.err,
    )
    assert "step 1 of" not in said.out


@pytest.mark.slow
def test_auto_splits_the_batch_and_the_run_keeps_the_parts(script, speeches, monkeypatch):
    words = [*QUICK, f"data.path={speeches}", "trainer.batch_size=8", "trainer.val_batch_size=1"]
    assert script("train", *words, "trainer.accumulate=auto", RUN).code == 0
    assert batches_of("run") == (8, 1)
    config = training_config(
        *QUICK, "trainer.val_batch_size=1", "trainer.batch_size=2", "trainer.accumulate=4"
    )
    limit = 1.01 * (1 + ERROR) * estimate(config, vocab_size=320, precision="32-true").peak
    with monkeypatch.context() as patched:
        patched.setattr("headscope.training.build.available_memory", lambda: limit)
        split = script("train", *words, "trainer.accumulate=auto", "hydra.run.dir=split")
    assert split.code == 0, split.err
    assert batches_of("split") == (2, 4)
    named = ["trainer.batch_size=2", "trainer.accumulate=4", "hydra.run.dir=named"]
    assert script("train", *words, *named).code == 0
    split_weights, named_weights = map(weights_of, ("split", "named"))
    assert all(split_weights[name].equal(weight) for name, weight in named_weights.items())
    assert available_memory() > 10 * limit  # so auto would now choose one part
    assert script("train", "resume=split", "trainer.max_steps=3").code == 0
    assert batches_of("split") == (2, 4)


@pytest.mark.parametrize("value", ["0", "1.5", "many", "true"])
def test_accumulate_is_auto_or_a_number(script, value):
    said = script("train", f"trainer.accumulate={value}")
    assert said.code == 1
    assert "trainer.accumulate=" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.slow
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
