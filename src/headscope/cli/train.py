"""The command train: the arguments for Hydra, the configuration of the run, and the run.

Hydra composes a resumed run from the user's arguments and the names of the run's choices, such as
`optimizer=muon`. Nothing else from the checkpoint goes through Hydra, because a checkpoint may come
from an untrusted source.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from headscope import stop
from headscope.cli import command_line
from headscope.cli.sweeps import SweepRun
from headscope.cli.words import MULTIRUN, quote, value_of, with_words
from headscope.data.machine import core_seconds, cores_of_others
from headscope.errors import UserError
from headscope.terminal import printable
from headscope.training import processes, run_folder

if TYPE_CHECKING:
    from headscope.config.training import TrainConfig
    from headscope.training.resume import ResumeCheckpoint

FIXED = (
    *("model", "tokenizer", "data", "seed", "init_from", "experiment", "name"),
    *("trainer.batch_size", "trainer.accumulate", "trainer.val_every_steps"),
)
"""Keys and groups that cannot change when a run is resumed."""

FIXED_CHOICES = ("optimizer",)
"""Groups whose choice cannot change, because the checkpoint contains the state of this choice. The
keys of the choice can change, such as `optimizer.lr`."""

CHOICES_FROM_RUN = ("optimizer", "schedule")
"""Groups for which Hydra gets the choice of the resumed run, because each choice has different
keys."""


def main() -> None:
    child, quiet = processes.starter() == "lightning", processes.rank() > 0
    if child:
        processes.end_with_first_process()
    with stop.stop_on_signal(quiet=quiet, with_parent=child):
        command_line.run(train, "train", prepare=arguments, report_sweep=report_sweep)


def report_sweep(runs: Sequence[SweepRun], folder: Path) -> None:
    """Prints a table of the runs, and writes it and a picture to the folder of the sweep."""
    from rich.console import Console

    from headscope.comparison.sweep import report

    report(runs, folder, Console())


# --- before Hydra composes the configuration ---


def arguments(typed: list[str], quoted: list[str]) -> list[str]:
    """The arguments for Hydra, given those of the user as typed and as quoted for Hydra.

    Raises UserError if there is nothing to resume, if an argument changes a key that must stay the
    same, or if `hydra.run.dir=` names a folder that already holds a run.
    """
    resumed, folder = value_of(typed, "resume"), value_of(typed, "hydra.run.dir")
    if resumed is not None:
        if folder is not None or MULTIRUN & set(typed):
            extra = "-m" if folder is None else "hydra.run.dir="
            raise UserError(
                f"resume={resumed} continues one run in its own folder: leave out {extra}"
            )
        return resume_arguments(resumed, quoted)
    if folder and run_folder.is_run(Path(folder)):
        raise already_a_run(folder)
    return quoted


def already_a_run(folder: str | Path) -> UserError:
    return UserError(
        f"hydra.run.dir={folder} already holds a run: continue it with resume={folder}, or name "
        "another folder"
    )


def resume_arguments(folder: str, quoted: list[str]) -> list[str]:
    """The user's arguments, the choices of the resumed run, and its folder as `hydra.run.dir`."""
    from headscope.training.resume import newest_checkpoint

    config = newest_checkpoint(Path(folder)).stored.config
    given = [argument for argument in quoted if not argument.startswith("resume=")]
    for argument in given:
        key = key_of(argument)
        fixed = [name for name in FIXED if key == name or key.startswith(f"{name}.")]
        fixed += [name for name in FIXED_CHOICES if key == name]
        if fixed:
            raise UserError(
                f"{argument}: {fixed[0]} cannot change in a resumed run; to change it, start a new "
                f"run from these weights with init_from={folder}"
            )
    choices = choices_from_run(config, {key_of(argument) for argument in given})
    words = with_words(given, [*choices, f"resume={quote(folder)}"])
    return [*words, f"hydra.run.dir={quote(folder)}"]


def choices_from_run(config: "TrainConfig", changed: set[str]) -> list[str]:
    """The choices of the resumed run, as arguments such as `schedule=linear`, for each group in
    `CHOICES_FROM_RUN` that the user does not change. They are names from `SCHEMAS`, even if the
    configuration was manipulated."""
    from headscope.config import SCHEMAS

    return [
        f"{group}={name}"
        for group in CHOICES_FROM_RUN
        if group not in changed
        for name, schema in SCHEMAS[group].items()
        if type(getattr(config, group)) is schema
    ]


def changed_keys(composed: Sequence[str]) -> list[str]:
    """The keys that the user changes in a resumed run. `composed` are the arguments from
    `resume_arguments`, where the user's own arguments come after `resume=`."""
    first = next(index for index, word in enumerate(composed) if word.startswith("resume="))
    return [key_of(word) for word in composed[first + 1 :]]


def key_of(argument: str) -> str:
    """The key of an argument `key=value`. The slashes in the name of a group become dots."""
    return argument.partition("=")[0].lstrip("+~").replace("/", ".")


# --- the configuration of the run ---


def configuration(composed: DictConfig) -> "tuple[TrainConfig, ResumeCheckpoint | None, list[str]]":
    """The configuration of the run, the checkpoint that it resumes from, and one line for each
    setting that the user changes in a resumed run."""
    from headscope import checkpoint
    from headscope.config import from_hydra
    from headscope.config.training import TrainConfig
    from headscope.training.resume import newest_checkpoint, resumed_config

    typed = list(HydraConfig.get().overrides.task)
    if composed.resume is None:
        return with_trained_model(from_hydra(TrainConfig, composed), typed), None, []
    plain: Any = OmegaConf.to_container(composed, resolve=True)
    resume = newest_checkpoint(Path(composed.resume))
    config, changes = resumed_config(plain, resume, changed_keys(typed))
    if processes.rank() == 0:
        lines = checkpoint.sources(config.data, "data")
        lines += checkpoint.sources(config.tokenizer, "tokenizer")
        if not any(word.startswith("store_dir=") for word in typed):
            lines.append(
                f"Using store_dir={config.store_dir}: name another folder of texts with store_dir="
            )
        for line in lines:
            print(printable(line), file=sys.stderr)
    return config, resume, changes


def with_trained_model(config: "TrainConfig", typed: Sequence[str]) -> "TrainConfig":
    """`config` with the tokenizer and the model settings of the checkpoint that `config.init_from`
    selects, so that nobody has to repeat them. Unchanged without `init_from`.

    A key in `typed`, such as `model.dropout=0.1`, keeps the value that it has in `config`. If the
    arguments choose a part of the model, such as `model/norm=rms` or `model=gpt2`, they describe
    the whole model. Raises UserError if they choose another tokenizer, which the weights do not
    fit.
    """
    from headscope import checkpoint
    from headscope.config import parse
    from headscope.config.model import ModelConfig
    from headscope.training.resume import set_at, value_at

    if config.init_from is None:
        return config
    keys = [word.partition("=")[0].lstrip("+~") for word in typed]
    stored = checkpoint.read(checkpoint.find(config.init_from, key="init_from")).config
    chosen = [word for word in typed if word.lstrip("+").startswith("tokenizer")]
    if chosen and config.tokenizer != stored.tokenizer:
        own = {name: value for name, value in vars(stored.tokenizer).items() if name[0] != "_"}
        own = {"tokenizer": stored.tokenizer._target_.rpartition(".")[2], **own}
        raise UserError(
            f"{' '.join(chosen)}: the weights of init_from={config.init_from} need their own "
            f"tokenizer ({', '.join(f'{name}={value}' for name, value in own.items())}): leave "
            "tokenizer= out"
        )
    config = replace(config, tokenizer=stored.tokenizer)
    if any(key.split("/")[0] == "model" for key in keys):
        return config
    model, given = asdict(stored.model), asdict(config.model)
    for key in keys:
        group, _, rest = key.partition(".")
        if group == "model":
            set_at(model, rest, value_at(given, rest))
    return replace(config, model=parse(ModelConfig, model, "model"))


# --- the run ---


def train(composed: DictConfig) -> float:
    """Trains a model as the configuration `composed` says. Returns the final validation loss."""
    sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    return run(composed, sweep=sweep)[1]["val_loss"]


def run(
    composed: DictConfig, *, sweep: bool = False, in_python: bool = False
) -> tuple[Path, dict[str, Any]]:
    """Trains a model as the configuration `composed` says. Returns the run folder and the content
    of its summary.json. The runs of a `sweep` continue automatically. They, and a run `in_python`,
    use one device each."""
    started, hydra = core_seconds(), HydraConfig.get()
    folder = command_line.run_folder() if composed.resume is None else Path(composed.resume)
    again = "the same command" if sweep else run_folder.how_to_resume(folder, composed.parts)
    if in_python:
        again = f"headscope.train({run_folder.resume_words(folder, composed.parts)})"
    in_use = nullcontext() if processes.rank() else run_folder.in_use(folder, again=again)
    with in_use, processes.report_lost_process(folder, again):
        # These imports are slow, and --help and errors in the command line do not need them.
        from headscope.files import read_summary
        from headscope.training import console as output
        from headscope.training.build import build
        from headscope.training.resume import check_same_config, newest_checkpoint
        from headscope.training.run import fit

        console = output.new_console(quiet=processes.rank() > 0)
        say = partial(console.print, soft_wrap=True, markup=False, highlight=False)
        config, resume, changes = configuration(composed)
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
            if resume is None:
                run_folder.save_configuration(folder, composed, list(hydra.overrides.task))
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
