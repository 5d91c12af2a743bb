"""How a run starts, new or from a checkpoint of an earlier session, which may come from a stranger:
finds the newest valid checkpoint, makes the configuration, and checks that both fit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from headscope.config.parse import parse, parse_part
from headscope.config.training import TrainConfig, kept_and_added
from headscope.data.store import TokenStore
from headscope.errors import UserError, short
from headscope.files import read_summary
from headscope.terminal import note
from headscope.trained import checkpoint
from headscope.trained.checkpoint import Stored, read
from headscope.trained.checkpoint.finding import first_intact, without_checkpoint
from headscope.training.run_folder import CHECKPOINTS, is_run

FIXED = (
    *("model", "tokenizer", "data", "seed", "init_from", "name", "optimizer._target_"),
    *("trainer.batch_size", "trainer.accumulate", "trainer.val_every_steps"),
)
"""Keys and groups that cannot change when a run is resumed."""


@dataclass(frozen=True)
class Start:
    """How a run starts: its configuration, and if it is resumed, the checkpoint `resume` and a line
    for each of the `changes` of its configuration."""

    config: TrainConfig
    resume: Stored | None = None
    changes: list[str] = field(default_factory=list)


def start_of(
    composed: DictConfig, folder: Path, keys: list[str], *, sweep: bool, say: Callable[[str], Any]
) -> Start:
    """How the run in `folder` starts. `keys` are the keys and groups that the user changes, and
    `composed` is what Hydra composed. A run of a `sweep` is resumed if it was begun before. `say`
    tells what else the user should know. Raises UserError if it cannot start so."""
    if composed.resume:
        start = resumed(composed, newest_checkpoint(folder, say), keys)
        for line in sources(start.config, keys):
            say(line)
    else:
        start = Start(with_trained_model(parse(TrainConfig, composed), keys))
        if sweep and is_run(folder):
            resume = newest_checkpoint(folder, say)
            check_same_config(resume, start.config)
            start = Start(start.config, resume)
    if (sweep or start.resume) and start.config.trainer.arguments.get("fast_dev_run"):
        raise UserError("trainer.fast_dev_run keeps nothing: use it without -m and resume=")
    return start


def check_is_run(folder: Path) -> None:
    """Raises UserError if `folder`, which the key `resume` names, is not that of a run."""
    if is_run(folder):
        return
    run, at, _ = str(folder).rpartition("@")
    if at and Path(run or "outputs").is_dir():
        problem = f"resume={folder}: a run resumes only from its newest state"
        raise UserError(f"{problem}; to start from this step, use init_from={folder}")
    problem = f"resume={folder} {without_checkpoint(folder)}"
    raise UserError(f"{problem}; give the folder of a run, such as outputs/gpt_...")


def newest_checkpoint(folder: Path, say: Callable[[str], Any] = note) -> Stored:
    """The run's last.safetensors, or its best.safetensors if the former is damaged or missing,
    which `say` tells. Raises UserError if the run in `folder` cannot be resumed from either."""
    files = [folder / "checkpoints" / name for name in CHECKPOINTS]
    return first_intact(files, f"resume={folder}", say, _check_resumable)


def _check_resumable(stored: Stored) -> None:
    if "training" not in stored.data:
        problem = f"{stored.path} cannot be resumed: it contains only weights"
        raise UserError(f"{problem}; start a new run with init_from={stored.path}")
    stored.tensors("optimizer.")
    training = stored.data["training"]
    try:
        steps = training["loops"]["epoch_loop.manual_optimization.optim_step_progress"]
        fits = steps["total"]["completed"] == stored.step
        fits = fits and {"threads", "processes"} <= training["language_model"].keys()
    except (KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise UserError(does_not_fit(stored))


# --- the configuration ---


def resumed(composed: DictConfig, resume: Stored, keys: Iterable[str]) -> Start:
    """The start of a run that is resumed. `keys` are the keys and groups that the user changes, and
    `composed` has their values. Raises UserError if one of them, or a key in one of these groups,
    must stay the same."""
    plain: Any = OmegaConf.to_container(composed, resolve=True)
    new, added = kept_and_added(plain)
    stored = resume.data["config"]
    config, changes = dict(stored), []
    advice = f"start a new run with init_from={resume.run_folder}"
    for key in (key.replace("/", ".") for key in keys):
        if key in ("experiment", "debug"):
            raise UserError(f"{key}= cannot change a resumed run: give single keys, or {advice}")
        is_kept = key.split(".")[0] not in ("resume", "logger")
        if not is_kept or any(f"{key}.".startswith(f"{name}.") for name in added):
            continue
        before, after = value_at(config, key), value_at(new, key)
        set_at(config, key, after)
        for name in FIXED:
            if value_at(config, name) != value_at(stored, name):
                inner = max(key, name, key=len)  # a key of a fixed group, or a fixed key of a group
                problem = f"{inner}={short(value_at(config, inner))}: {name} cannot change"
                raise UserError(f"{problem} in a resumed run; {advice}")
        if before != after:
            nested = isinstance(before, dict) or isinstance(after, dict)
            values = "" if nested else f" from {before} to {after}"
            changes.append(f"{key}{values}")
    # For security, a checkpoint must not decide where files are written, or which code is advised.
    config["store_dir"], config["parts"] = new["store_dir"], new["parts"]
    parsed = parse(TrainConfig, config, composed=False)
    for key, value in added.items():
        group, _, name = key.partition(".")
        if group == "trainer":
            parsed.trainer.arguments[name] = value
        else:
            getattr(parsed, group)[name] = parse_part(value, group, key)
    summary = read_summary(resume.run_folder)
    if summary and summary["steps"] == resume.step >= parsed.trainer.max_steps:
        problem = f"resume={resume.run_folder}: this run is finished, at {resume.step} steps"
        raise UserError(f"{problem}; to train longer, add a larger trainer.max_steps=")
    return Start(parsed, resume, changes)


def sources(config: TrainConfig, keys: Sequence[str]) -> list[str]:
    """One line for each file that a resumed run reads because its checkpoint names it."""
    lines = checkpoint.sources(config.data, "data")
    lines += checkpoint.sources(config.tokenizer, "tokenizer")
    if "store_dir" not in keys:
        used = f"Using store_dir={config.store_dir}"
        lines.append(f"{used}: name another folder of texts with store_dir=")
    return lines


def with_trained_model(config: TrainConfig, keys: Sequence[str]) -> TrainConfig:
    """`config` with the tokenizer and the model of the checkpoint that `config.init_from` selects,
    so that nobody has to repeat them. Unchanged without `init_from`.

    `keys` are the keys and groups that the user changes. Such a key, as `model.dropout`, keeps its
    value. A group, as `model/norm` or `model`, means that the user describes the whole model.
    Raises UserError if the user changes the tokenizer, which the weights need.
    """
    if config.init_from is None:
        return config
    stored = read(checkpoint.find(config.init_from, key="init_from")).config
    chosen = any(key.partition(".")[0] == "tokenizer" for key in keys)
    if chosen and config.tokenizer != stored.tokenizer:
        given, own = (short({**(each or {})}) for each in (config.tokenizer, stored.tokenizer))
        need = f"the weights of init_from={config.init_from} need their own tokenizer, {own}"
        raise UserError(f"tokenizer={given}: {need}: leave out tokenizer=")
    config = replace(config, tokenizer=stored.tokenizer)
    if any(key.split("/")[0] == "model" for key in keys):
        return config
    for key in keys:
        if key.startswith("model."):
            inside = key.partition(".")[2]
            set_at(stored.model, inside, value_at(config.model, inside))
    return replace(config, model=parse_part(stored.model, "model", composed=False))


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
        copied = type(inside)(inside)  # the checkpoint stays as it is
        config[name] = copied
        config = copied
    config[last] = value


class OtherSettings(UserError):
    """Raised for a folder that holds a run with other settings."""


def check_same_config(resume: Stored, config: TrainConfig) -> None:
    """Raises OtherSettings if the configuration in the checkpoint differs from `config`."""
    before, now = resume.data["config"], config.kept()
    keys = {*before, *now} - {"name"}  # `name` is only a part of the folder's name
    changed = sorted(key for key in keys if before.get(key) != now.get(key))
    if changed:
        problem = f"{resume.run_folder} holds a run with other settings of {', '.join(changed)}"
        advice = "move it away, or use another (train -m: hydra.sweep.dir=, compare: name=)"
        raise OtherSettings(f"{problem}: {advice}")


def check_same_text(resume: Stored, store: TokenStore) -> None:
    """Raises UserError if the text or the tokenizer has changed since the run started."""
    saved, folder = resume.data, resume.run_folder
    if saved["store"] != store.name or saved["tokenizer"] != store.tokenizer.state():
        problem = f"resume={folder}: the text has changed, from {saved['store']} to {store.name}"
        raise UserError(f"{problem}; start a new run with init_from={resume.path}")


def does_not_fit(stored: Stored) -> str:
    problem = f"{stored.path} cannot be resumed: its training state does not fit this run"
    return f"{problem}; a new run can start from its weights with init_from={stored.path}"
