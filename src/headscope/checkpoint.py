"""A checkpoint file, opened: model, tokenizer and configuration. Knows nothing of Lightning.

A checkpoint is Lightning's own, with one more entry, `headscope`: the resolved configuration, the
tokenizer's own data and the words of the command line, all plain data. It is opened with
`weights_only=True`, and the configuration may only name the parts that headscope itself has, so a
file from a stranger runs no code.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from headscope.analysis.capture import attention_weights
from headscope.checkpoint_file import FORMAT, read
from headscope.config import known_targets
from headscope.data.corpus import Corpus
from headscope.data.tokenizer import Tokenizer, tokenizer_from_state
from headscope.errors import UserError
from headscope.model_size import check_limits, check_memory, no_larger_than
from headscope.nn import GPT


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds. `config` is plain data; `step` is the step it was saved at."""

    path: Path
    model: GPT
    tokenizer: Tokenizer
    config: dict[str, Any]
    step: int

    def attention(self, text: str | Sequence[int]) -> "Reading":
        """How the model reads a text, or tokens; of a longer one the first `block_size` tokens.

        Raises UserError when there is none, or the vocabulary cannot say the text.
        """
        tokens = self.tokenizer.encode_prompt(text) if isinstance(text, str) else list(text)
        tokens = tokens[: self.model.block_size]
        if not tokens:
            raise UserError("the text is empty: there is nothing to look at")
        weights = attention_weights(self.model, torch.tensor([tokens], device=self.model.device))
        labels = [self.tokenizer.decode([token]) for token in tokens]
        return Reading(tokens=tokens, labels=labels, weights=weights[:, 0].cpu())


@dataclass(frozen=True)
class Reading:
    """A text as a model reads it: T tokens, each as text, and the weights (L, H, T, T)."""

    tokens: list[int]
    labels: list[str]
    weights: torch.Tensor


def load(path: str | Path, *, device: str | torch.device = "cpu") -> Checkpoint:
    """Open a checkpoint and rebuild its model, in evaluation mode on `device`.

    Raises UserError when the file is missing, damaged, or no checkpoint of headscope, or when its
    weights are not finite.
    """
    path = Path(path)
    content = read(path)
    try:
        own = content["headscope"]
        tokenizer = tokenizer_from_state(own["tokenizer"])
        weights = model_weights(content)
        with no_larger_than(weights, name="its configuration"):
            model = build_model(own["config"]["model"], vocab_size=tokenizer.vocab_size)
        model.load_state_dict(weights)
        step = content["global_step"]
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{path} does not fit this version of headscope: {reason}") from error
    return Checkpoint(
        path=path,
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        config=own["config"],
        step=step,
    )


def contents(
    *, config: dict[str, Any], tokenizer: Tokenizer, store: str, overrides: list[str]
) -> dict[str, Any]:
    """What headscope adds to a checkpoint: `store` is the name of the token store, which tells one
    text from another; `overrides` are the words of the command line."""
    return {
        "format": FORMAT,
        "config": config,
        "tokenizer": tokenizer.state(),
        "store": store,
        "overrides": overrides,
    }


def model_weights(content: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The state dict of the model alone, out of a checkpoint's raw content."""
    prefix = "model."
    return {
        name.removeprefix(prefix): weight
        for name, weight in content["state_dict"].items()
        if name.startswith(prefix)
    }


def check_same_tokenizer(given: str, words: Sequence[str]) -> None:
    """Raises UserError when `words` of the command line ask for another tokenizer than that of the
    checkpoint `given` as init_from: its weights mean nothing without its own."""
    split = [word.partition("=") for word in words]
    asked = {key: value for key, _, value in split if re.fullmatch(r"tokenizer(\.\w+)?", key)}
    if not asked:
        return
    own = read(find(given, key="init_from"))["headscope"]["config"].get("tokenizer")
    own = own if isinstance(own, dict) else {}
    name = str(own.get("_target_")).rpartition(".")[2]
    for key, value in asked.items():
        kept = name if key == "tokenizer" else own.get(key.partition(".")[2])
        if value != str(kept):
            raise UserError(
                f"{key}={value}: init_from={given} keeps the tokenizer of its weights, "
                f"{key}={kept}; leave {key}= out"
            )


def load_weights(model: GPT, content: dict[str, Any], *, name: str) -> None:
    """Put a checkpoint's weights into `model`. Raises UserError when they do not fit."""
    try:
        model.load_state_dict(model_weights(content))
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise UserError(f"init_from={name} is of another shape: {first}") from error


def build_model(config: DictConfig | dict[str, Any], *, vocab_size: int) -> GPT:
    """The model that the `model` part of a configuration describes, with fresh weights.

    Raises UserError when its sizes do not fit, or it names a part that headscope does not have.
    """
    return _model(_plain(config), vocab_size=vocab_size)


def check_model(config: DictConfig | dict[str, Any], *, vocab_size: int) -> None:
    """Raises UserError when a model cannot be built, or not be trained in this machine's memory.
    Quick, and of little memory, whatever the sizes are."""
    plain = _plain(config)
    check_memory(
        lambda layers: _model(plain | {"layers": layers}, vocab_size=vocab_size), plain, copies=3
    )


def _plain(config: DictConfig | dict[str, Any]) -> Any:
    if isinstance(config, DictConfig):
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return config


def _model(plain: Any, *, vocab_size: int) -> GPT:
    if isinstance(plain, dict):
        check_limits(plain)
    known = known_targets("model", "attention", "position", "norm", "activation")
    try:
        return _build(plain, known, vocab_size=vocab_size)
    except RuntimeError as error:  # more memory than there is, or than can be counted
        reason = str(error).splitlines()[0]
        raise UserError(f"a model of these sizes cannot be made: {reason}") from error


def with_block_size(loaded: Checkpoint, block_size: int) -> GPT:
    """The model of a checkpoint with another longest context. Masks and tables that are computed
    grow with it; learned ones do not.

    Raises UserError when the position encoding has learned ones.
    """
    if block_size == loaded.model.block_size:
        return loaded.model
    if loaded.model.position.limit:
        raise UserError(
            f"{type(loaded.model.position).__name__} was trained at block_size="
            f"{loaded.model.block_size}: {loaded.model.position.limit}"
        )
    sizes = loaded.config["model"] | {"block_size": block_size}
    model = build_model(sizes, vocab_size=loaded.tokenizer.vocab_size)
    model.load_state_dict(loaded.model.state_dict())
    return model.to(loaded.model.device).eval()


def build_corpus(config: dict[str, Any]) -> Corpus:
    """The corpus that a checkpoint's configuration names. Raises UserError as `build_model`."""
    return _build(config["data"], known_targets("data"))


def _build(config: Any, known: set[str], **more: Any) -> Any:
    """What Hydra's `instantiate` makes of plain data, were there nothing to call but `known`.

    `instantiate` itself would also resolve `${...}`, and what that gives may name anything.
    """
    target = config.get("_target_") if isinstance(config, dict) else None
    if not isinstance(target, str) or target not in known:
        raise UserError(f"the configuration names {target}, which is no part of headscope")
    settings = more | {
        key: _build(value, known) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in ("_target_", "_partial_")
    }
    part = get_object(target)
    try:
        return partial(part, **settings) if config.get("_partial_") else part(**settings)
    except TypeError as error:
        raise UserError(f"{target} does not take this configuration: {error}") from error


def find(given: str | None, *, key: str = "checkpoint", outputs: Path = Path("outputs")) -> Path:
    """The checkpoint that a person means: a file, a run folder (its best), or, for None, the best
    of the newest run, which `outputs/latest` names. `key` is where they named it.

    When a run's best.ckpt is damaged, it is its last.ckpt, and standard error says so. A file that
    is named is never replaced by another. Raises UserError when there is none.
    """
    if given is None:
        latest = outputs / "latest"
        if not latest.is_file():
            raise UserError(
                f"there is no run in {outputs}/ yet: python scripts/train.py makes one, or give "
                "checkpoint="
            )
        name = latest.read_text(encoding="utf-8", errors="replace").strip()
        path = outputs / name
        if not name or not path.is_dir():
            raise UserError(f"{latest} names {name!r}, which is no run: give checkpoint=")
    else:
        path = Path(given)
    if path.is_dir():
        best, last = (path / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
        if best.is_file():
            return _last_if_damaged(best, last)
        if last.is_file():
            return last
        raise UserError(
            f"{path} has no checkpoints/best.ckpt: it is no run that got that far; {key}= may also "
            "name a file"
        )
    if not path.exists():
        raise UserError(f"{key}={path} does not exist")
    return path


def _last_if_damaged(best: Path, last: Path) -> Path:
    if last.is_file():
        try:
            read(best)
        except UserError as error:
            print(f"{error}; using {last} instead", file=sys.stderr)
            return last
    return best


def pick_device(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `mps` means here.

    Raises UserError when this machine does not have it.
    """
    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(kind for kind, there in present.items() if there)
    if not present.get(name.partition(":")[0], False):
        raise UserError(
            f"device={name} is not here; there is: auto, "
            f"{', '.join(kind for kind, there in present.items() if there)}"
        )
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"device={name} is no device: auto, cpu, cuda, cuda:0, mps") from None
