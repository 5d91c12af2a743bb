"""Training time, compilation, precision and TF32 on a run's device."""

import json
import os
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from running import ROOT, SMALL, summary

import headscope
from headscope.nn.precision import tf32
from headscope.training import module

SHORT = [*SMALL, "trainer.max_steps=6", "trainer.val_every_steps=2", "hydra.run.dir=outputs/run"]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", ["null", "100"])
def test_compilation_is_not_training_time_and_happens_once(script, speeches, monkeypatch, chunk):
    """Validation, samples and pictures of heads do not compile the training step again."""
    torch._dynamo.reset()
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="eager"))  # no C compiler
    compile_in_place, frames = module.compile_in_place, torch._dynamo.utils.counters["frames"]
    compile_objective = module.LanguageModel.compile_objective
    compiled_frames, training_seconds = [], []

    def compile_slowly(*args: object) -> str | None:
        problem = compile_in_place(*args)  # type: ignore[arg-type]
        time.sleep(1)
        compiled_frames.append(frames["total"])
        return problem

    def timed(self: module.LanguageModel, *args: object) -> None:
        before = self.timer.seconds()
        compile_objective(self, *args)  # type: ignore[arg-type]
        training_seconds.append(self.timer.seconds() - before)
        assert self.timer.running_since is not None

    monkeypatch.setattr(module, "compile_in_place", compile_slowly)
    monkeypatch.setattr(module.LanguageModel, "compile_objective", timed)
    words = [f"data.path={speeches}", "trainer.compile=true", f"trainer.loss_chunk_tokens={chunk}"]
    hold = ["callbacks.hold.heads=[L0H0]", "callbacks.hold.from_step=2"]  # switched by a buffer
    said = script("train", *SHORT, *words, *hold)
    assert (said.code, said.err) == (0, "")
    assert "not compiled" not in said.out
    assert compiled_frames[0] > 0
    assert [frames["total"]] == compiled_frames
    assert training_seconds[0] < 1


@pytest.mark.slow
def test_without_a_compiler_the_package_to_install_is_named(speeches, tmp_path):
    (tmp_path / "empty").mkdir()
    environment = {name: text for name, text in os.environ.items() if name not in ("CC", "CXX")}
    environment |= {"PATH": str(tmp_path / "empty"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for code, script, *words in (
        (0, "train", *SHORT, f"data.path={speeches}", "trainer.compile=true"),
        (1, "sample", "checkpoint=outputs/run", "compile=true"),
    ):
        command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *words]
        said = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert said.returncode == code, said.stderr
        [line] = [line for line in (said.stdout + said.stderr).splitlines() if "compile" in line]
        assert "apt install g++" in line


@pytest.mark.parametrize("own", ["bf16-mixed", "bf16"])
def test_evaluation_uses_the_precision_of_training(script, speeches, own):
    precision = {"bf16": "bf16-true"}.get(own, own)
    words = [f"data.path={speeches}", f"trainer.precision={precision}", "callbacks=plain"]
    reported = headscope.train([*SHORT, *words]).summary
    assert reported["precision"] == precision
    last = "checkpoint=outputs/run/checkpoints/last.safetensors"
    auto, same, other = (
        json.loads(script("evaluate", last, *words).out)["loss_nats_per_token"]
        for words in ([], [f"precision={own}"], ["precision=fp32"])
    )
    assert auto == same == pytest.approx(reported["val_loss"], rel=1e-7)
    assert auto != other


def test_tf32_is_enabled_only_for_the_device_of_the_run(speeches, monkeypatch):
    """It stays off in a run on the CPU of a machine with a GPU."""
    with tf32(torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    settings, step = [], module.LanguageModel.training_step

    def recorded(*given):
        settings.append(torch.get_float32_matmul_precision())
        return step(*given)

    monkeypatch.setattr(module.LanguageModel, "training_step", recorded)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # asks the driver
    headscope.train([*SHORT, "trainer.accelerator=cpu", f"data.path={speeches}", "callbacks=plain"])
    assert set(settings) == {"highest"}


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_on_a_gpu_a_compiled_run_and_evaluation_report_the_same_loss(script, speeches, precision):
    words = [f"data.path={speeches}", f"trainer.precision={precision}", "trainer.compile=true"]
    said = script("train", *SHORT, "trainer.accelerator=gpu", *words)
    assert (said.code, "not compiled" in said.out) == (0, False), said.err
    said = script("evaluate", "checkpoint=outputs/run/checkpoints/last.safetensors", "device=cuda")
    found = json.loads(said.out)["loss_nats_per_token"]
    assert found == pytest.approx(summary("outputs/run")["val_loss"], rel=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", ["true", "false"])
def test_on_a_gpu_out_of_memory_is_one_line(script, speeches, compiled):
    torch.cuda.empty_cache()
    free_bytes = torch.cuda.memory_reserved() + 2**28  # enough for the matrix product of the plan
    torch.cuda.set_per_process_memory_fraction(free_bytes / torch.cuda.mem_get_info()[1])
    words = ["trainer.accelerator=gpu", f"trainer.compile={compiled}", "trainer.batch_size=8192"]
    try:
        said = script("train", *SHORT, *words, f"data.path={speeches}")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    said.refused("out of memory after step 0: lower trainer.batch_size=8192")


@pytest.mark.gpu
def test_on_a_gpu_a_seed_gives_the_same_text_again_compiled_too(script, speeches):
    """The peak memory of the run is its own."""
    torch.empty(2**30, dtype=torch.uint8, device="cuda")  # 1 GiB, freed at once
    words = ["trainer.accelerator=gpu", "trainer.compile=false", f"data.path={speeches}"]
    assert 0 < headscope.train([*SHORT, *words]).summary["peak_memory_mib"] < 1024
    words = ["checkpoint=outputs/run", "device=cuda", "max_new_tokens=40", "seed=3"]
    said = [script("sample", *words, *more) for more in ([], [], ["compile=true"])]
    assert all(each.code == 0 and "in fp32" in each.err for each in said)
    assert len({each.out for each in said}) == 1
