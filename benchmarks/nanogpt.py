"""Runs the train.py of a nanoGPT checkout in a separate process, for suite=race."""

import pickle
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.runner import Request
from headscope.cli.bare_loop import built
from headscope.conversion.nanogpt import read_model
from headscope.data.store import TokenStore
from headscope.errors import UserError
from headscope.trained.evaluation import ValidationText, evaluate

FILES = ("train.py", "model.py", "configurator.py", "config/train_shakespeare_char.py")
MAX_STEPS = 2000
SETTINGS = (
    *("--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1", "--block_size=64"),
    *("--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128", "--dropout=0.0"),
    *("--out_dir=out", "--always_save_checkpoint=True"),
)
"""The options of the CPU recipe in nanoGPT's README, and those that save the last checkpoint. The
recipe also sets max_iters and lr_decay_iters to MAX_STEPS."""


def check_nanogpt(checkout: Path) -> None:
    """Raises UserError when one of nanoGPT's files is missing in `checkout`."""
    for name in FILES:
        if not (checkout / name).is_file():
            raise UserError(f"suite.nanogpt={checkout} has no {name}: name a checkout of nanoGPT")


def train_nanogpt(
    checkout: Path, request: Request, seed: int
) -> tuple[int, list[dict[str, float]]]:
    """Train nanoGPT on the tokens of the run, as a `Train` function of suite=race with a single
    `Mark`, at the last step.

    headscope computes the loss from the last checkpoint. nanoGPT always uses its own seed, so
    `seed` has no effect.
    """
    steps = min(request.suite.max_steps or MAX_STEPS, MAX_STEPS)
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = built(request.run, folder).data.store
        for file in FILES:
            (folder / file).parent.mkdir(exist_ok=True)
            shutil.copy(checkout / file, folder / file)
        write_data(store, folder / "data" / "shakespeare_char")
        # nanoGPT saves only when it evaluates, so it must evaluate after the last step.
        ends = ("max_iters", "lr_decay_iters", "eval_interval")
        log = run_script(folder, [FILES[-1], *SETTINGS, *(f"--{key}={steps}" for key in ends)])
        seconds = training_seconds(log, steps)
        model, _, _ = read_model(folder / "out" / "ckpt.pt")
        text = ValidationText(store.validation, store.tokenizer.byte_lengths())
        loss = evaluate(model, text, batch_size=16)["loss_nats_per_token"]
    return model.parameter_count(), [{"step": steps, "seconds": seconds, "loss": loss}]


def write_data(store: TokenStore, folder: Path) -> None:
    """Write the tokens of both splits in the file format of nanoGPT's prepare.py."""
    if store.train.dtype != "uint16":
        raise UserError("nanoGPT stores tokens as uint16: choose a vocabulary below 65,536")
    folder.mkdir(parents=True)
    store.train.tofile(folder / "train.bin")
    store.validation.tofile(folder / "val.bin")
    meta = {"vocab_size": store.tokenizer.vocab_size}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def run_script(folder: Path, arguments: list[str]) -> str:
    """Run train.py in `folder` and return what it prints. Raises UserError when train.py fails."""
    command = [sys.executable, "train.py", *arguments]
    pipe, to_pipe = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, cwd=folder, stdout=pipe, stderr=to_pipe, text=True, check=False)
    if done.returncode:
        last = (done.stdout.splitlines() or ["it printed nothing"])[-1]
        raise UserError(f"suite.nanogpt: train.py failed: {last}")
    return done.stdout


def training_seconds(log: str, steps: int) -> float:
    """The seconds of `steps` iterations, from the log of nanoGPT's train.py. nanoGPT evaluates
    before the first and after the last of them. The logged time of the first one includes this, so
    the mean of the others counts for it. Raises UserError when a time is missing."""
    times = [float(time) for time in re.findall(r"^iter \d+: .*time ([\d.]+)ms", log, re.M)]
    if len(times) < steps:
        raise UserError(
            f"suite.nanogpt: the log of train.py does not have the times of {steps} iterations: "
            "this version of nanoGPT is not supported"
        )
    return statistics.fmean(times[1:steps] or times) * steps / 1e3
