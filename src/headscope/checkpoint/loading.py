"""A checkpoint file, opened: model, tokenizer and configuration. Knows nothing of Lightning.

A checkpoint is Lightning's own, with one more entry, `headscope`: the resolved configuration and
the tokenizer's own data, all plain data. It is opened with `weights_only=True`, and the
configuration is checked against the schemas of `headscope.config`, which name all that can be
built from it: a file from a stranger runs no code.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headscope.checkpoint.building import build_model, no_larger_than
from headscope.checkpoint.file import FORMAT, read
from headscope.checkpoint.finding import find, pick_device
from headscope.config import build_part, parse
from headscope.config.text import CorpusConfig, TokenizerConfig
from headscope.config.training import PRECISIONS, TrainConfig
from headscope.data.corpus import Corpus
from headscope.data.labels import token_labels
from headscope.data.tokenizer import Tokenizer, tokenizer_from_state
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.capture import attention_weights_and_scores
from headscope.nn.inputs import token_ids
from headscope.terminal import printable


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds. `step` is the step it was saved at, `precision` one of
    `PRECISIONS`, in which the run computed."""

    path: Path
    model: GPT
    tokenizer: Tokenizer
    config: TrainConfig
    step: int
    precision: str

    def attention(self, text: str | Sequence[int]) -> "AttentionReading":
        """How the model reads a text, or tokens; of a longer one the first `block_size` tokens.

        Raises UserError when there is none, when the vocabulary cannot say the text, or when a
        token is no integer in the vocabulary.
        """
        if isinstance(text, str):
            tokens = self.tokenizer.encode_prompt(text)
        else:
            tokens = token_ids(text, self.tokenizer.vocab_size)
        tokens = tokens[: self.model.block_size]
        if not tokens:
            raise UserError("the text is empty: there is nothing to look at")
        weights, scores = attention_weights_and_scores(
            self.model, torch.tensor([tokens], device=self.model.device)
        )
        return AttentionReading(
            tokens=tokens,
            labels=token_labels(map(self.tokenizer.token_bytes, tokens)),
            weights=weights[:, 0].cpu(),
            scores=scores[:, 0].cpu(),
        )


@dataclass(frozen=True)
class AttentionReading:
    """A text as a model reads it: T tokens, the label of each (see `token_labels`), and weights and
    raw scores (L, H, T, T).

    `scores` are those before the causal mask and softmax: scaled, with the position's bias.
    """

    tokens: list[int]
    labels: list[str]
    weights: torch.Tensor
    scores: torch.Tensor

    def first(self, length: int) -> "AttentionReading":
        """The first `length` tokens; what they see does not depend on those after them."""
        return AttentionReading(
            tokens=self.tokens[:length],
            labels=self.labels[:length],
            weights=self.weights[..., :length, :length],
            scores=self.scores[..., :length, :length],
        )


def load(path: str | Path, *, device: str | torch.device = "cpu") -> Checkpoint:
    """Open a checkpoint and rebuild its model, in evaluation mode on `device`.

    Raises UserError when the file is missing, damaged, or no checkpoint of headscope, when its
    weights are not finite, or when this machine does not have the device.
    """
    path = Path(path)
    device = pick_device(str(device))
    content = read(path)
    try:
        config = config_of(content)
        tokenizer = tokenizer_from_state(content["headscope"]["tokenizer"])
        weights = model_weights(content)
        with no_larger_than(weights, name="its configuration"):
            model = build_model(config.model, vocab_size=tokenizer.vocab_size)
        model.load_state_dict(weights)
        step = content["global_step"]
        precision = content["headscope"]["precision"]
        if precision not in PRECISIONS:
            raise UserError(f"precision={precision[:80]} is unknown")
    except (UserError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{path} does not fit this version of headscope: {reason}") from error
    return Checkpoint(
        path=path,
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        config=config,
        step=step,
        precision=precision,
    )


def config_of(content: dict[str, Any]) -> TrainConfig:
    """The configuration in a checkpoint's raw content, checked.

    Raises UserError when a key is missing, unknown or of another type, or names a part that
    headscope does not have.
    """
    return parse(TrainConfig, content["headscope"].get("config"))


def contents(
    *, config: TrainConfig, tokenizer: Tokenizer, store: str, precision: str
) -> dict[str, Any]:
    """What headscope adds to a checkpoint: `store` is the name of the token store, which tells one
    text from another, `precision` the one of `PRECISIONS` in which the run computes."""
    return {
        "format": FORMAT,
        "config": asdict(config),
        "tokenizer": tokenizer.state(),
        "store": store,
        "precision": precision,
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
    split = [word.lstrip("+").partition("=") for word in words]
    asked = {key: value for key, _, value in split if re.fullmatch(r"tokenizer(\.\w+)?", key)}
    if not asked:
        return
    own = config_of(read(find(given, key="init_from"))).tokenizer
    name = own._target_.rpartition(".")[2]
    for key, value in asked.items():
        kept = name if key == "tokenizer" else getattr(own, key.partition(".")[2], None)
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
    sizes = replace(loaded.config.model, block_size=block_size)
    model = build_model(sizes, vocab_size=loaded.tokenizer.vocab_size)
    model.load_state_dict(loaded.model.state_dict())
    return model.to(loaded.model.device).eval()


def stored_corpus(config: TrainConfig) -> Corpus:
    """The corpus that a checkpoint's configuration names. What it reads is written to standard
    error first, since it is the checkpoint that chose it."""
    for line in sources(config.data, "data"):
        print(printable(line), file=sys.stderr)
    return build_part(config.data)


def sources(config: CorpusConfig | TokenizerConfig, group: str) -> list[str]:
    """A line for each file, folder or dataset that a part of a checkpoint's configuration names."""
    return [
        f"Reading {group}.{key}={value}, which the checkpoint names"
        for key in ("path", "name")
        if (value := getattr(config, key, None)) is not None
    ]
