"""The command compare: a sweep over choices of several words and over seeds, and its table."""

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hydra import compose
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from headscope.cli import command_line, sweeps, train
from headscope.cli.sweeps import SweepRun, report_unfinished
from headscope.cli.words import implied_data, key_of, quote, quoted, value_of
from headscope.config.parse import Count, Positive, parse
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.stop import Interrupted
from headscope.training.run_folder import is_run, shown

COMPARISON_KEYS = ("compare", "seeds", "speed_rounds", "name")
"""Keys that belong to the comparison. They are not passed on to its runs."""

KEYS = [each.name for each in fields(TrainConfig)]
"""The keys of a run."""

RUN_KEYS = ("seed", "resume", "init_from", "hydra")
"""Keys that apply only to a single run. A comparison rejects them, except hydra/launcher."""


@dataclass(kw_only=True)
class ChoicesConfig:
    choices: list[str]
    block_sizes: list[Positive]


@dataclass(kw_only=True)
class CompareConfig(TrainConfig):
    compare: ChoicesConfig
    seeds: list[int]
    speed_rounds: Count


def arguments(words: list[str]) -> list[str]:
    """The words for Hydra. `compare.choices=` without `compare=` selects `compare=own`."""
    for word in words:
        if sets(word, RUN_KEYS) and not word.startswith("hydra.launcher."):
            advice = "in a comparison, set seeds=[1,2,3], and name= for the folder"
            raise UserError(f"{word} is a key of a single run: {advice}")
    if value_of(words, "experiment") and not value_of(words, "trainer.max_steps"):
        problem = "experiment= and the comparison set different numbers of steps"
        raise UserError(f"{problem}: choose with trainer.max_steps= and trainer.val_every_steps=")
    own = value_of(words, "compare.choices") is not None and value_of(words, "compare") is None
    return [*words, *(["compare=own"] if own else [])]


def main() -> None:
    command_line.run(compare, "compare", prepare=arguments)


def compare(composed: DictConfig) -> None:
    """Train, evaluate and time all choices. Print a table, and write it to the run folder."""
    from headscope.cli.comparison import check_same_text, report_choices

    words, folder = HydraConfig.get().overrides.task, command_line.run_folder()
    config = parse(CompareConfig, composed)
    shared = [word for word in words if not sets(word, COMPARISON_KEYS)]
    planned = [*jobs(config, shared, folder)]
    runs = [run for run, _ in planned]
    try:
        launch([words for _, words in planned])
    except Interrupted:
        print("The same command continues the comparison.", flush=True)
        raise
    finished = [run for run in runs if run.state == "finished"]
    check_same_text(finished)
    choices: dict[str, list[SweepRun]] = {}
    for run in finished:
        choices.setdefault(run.settings["choice"], []).append(run)
    if choices:
        sizes, rounds = config.compare.block_sizes, config.speed_rounds
        report_choices(choices, folder, sizes, rounds)
    if not report_unfinished(runs):
        raise SystemExit(1)


def jobs(
    config: CompareConfig, shared: Sequence[str], folder: Path
) -> Iterator[tuple[SweepRun, list[str]]]:
    """The runs of a comparison, and the words of each. The next seed begins after all choices, so
    that a choice that fails is found early. Raises UserError if a choice is wrong."""
    from headscope.trained.checkpoint import build_model
    from headscope.trained.checkpoint.loading import WithoutInitialization
    from headscope.training.resume import check_same_config, newest_checkpoint

    places: set[str] = set()
    for seed, choice in itertools.product(config.seeds, config.compare.choices):
        name = re.sub(r"\bmodel(/\w+=|\.)", "", choice)  # such as `rotary heads=8`
        place = re.sub(r"[^\w.=-]+", "_", name) + f"/seed_{seed}"
        if place in places:
            raise UserError(f"compare.choices= and seeds=: two runs have the folder {place}")
        places.add(place)
        words = [*shared, *words_of(choice), f"seed={seed}"]
        plain: Any = OmegaConf.to_container(compose("compare", words), resolve=True)
        try:
            run = parse(TrainConfig, {key: plain[key] for key in KEYS})
            flags = run.trainer.arguments
            if flags.get("limit_val_batches") == 0 or flags.get("fast_dev_run"):
                raise UserError("a comparison needs validation losses: leave out +trainer.*")
            with WithoutInitialization():
                build_model(run.model, vocab_size=1)
            if is_run(folder / place):
                check_same_config(newest_checkpoint(folder / place), run)
        except UserError as error:
            raise UserError(f"{choice}: {error}") from error
        where = {"dir": str(folder), "subdir": place}
        words += [f"hydra.sweep.{key}={quote(value)}" for key, value in where.items()]
        settings = {"choice": name, "seed": str(seed)}
        yield SweepRun(settings, folder / place), [*words, "hydra.output_subdir=.hydra"]
    if not places:
        raise UserError("compare.choices= and seeds= must have at least one entry each")


def words_of(choice: str) -> list[str]:
    """The words of a choice, for Hydra."""
    try:
        words = shlex.split(choice)
    except ValueError as error:
        raise UserError(f"compare.choices= {choice}: {error}") from error
    for word in words:
        if sets(word, (*COMPARISON_KEYS, *RUN_KEYS)):
            raise UserError(f"compare.choices= {choice}: {word} is not a key of a choice")
    return quoted([*words, *implied_data(words)])


def launch(jobs: list[list[str]]) -> None:
    """Trains runs with the launcher that `hydra/launcher=` names."""
    config: Any = HydraConfig.instance().cfg
    sweeps.pass_on_signals(config)
    context = HydraContext(GlobalHydra.instance().config_loader(), Callbacks(config))
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=context, task_function=train_one, config=config
    )
    launcher.launch(jobs, initial_job_idx=0)
    HydraConfig.instance().cfg = config


def train_one(composed: DictConfig) -> Any:
    """Trains one run of a comparison."""
    here = OmegaConf.masked_copy(composed, KEYS)

    def task(config: DictConfig) -> float:
        folder, summary = train.run(config, sweep=True, quiet=True)
        bits, seconds = summary["val_bits_per_byte"], summary["train_seconds"]
        line = f"{bits:.4f} bits per byte after {seconds:.0f} s of training"
        print(f"{shown(folder)}: {line}", flush=True)
        return summary["val_loss"]

    return sweeps.run_one(task, here)


def sets(word: str, keys: tuple[str, ...]) -> bool:
    """Whether a word sets one of `keys`, or a key inside it, as `compare.choices=` does."""
    return "=" in word and key_of(word).partition(".")[0] in keys
