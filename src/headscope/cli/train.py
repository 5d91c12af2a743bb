"""The command train: composed configuration -> checked configuration -> run.

Hydra composes a resumed run from the user's words alone. Nothing of the checkpoint goes through
Hydra, because a checkpoint may come from an untrusted source.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from headscope import stop
from headscope.cli import command_line
from headscope.cli.command_line import MULTIRUN, WRITES_NOTHING, forced, value_of
from headscope.cli.sweeps import runs_in
from headscope.data.machine import core_seconds, cores_of_others
from headscope.errors import UserError
from headscope.training import processes, run_folder

if TYPE_CHECKING:
    from headscope.config.training import TrainConfig
    from headscope.training.resume import ResumeCheckpoint

FIXED = (
    *("model", "tokenizer", "data", "seed", "init_from", "experiment", "name", "optimizer"),
    *("trainer.batch_size", "trainer.accumulate", "trainer.val_every_steps"),
)
"""Keys and groups that cannot change when a run is resumed. The choice of an optimizer cannot, but
its keys can, such as `optimizer.lr`."""


def main() -> None:
    child, quiet = processes.starter() == "lightning", processes.rank() > 0
    if child:
        processes.end_with_first_process()
    with stop.stop_on_signal(quiet=quiet, with_parent=child):
        command_line.run(train, "train", prepare=arguments, report_sweep=report_sweep)


def report_sweep(folder: Path) -> bool:
    """Prints a table of the runs, and writes it to the folder of the sweep."""
    from rich.console import Console

    from headscope.comparison.sweep import report

    return report(runs_in(folder), folder, Console())


def train(composed: DictConfig) -> float:
    """Trains a model as the configuration `composed` says. Returns the final validation loss."""
    sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    return run(composed, sweep=sweep)[1]["val_loss"]


def run(
    composed: DictConfig, *, sweep: bool = False, in_python: bool = False, quiet: bool = False
) -> tuple[Path, dict[str, Any]]:
    """Trains a model as the configuration `composed` says. Returns the run folder and the content
    of its summary.json. The runs of a `sweep` continue automatically. They, and a run `in_python`,
    use one device each. `quiet` prints nothing but warnings."""
    started = core_seconds()
    # These imports are slow, and --help and errors in the command line do not need them.
    from headscope.files import read_summary
    from headscope.training import console as output
    from headscope.training.build import build
    from headscope.training.resume import check_same_config, newest_checkpoint
    from headscope.training.run import fit

    folder = command_line.run_folder() if composed.resume is None else Path(composed.resume)
    try:
        config, resume, changes = configuration(composed)
    except Exception:
        if composed.resume is None and not sweep:
            run_folder.remove_unused(folder)  # Hydra has just made it
        raise
    again = "the same command" if sweep else run_folder.how_to_resume(folder, config)
    if in_python:
        again = f"headscope.train({run_folder.resume_words(folder, config)})"
    console = output.new_console(quiet=quiet or processes.rank() > 0)
    say = partial(console.print, soft_wrap=True, markup=False, highlight=False)
    in_use = run_folder.in_use(folder, again=again, say=say if sweep else None)
    with (
        in_use if processes.rank() == 0 else nullcontext(),
        processes.report_lost_process(folder, again),
    ):
        if resume and processes.rank() == 0:
            print_sources(config)
        connected = processes.connect(config.trainer, alone=sweep or in_python)
        folder = connected.from_first(folder)
        if resume is None and run_folder.is_run(folder):
            resume = newest_checkpoint(folder)
            if not sweep:
                raise already_a_run(folder)
            check_same_config(resume, config)
            if summary := read_summary(folder):
                say(f"{run_folder.shown(folder)} is already finished")
                return folder, summary
        try:
            run = build(config, folder=folder, console=console, resume=resume, processes=connected)
        except UserError as error:
            if resume is None or str(resume.path) in str(error):
                raise
            raise UserError(f"{resume.path}: {error}") from error
        if connected.is_first:
            run_folder.remove_leftovers(folder)
        output.print_plan(run, changes)
        output.print_busy_machine(run, cores_of_others(started))
        try:
            summary = fit(run)
        except stop.Interrupted:
            say(f"Saved at step {run.trainer.global_step:,}. To continue: {again}")
            if not connected.is_first:
                sys.exit(0)  # the exit code of the run is that of the first process
            raise
        output.print_results(run, summary)
        return folder, summary


# --- the words, before Hydra composes the configuration ---


def arguments(words: list[str]) -> list[str]:
    """The words for Hydra. Raises UserError if a word changes what must stay the same in a resumed
    run, or if `hydra.run.dir=` names a folder that another run uses or has used."""
    resumed, folder = value_of(words, "resume"), value_of(words, "hydra.run.dir")
    if resumed is None:
        if folder and run_folder.is_run(Path(folder)):
            raise already_a_run(folder)
        if folder and Path(folder).is_dir():
            with run_folder.locked(Path(folder)):
                pass  # before Hydra writes to it
        return words
    if folder is not None or MULTIRUN & {*words}:
        extra = "-m" if folder is None else "hydra.run.dir="
        raise UserError(f"resume={resumed} continues one run in its own folder: leave out {extra}")
    for word in words:
        key = dotted_key(word)
        inside = [name for name in FIXED if key.startswith(f"{name}.") and name != "optimizer"]
        fixed = [name for name in FIXED if key == name] + inside
        if fixed:
            raise UserError(
                f"{word}: {fixed[0]} cannot change in a resumed run; to change it, start a new run "
                f"from these weights with init_from={resumed}"
            )
    return [*forced(words), *WRITES_NOTHING]


def already_a_run(folder: str | Path) -> UserError:
    return UserError(
        f"hydra.run.dir={folder} already holds a run: continue it with resume={folder}, or name "
        "another folder"
    )


def dotted_key(word: str) -> str:
    """The key of an override. The slashes in the name of a group become dots."""
    return command_line.key_of(word).replace("/", ".")


# --- the configuration of the run ---


def configuration(composed: DictConfig) -> "tuple[TrainConfig, ResumeCheckpoint | None, list[str]]":
    """The checked configuration of the run, the checkpoint that it resumes from, and one line for
    each setting that the user changes in a resumed run."""
    from headscope.config import from_hydra
    from headscope.config.training import TrainConfig
    from headscope.training.resume import newest_checkpoint, resumed_config

    words = list(HydraConfig.get().overrides.task)
    if composed.resume is None:
        return with_trained_model(from_hydra(TrainConfig, composed), words), None, []
    plain: Any = OmegaConf.to_container(composed, resolve=True)
    resume = newest_checkpoint(Path(composed.resume))
    keys = [key for key in map(dotted_key, words) if key != "resume"]
    config, changes = resumed_config(plain, resume, keys)
    return config, resume, changes


def print_sources(config: "TrainConfig") -> None:
    """Prints the files that a resumed run reads because its checkpoint names them."""
    from headscope import checkpoint
    from headscope.terminal import printable

    lines = checkpoint.sources(config.data, "data")
    lines += checkpoint.sources(config.tokenizer, "tokenizer")
    if not any(word.startswith("++store_dir=") for word in HydraConfig.get().overrides.task):
        lines.append(
            f"Using store_dir={config.store_dir}: name another folder of texts with store_dir="
        )
    for line in lines:
        print(printable(line), file=sys.stderr)


def with_trained_model(config: "TrainConfig", words: Sequence[str]) -> "TrainConfig":
    """`config` with the tokenizer and the model settings of the checkpoint that `config.init_from`
    selects, so that nobody has to repeat them. Unchanged without `init_from`.

    A key in `words`, such as `model.dropout=0.1`, keeps the value that it has in `config`. If the
    words choose a part of the model, such as `model/norm=rms` or `model=gpt2`, they describe the
    whole model. Raises UserError if they choose another tokenizer, which the weights do not fit.
    """
    from headscope import checkpoint
    from headscope.config import defaults_in_conf, parse_part
    from headscope.training.resume import set_at, value_at

    if config.init_from is None:
        return config
    stored = checkpoint.read(checkpoint.find(config.init_from, key="init_from")).config
    chosen = [word for word in words if dotted_key(word).partition(".")[0] == "tokenizer"]
    if chosen and config.tokenizer != stored.tokenizer:
        part = dict(stored.tokenizer or {"_target_": "imported"})
        target = part.pop("_target_")
        named = defaults_in_conf("tokenizer").get(target, {}).get("choice", target)
        own = ", ".join(f"{key}={value}" for key, value in {"tokenizer": named, **part}.items())
        raise UserError(
            f"{' '.join(chosen)}: the weights of init_from={config.init_from} need their own "
            f"tokenizer ({own}): leave tokenizer= out"
        )
    config = replace(config, tokenizer=stored.tokenizer)
    keys = [command_line.key_of(word) for word in words]
    if any(key.split("/")[0] == "model" for key in keys):
        return config
    model = deepcopy(stored.model)
    for group, _, rest in (key.partition(".") for key in keys):
        if group == "model":
            set_at(model, rest, value_at(config.model, rest))
    return replace(config, model=parse_part(model, "model", composed=False))
