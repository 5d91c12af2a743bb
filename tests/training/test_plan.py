"""The laws of scripts/estimate.py: the numbers agree with each other and with the model, and more
devices need less of each."""

import json
from typing import Any

import pytest
from checkpoint_files import configuration, content, save
from composing import training_config

from headscope import checkpoint
from headscope.training.flops import training_flops

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
    assert 8 * fsdp["memory_gib"]["optimizer"] == pytest.approx(
        one["memory_gib"]["optimizer"], abs=0.01
    )
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


def test_a_model_larger_than_this_machine_can_be_planned(plan):
    huge = ["model.embed_dim=16384", "model.layers=120", "model.heads=128", "estimate.gpu_gib=96"]
    assert plan(*huge)["fits"] is False


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("estimate.devices=0", "estimate.devices=0 must be above 0"),
        ("estimate.devices=5", "trainer.batch_size=12 must be a multiple of estimate.devices=5"),
        ("estimate.mfu=-1", "estimate.mfu=-1.0 must be above 0"),
        ("estimate.strategy=zero", "must be one of ddp, fsdp"),
        ("tokenizer=char", "give its size"),
        ("trainer.batch_size=0", "trainer.batch_size=0 must be at least 1"),
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
