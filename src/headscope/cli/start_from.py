"""The words and the configuration of a run that starts from a checkpoint: resume= and init_from=.

Hydra composes such a run from the user's words alone. Nothing of the checkpoint goes through Hydra,
because a checkpoint may come from an untrusted source.
"""

import re
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from headscope.cli.conf import is_group
from headscope.cli.words import MULTIRUN, WRITES_NOTHING, key_of, value_of
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


def arguments(words: list[str]) -> list[str]:
    """The words for Hydra. Raises UserError if a word changes what must stay the same in a resumed
    run, or if `hydra.run.dir=` names a folder that another run uses or has used."""
    resumed, folder = value_of(words, "resume"), value_of(words, "hydra.run.dir")
    if resumed is None:
        if folder and run_folder.is_run(Path(folder)):
            raise already_a_run(folder)
        if folder and Path(folder).is_dir() and processes.rank() == 0:
            with run_folder.locked(Path(folder)):
                pass  # before Hydra writes to it
        return words
    if folder is not None or MULTIRUN & {*words}:
        extra = "-m" if folder is None else "hydra.run.dir="
        raise UserError(f"resume={resumed} continues one run in its own folder: leave out {extra}")
    for word in words:
        key = dotted_key(word)
        inside = [name for name in FIXED if key.startswith(f"{name}.") and name != "optimizer"]
        if fixed := [name for name in FIXED if key == name] + inside:
            raise UserError(
                f"{word}: {fixed[0]} cannot change in a resumed run; to change it, start a new run "
                f"from these weights with init_from={resumed}"
            )
    return [*forced(words), *WRITES_NOTHING]


def forced(words: Sequence[str]) -> list[str]:
    """Writes each `key=value` as `++key=value`, which sets the key also if it is not there yet."""
    plain = re.compile(r"(?!hydra\.)[\w.]+=")
    return [
        f"++{word}" if plain.match(word) and not is_group(key_of(word)) else word for word in words
    ]


def already_a_run(folder: str | Path) -> UserError:
    return UserError(
        f"hydra.run.dir={folder} already holds a run: continue it with resume={folder}, or name "
        "another folder"
    )


def dotted_key(word: str) -> str:
    """The key of an override. The slashes in the name of a group become dots."""
    return key_of(word).replace("/", ".")


def resumed(composed: DictConfig) -> "tuple[TrainConfig, ResumeCheckpoint, list[str]]":
    """The configuration of a resumed run, its checkpoint, and one line for each setting that the
    user changes."""
    from headscope.training.resume import newest_checkpoint, resumed_config

    plain: Any = OmegaConf.to_container(composed, resolve=True)
    resume = newest_checkpoint(Path(composed.resume))
    keys = [key for key in map(dotted_key, HydraConfig.get().overrides.task) if key != "resume"]
    config, changes = resumed_config(plain, resume, keys)
    return config, resume, changes


def print_sources(config: "TrainConfig") -> None:
    """Prints the files that a resumed run reads because its checkpoint names them."""
    from headscope import checkpoint
    from headscope.terminal import printable

    lines = checkpoint.sources(config.data, "data")
    lines += checkpoint.sources(config.tokenizer, "tokenizer")
    if not any(word.startswith("++store_dir=") for word in HydraConfig.get().overrides.task):
        used = f"Using store_dir={config.store_dir}"
        lines.append(f"{used}: name another folder of texts with store_dir=")
    for line in lines:
        print(printable(line), file=sys.stderr)


def with_trained_model(config: "TrainConfig") -> "TrainConfig":
    """`config` with the tokenizer and the model settings of the checkpoint that `config.init_from`
    selects, so that nobody has to repeat them. Unchanged without `init_from`.

    A key in the user's words, such as `model.dropout=0.1`, keeps the value that it has in `config`.
    If the words choose a part of the model, such as `model/norm=rms` or `model=gpt2`, they describe
    the whole model. Raises UserError if they choose another tokenizer, which the weights do not
    fit.
    """
    from headscope import checkpoint
    from headscope.config.parse import parse_part
    from headscope.config.parts import defaults_in_conf
    from headscope.training.resume import set_at, value_at

    if config.init_from is None:
        return config
    words = list(HydraConfig.get().overrides.task)
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
    keys = [key_of(word) for word in words]
    if any(key.split("/")[0] == "model" for key in keys):
        return config
    model = deepcopy(stored.model)
    for group, _, rest in (key.partition(".") for key in keys):
        if group == "model":
            set_at(model, rest, value_at(config.model, rest))
    return replace(config, model=parse_part(model, "model", composed=False))
