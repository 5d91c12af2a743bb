"""Going on with a run: its own configuration, with what the command line changes on top."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from headscope import checkpoint
from headscope.command_line import escape, quote, value_of
from headscope.config import SCHEMAS, known_targets
from headscope.errors import UserError
from headscope.run_folder import is_run

if TYPE_CHECKING:
    from headscope.data.store import TokenStore

OURS = re.compile(r"[+~]*(?!hydra\b)[a-z_][\w./@]*(=|$)")
"""A word that only sets a key of conf/: a stranger's run may bring no others."""

FIXED = (
    "model",
    "tokenizer",
    "data",
    "seed",
    "init_from",
    "experiment",
    "name",
    "trainer.batch_size",
    "trainer.accumulate",
    "trainer.val_every_steps",
)
"""What a run is; a change of these makes another run."""

CHOSEN = ("optimizer",)
"""Groups in which a run keeps its choice, whose state it has; its keys may change."""


def resume_arguments(typed: list[str], quoted: list[str]) -> list[str]:
    """The command line to compose with: with `resume=`, that of the run, the new words after it.

    Hydra then stays in the run's folder and leaves its `.hydra/` as it was.

    Raises UserError when there is nothing to resume, the words would change what the run is, or
    `hydra.run.dir=` names a folder that is a run already.
    """
    given = value_of(typed, "resume")
    if given is None:
        folder = value_of(typed, "hydra.run.dir")
        if folder and is_run(Path(folder)):
            raise UserError(
                f"hydra.run.dir={folder} is a run already; continue it with resume={folder}, "
                "or name another folder"
            )
        return quoted
    if value_of(typed, "hydra.run.dir") is not None:
        raise UserError(f"resume={given} goes on in its own folder: leave out hydra.run.dir=")
    own = read_run(Path(given))["headscope"]
    for argument in own["overrides"]:
        if not OURS.match(argument):
            raise UserError(
                f"resume={given} was started with {argument}, which is not of headscope"
            )
    new = [argument for argument in quoted if not argument.startswith("resume=")]
    for argument in new:
        key = key_of(argument)
        kept = next((name for name in FIXED if key == name or key.startswith(f"{name}.")), None)
        kept = key if key in CHOSEN else kept
        if kept:
            raise UserError(
                f"{argument}: a resumed run keeps its {kept}; for another one start anew, "
                f"from its weights with init_from={Path(given) / 'checkpoints' / 'last.ckpt'}"
            )
    return [
        *own["overrides"],
        *new,
        f"resume={quote(given)}",
        f"hydra.run.dir={quote(given)}",
        "hydra.output_subdir=null",
    ]


def resumed_config(composed: DictConfig, overrides: list[str]) -> tuple[DictConfig, list[str]]:
    """The configuration of the run that `composed.resume` names, and what was changed, in words.

    `overrides` are all the words that `composed` was composed from: those of the run, then the new
    ones; a key of the new ones has its value from `composed`.
    """
    own = read_run(Path(composed.resume))["headscope"]
    stored = OmegaConf.create(_literal(own["config"]))
    # What a run of before a key was does not say, is as conf says.
    stored.trainer = OmegaConf.to_container(composed.trainer) | own["config"]["trainer"]
    config = stored.copy()
    changes = []
    for argument in overrides[len(own["overrides"]) :]:
        key = key_of(argument)
        if key == "resume":
            continue
        before, after = OmegaConf.select(stored, key), OmegaConf.select(composed, key)
        OmegaConf.update(config, key, after, merge=False)
        if before != after:
            changes.append(f"{key} from {_shown(before)} to {_shown(after)}")
    for target in _targets(OmegaConf.to_container(config)):
        if target not in known_targets(*SCHEMAS):
            raise UserError(f"resume={composed.resume} names {target}, no part of headscope")
    return config, changes


def _literal(node: Any) -> Any:
    """Plain data with its texts escaped, so that OmegaConf interpolates nothing in them."""
    if isinstance(node, dict):
        return {key: _literal(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_literal(value) for value in node]
    return escape(node) if isinstance(node, str) else node


def _targets(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield node["_target_"]
        for value in node.values():
            yield from _targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets(value)


def check_resumed(
    content: dict[str, Any], config: DictConfig, store: "TokenStore", folder: Path
) -> None:
    """Raises UserError when a run cannot go on: its text has changed, or it is finished."""
    own, step = content["headscope"], content["global_step"]
    if "optimizer_states" not in content:
        raise UserError(
            f"resume={folder}: its last.ckpt holds weights alone, as kept steps do; start a new "
            f"run with init_from={folder}/checkpoints/last.ckpt"
        )
    if own["store"] != store.name or own["tokenizer"] != store.tokenizer.state():
        raise UserError(
            f"resume={folder}: the text is not the one this run began with ({own['store']} then, "
            f"{store.name} now); start a new run with init_from={folder}/checkpoints/last.ckpt"
        )
    summary = folder / "summary.json"
    if not summary.exists() or json.loads(summary.read_text(encoding="utf-8"))["steps"] != step:
        return
    patience = config.callbacks.early_stopping_patience
    waited = content["callbacks"].get("patience", {}).get("wait_count", 0)
    if step >= config.trainer.max_steps:
        more = "a larger trainer.max_steps="
    elif patience is not None and waited >= patience:
        more = "a larger callbacks.early_stopping_patience=, or null"
    else:
        return
    raise UserError(
        f"resume={folder}: it is finished, at {step} steps; to give it more, add {more}"
    )


def read_run(folder: Path) -> dict[str, Any]:
    """The last checkpoint of a run, raw. Raises UserError when `folder` is not a run."""
    last = folder / "checkpoints" / "last.ckpt"
    if not last.is_file():
        what = "is not a run" if folder.exists() else "does not exist"
        raise UserError(f"resume={folder} {what}: there is no {last}")
    return checkpoint.read(last)


def key_of(argument: str) -> str:
    """The place in the configuration that `key=value` is about; a group's slashes are dots."""
    return argument.partition("=")[0].lstrip("+~").replace("/", ".")


def _shown(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
