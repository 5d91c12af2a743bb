"""Continues a run: finds its newest valid checkpoint, makes the configuration of the resumed run,
and checks that the checkpoint fits the run.

The content of a checkpoint is plain data from a file, so all of it is checked before it is used.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from headscope import checkpoint
from headscope.checkpoint import Stored, read
from headscope.checkpoint.finding import without_checkpoint
from headscope.config.parse import parse, parse_part
from headscope.config.parts import Part, defaults_in_conf, is_foreign
from headscope.config.training import TrainConfig, TrainerConfig
from headscope.data.store import TokenStore
from headscope.errors import UserError, first_line, short
from headscope.files import read_summary
from headscope.terminal import command
from headscope.training.callbacks.early_stopping import EarlyStopping
from headscope.training.run_folder import CHECKPOINTS, resume_words

FIXED = (
    *("model", "tokenizer", "data", "seed", "init_from", "experiment", "name", "optimizer"),
    *("trainer.batch_size", "trainer.accumulate", "trainer.val_every_steps"),
)
"""Keys and groups that cannot change when a run is resumed. The choice of an optimizer cannot, but
its keys can, such as `optimizer.lr`."""

TRAINER_KEYS = {each.name for each in fields(TrainerConfig)}


def newest_checkpoint(folder: Path, *, warn: Callable[[str], None] | None = None) -> Stored:
    """The run's last.safetensors, or its best.safetensors if the former is damaged or missing.
    `warn` is called with one line about this.

    Raises UserError if `folder` is not a run folder, or if the run cannot be resumed from either
    checkpoint.
    """
    last, best = (folder / "checkpoints" / name for name in CHECKPOINTS)
    if not last.exists() and not best.exists():
        raise UserError(
            f"resume={folder} {without_checkpoint(folder)}; give the folder of a run, such as "
            "outputs/gpt_..."
        )
    try:
        return _resumable(last)
    except UserError as error:
        reason = str(error)
    try:
        stored = _resumable(best)
    except UserError as error:
        more = f"; {error}" if best.exists() else ""
        raise UserError(f"resume={folder}: {reason}{more}") from error
    if warn:
        warn(f"{reason}. Continuing from {best} at step {stored.step:,}: later steps are lost")
    return stored


def how_to_continue(folder: Path, config: TrainConfig) -> str:
    """Advice for the user after training has diverged: a command that continues with lower learning
    rates.

    If there is no valid checkpoint, the advice is to start again.
    """
    words = [f"{key}={rate:g}" for key, rate in lower_rates(config.optimizer).items()]
    try:
        newest = newest_checkpoint(folder)
    except UserError:
        return "there is no checkpoint to continue from; start again, for example with " + " ".join(
            words
        )
    continued = command("train", *resume_words(folder, config), *words)
    return f"to continue from the newest checkpoint, at step {newest.step:,}: {continued}"


def lower_rates(optimizer: Part) -> dict[str, float]:
    """Maps the key of each learning rate of the optimizer, such as `optimizer.lr`, to half of its
    value, or to the default in conf/ if this is lower."""
    defaults = defaults_in_conf("optimizer").get(optimizer["_target_"], {})
    rates = {key: optimizer[key] / 2 for key in ("lr", "matrix_lr") if key in optimizer}
    return {f"optimizer.{key}": min(rate, defaults.get(key, rate)) for key, rate in rates.items()}


def _resumable(path: Path) -> Stored:
    """Opens a checkpoint and verifies all of it. Raises UserError if a run cannot be resumed from
    this checkpoint."""
    stored = read(path)
    if not isinstance(stored.data.get("training"), dict):
        raise UserError(
            f"{path} cannot be resumed: it contains only weights, like a kept step, a copy without "
            f"optimizer state or an imported model; start a new run with init_from={path}"
        )
    stored.weights()
    stored.tensors("optimizer.")
    return stored


# --- the configuration ---


def resumed_config(
    composed: dict[str, Any], resume: Stored, keys: Iterable[str]
) -> tuple[TrainConfig, list[str]]:
    """The configuration of the run to resume, and one line for each change.

    `keys` are the keys and groups that the user changes. Their new values are taken from
    `composed`, the configuration that Hydra composed from the command line, as plain data. Raises
    UserError if one of them must stay the same.
    """
    config = {key: each for key, each in resume.data["config"].items() if key != "logger"}
    changes = []
    typed = [key.replace("/", ".") for key in keys if key != "resume"]
    for key in (key for key in typed if not is_added(key, composed)):
        for name in FIXED:
            if key == name or (key.startswith(f"{name}.") and name != "optimizer"):
                raise UserError(
                    f"{key}={short(value_at(composed, key))}: {name} cannot change in a resumed "
                    "run; to change it, start a new run from these weights with "
                    f"init_from={resume.run_folder}"
                )
        before, after = value_at(config, key), value_at(composed, key)
        if key in ("callbacks", "trainer"):
            after = {n: each for n, each in after.items() if not is_added(f"{key}.{n}", composed)}
        set_at(config, key, after)
        if before != after:
            values = "" if isinstance(after, dict) else f" from {before} to {after}"
            changes.append(f"{key}{values}")
    # For security, a checkpoint must not decide where files are written, or which code is advised.
    config["store_dir"], config["parts"] = composed["store_dir"], composed["parts"]
    resumed = parse(TrainConfig, config, composed=False)
    for group in ("callbacks", "logger"):
        for name, part in composed.get(group, {}).items():
            if part and is_added(f"{group}.{name}", composed):
                getattr(resumed, group)[name] = parse_part(part, group, f"{group}.{name}")
    others = composed["trainer"].items()
    resumed.trainer.arguments = {k: v for k, v in others if is_added(f"trainer.{k}", composed)}
    if resumed.trainer.arguments.get("fast_dev_run"):
        raise UserError("trainer.fast_dev_run trains from the beginning: leave out resume=")
    check_unfinished(resume, resumed)
    return resumed, changes


def is_added(key: str, composed: dict[str, Any]) -> bool:
    """Whether a checkpoint does not keep this key (see `TrainConfig.added`)."""
    group, _, name = key.partition(".")
    part = value_at(composed, ".".join(key.split(".")[:2]))
    own = isinstance(part, dict) and is_foreign(part, "callbacks")
    argument = group == "trainer" and name and name.partition(".")[0] not in TRAINER_KEYS
    callback = group == "callbacks" and own and name
    return group in ("logger", "debug") or bool(argument or callback)


def sources(config: TrainConfig, keys: Iterable[str]) -> list[str]:
    """One line for each file that a resumed run reads because its checkpoint names it. `keys` are
    the keys that the user changes."""
    lines = checkpoint.sources(config.data, "data")
    lines += checkpoint.sources(config.tokenizer, "tokenizer")
    if "store_dir" not in keys:
        used = f"Using store_dir={config.store_dir}"
        lines.append(f"{used}: name another folder of texts with store_dir=")
    return lines


def with_trained_model(config: TrainConfig, keys: Sequence[str]) -> TrainConfig:
    """`config` with the tokenizer and the model settings of the checkpoint that `config.init_from`
    selects, so that nobody has to repeat them. Unchanged without `init_from`.

    `keys` are the keys and groups that the user changes. Such a key, as `model.dropout`, keeps its
    value in `config`. A group, as `model/norm` or `model`, means that the user describes the whole
    model. Raises UserError if the user changes the tokenizer, which the weights need.
    """
    if config.init_from is None:
        return config
    stored = read(checkpoint.find(config.init_from, key="init_from")).config
    chosen = any(key.partition(".")[0] == "tokenizer" for key in keys)
    if chosen and config.tokenizer != stored.tokenizer:
        given, own = map(words_of_tokenizer, (config.tokenizer, stored.tokenizer))
        raise UserError(
            f"{given}: the weights of init_from={config.init_from} need their own tokenizer "
            f"({own}): leave it out"
        )
    config = replace(config, tokenizer=stored.tokenizer)
    if any(key.split("/")[0] == "model" for key in keys):
        return config
    model = deepcopy(stored.model)
    for key in keys:
        if key.startswith("model."):
            inside = key.partition(".")[2]
            set_at(model, inside, value_at(config.model, inside))
    return replace(config, model=parse_part(model, "model", composed=False))


def words_of_tokenizer(part: Part | None) -> str:
    keys = dict(part or {"_target_": "imported"})
    target = keys.pop("_target_")
    choice = defaults_in_conf("tokenizer").get(target, {}).get("choice", target)
    given = {"tokenizer": choice, **keys}
    return " ".join(f"{key}={short(given[key])}" for key in given if key != "_error_")


def value_at(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = config.get(name) if isinstance(config, dict) else None
    return config


def set_at(config: dict[str, Any], key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for name in groups:
        inside = config.get(name, {})
        if not isinstance(inside, dict):
            raise UserError(f"{key}: there is no such key: {name} is {short(inside)}")
        config[name] = config = type(inside)(inside)  # a copy: the checkpoint stays as it is
    config[last] = value


class OtherSettings(UserError):
    """Raised for a folder that holds a run with other settings."""


def check_same_config(resume: Stored, config: TrainConfig) -> None:
    """Raises OtherSettings if the configuration in the checkpoint differs from `config`."""
    before, now = resume.data["config"], config.kept()
    keys = {*before, *now} - {"name"}  # `name` is only a part of the folder's name
    changed = sorted(key for key in keys if before.get(key) != now.get(key))
    if changed:
        raise OtherSettings(
            f"{resume.run_folder} holds a run with other settings of {', '.join(changed)}: move "
            "that folder away, or use another (train -m: hydra.sweep.dir=, compare: name=)"
        )


def check_unfinished(resume: Stored, config: TrainConfig) -> None:
    """Raises UserError if the run has no steps left to train."""
    step = resume.step
    summary = read_summary(resume.run_folder)
    if summary is None or summary["steps"] != step:
        return
    patience = value_at(config.callbacks, "early_stopping.patience")
    callbacks = resume.data["training"].get("callbacks")
    named = EarlyStopping(patience=1).state_key
    early_stopping = callbacks.get(named) if isinstance(callbacks, dict) else None
    waited = early_stopping.get("wait_count") if isinstance(early_stopping, dict) else None
    if step >= config.trainer.max_steps:
        advice = "a larger trainer.max_steps="
    elif patience is not None and type(waited) is int and waited >= patience:
        advice = "a larger callbacks.early_stopping.patience=, or null"
    else:
        return
    raise UserError(
        f"resume={resume.run_folder}: this run is finished, at {step} steps; to train longer, add "
        f"{advice}"
    )


def check_same_text(resume: Stored, store: TokenStore) -> None:
    """Raises UserError if the text or the tokenizer of the run has changed since the run
    started."""
    saved, folder = resume.data, resume.run_folder
    if saved["store"] != store.name or saved["tokenizer"] != store.tokenizer.state():
        raise UserError(
            f"resume={folder}: the text has changed since this run started (from {saved['store']} "
            f"to {store.name}); start a new run with init_from={resume.path}"
        )


# --- the state of training ---


def check_training_state(stored: Stored, trainer: Trainer) -> None:
    """Raises UserError if Lightning's counters in a checkpoint do not fit its step, or if a state
    has another form than every callback's."""
    training = stored.data["training"]
    module, states = training.get("language_model"), training.get("callbacks")
    plain = isinstance(module, dict) and isinstance(states, dict)
    counted = plain and all(type(module.get(key)) is int for key in ("threads", "processes"))
    fits = counted and same_form(training.get("loops"), trainer.fit_loop.state_dict())
    fits = fits and all(isinstance(each, dict) for each in states.values())
    if fits:
        steps = training["loops"]["epoch_loop.manual_optimization.optim_step_progress"]
        logged = states.get("CheckpointSaver", {}).get("logged", {})
        fits = steps["total"]["completed"] == stored.step and isinstance(logged, dict)
    if not fits:
        raise UserError(does_not_fit(stored))


def same_form(value: Any, template: Any) -> bool:
    """Whether two nested dictionaries have the same keys, and values of the same types."""
    if isinstance(value, dict) and isinstance(template, dict):
        same_keys = value.keys() == template.keys()
        return same_keys and all(same_form(value[key], template[key]) for key in value)
    return type(value) is type(template)


def does_not_fit(stored: Stored) -> str:
    return (
        f"{stored.path} cannot be resumed: its training state does not fit this run; the file may "
        f"be damaged (a new run can start from its weights with init_from={stored.path})"
    )


@contextmanager
def report_wrong_state(stored: Stored | None) -> Iterator[None]:
    """Inside the `with` block, an error of Lightning while it restores the training state of a
    checkpoint, such as a missing entry, becomes a UserError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        restoring = any(each.name.startswith(("restore_", "_restore_")) for each in frames)
        if stored is None or not restoring or isinstance(error, UserError):
            raise
        raise UserError(f"{does_not_fit(stored)} ({first_line(error)})") from error
