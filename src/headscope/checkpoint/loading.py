"""Loads the model, the tokenizer and the configuration from a checkpoint file.

Loading a checkpoint does not need Lightning. A file from an untrusted source cannot run code: its
configuration can only name parts of headscope (see `headscope.config.parts`).
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from headscope.checkpoint.building import build_model_for
from headscope.checkpoint.empty import WithoutInitialization
from headscope.checkpoint.file import Stored, read
from headscope.checkpoint.finding import pick_device
from headscope.config.parts import Part, build_part
from headscope.config.training import TrainConfig
from headscope.data.corpus import Corpus
from headscope.data.tokenizer import Tokenizer, is_own, tokenizer_from_state
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.capture import attention_weights_and_scores
from headscope.nn.checks import token_ids
from headscope.nn.loss import Answers, counted_targets
from headscope.terminal import printable


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file. `step` is the training step at which the file was saved.
    `precision` is the precision of the training run, one of `PRECISIONS`. `answers` is what the
    losses of the run count, if not all tokens."""

    path: Path
    model: GPT
    tokenizer: Tokenizer
    config: TrainConfig
    step: int
    precision: str
    answers: Answers | None

    def tokens(self, text: str | Sequence[int]) -> list[int]:
        """The tokens of a text, or the token ids as they are. Raises UserError if the vocabulary
        cannot encode the text, or if a token id is not in the vocabulary."""
        if isinstance(text, str):
            return self.tokenizer.encode_prompt(text)
        return token_ids(text, self.tokenizer.vocab_size)

    def targets(self, tokens: Tensor, *, begun: bool = True) -> Tensor:
        """The tokens that follow in texts (B, T), (B, T - 1), for losses: IGNORED if the losses of
        the run count only answers and this is none (see `counted_targets`). Without `begun`, the
        beginning of the texts was cut off."""
        return counted_targets(tokens[:, :-1], tokens[:, 1:], self.answers, begun=begun)

    def attention(self, text: str | Sequence[int]) -> "AttentionReading":
        """The attention of the model on a text or on token ids. Only the first `block_size` tokens
        are used.

        Raises UserError if there are no tokens, if the vocabulary cannot encode the text, or if a
        token id is not in the vocabulary.
        """
        tokens = self.tokens(text)[: self.model.block_size]
        if not tokens:
            raise UserError("the text is empty: give at least one token")
        weights, scores = attention_weights_and_scores(
            self.model, torch.tensor([tokens], device=self.model.device)
        )
        return AttentionReading(
            tokens=tokens,
            labels=self.tokenizer.labels(tokens),
            weights=weights[:, 0].cpu(),
            scores=scores[:, 0].cpu(),
        )


@dataclass(frozen=True)
class AttentionReading:
    """The attention of a model (L layers, H heads per layer) on a text of T tokens.

    `labels` are printable texts of the tokens (see `Tokenizer.labels`). `weights` (L, H, T, T) are
    the attention weights. `scores` (L, H, T, T) are the attention scores before the causal mask and
    the softmax. The scores are scaled and include the bias of the position encoding.
    """

    tokens: list[int]
    labels: list[str]
    weights: torch.Tensor
    scores: torch.Tensor

    def __repr__(self) -> str:
        layers, heads, tokens, _ = self.weights.shape
        return f"<{type(self).__name__}: {layers} layers, {heads} heads each, {tokens} tokens>"

    def first(self, length: int) -> Self:
        """The attention among the first `length` tokens. Attention is causal, so the later tokens
        do not affect these weights."""
        return replace(
            self,
            tokens=self.tokens[:length],
            labels=self.labels[:length],
            weights=self.weights[..., :length, :length],
            scores=self.scores[..., :length, :length],
        )

    def to_bertviz(self) -> tuple[tuple[torch.Tensor, ...], list[str]]:
        """The arguments `attention` and `tokens` of BertViz's `head_view` and `model_view`: the
        weights (1, H, T, T) of each layer, and the labels of the tokens."""
        return tuple(self.weights[:, None].unbind()), list(self.labels)


def load(path: str | Path, *, device: str | torch.device = "cpu") -> Checkpoint:
    """Load a checkpoint. The model is on `device`, in evaluation mode.

    Raises UserError if the file is missing, damaged or not a headscope checkpoint, or if a weight
    is NaN or infinite. Also raises UserError if this machine does not have the device.
    """
    path = Path(path)
    device = pick_device(str(device))
    stored = read(path)
    weights, config = stored.weights(), stored.config
    try:
        tokenizer = stored_tokenizer(stored)
        model = build_from_weights(config.model, tokenizer, weights)
    except UserError as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{path} cannot be opened: {reason}") from error
    return Checkpoint(
        path=path,
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        config=config,
        step=stored.step,
        precision=stored.data["precision"],
        answers=stored.answers,
    )


def stored_tokenizer(stored: Stored) -> Tokenizer:
    """The tokenizer of a checkpoint. Raises UserError if it is damaged, or if it is the person's
    own and its module was not named again."""
    return tokenizer_from_state(stored.data["tokenizer"], own_tokenizer(stored))


def own_tokenizer(stored: Stored) -> type | None:
    """The class of a checkpoint's tokenizer, if it is not headscope's."""
    part = stored.config.tokenizer
    if part is None or not is_own(stored.data["tokenizer"]):
        return None
    made = build_part(part, "tokenizer")
    return made.func if isinstance(made.func, type) else None


def build_from_weights(config: Part, tokenizer: Tokenizer, weights: Mapping[str, Tensor]) -> GPT:
    """The model with these weights. Raises UserError for the same reasons as `check_weights`."""
    check_weights(config, tokenizer, weights)
    with WithoutInitialization():
        model = build_model_for(config, tokenizer)
    model.load_state_dict(weights)
    return model


def check_weights(config: Part, tokenizer: Tokenizer, weights: Mapping[str, Tensor]) -> None:
    """Raises UserError unless the model of `config` has exactly these weights. Allocates no memory
    for the weights of a model, however large its sizes are."""
    layers = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
    if config.layers != layers:
        raise UserError(f"model.layers={config.layers}, but there are weights of {layers} layers")
    check_shapes(partial(build_model_for, config, tokenizer), weights)


def check_shapes(build: Callable[[], GPT], weights: Mapping[str, Tensor]) -> None:
    """Raises UserError unless the model that `build` builds has weights with the names, shapes and
    ties of `weights`."""
    with WithoutInitialization(on_meta=True):
        model = build()
    expected = model.state_dict()
    for name in sorted(expected.keys() ^ weights.keys()):
        raise UserError(
            f"the weight {name[:80]} is {'missing' if name in expected else 'not in the model'}"
        )
    for name, weight in expected.items():
        if weight.shape != weights[name].shape:
            raise UserError(
                f"the weight {name} has the shape {tuple(weights[name].shape)}, but the model's is "
                f"{tuple(weight.shape)}"
            )
    tied = model.head.weight is model.embedding.weight
    if tied and not torch.equal(weights["head.weight"], weights["embedding.weight"]):
        raise UserError("embedding and output head differ, but model.tied_head=true ties them")


def load_weights(model: GPT, stored: Stored, *, name: str) -> None:
    """Load the weights of a checkpoint into `model`. Raises UserError if the names or shapes of the
    weights do not match the model."""
    weights = stored.weights()
    try:
        check_shapes(lambda: model, weights)
    except UserError as error:
        raise UserError(
            f"init_from={name} is a model of another shape: {error}; leave out the choices of "
            "model, so that its own are used"
        ) from error
    model.load_state_dict(weights)


def with_block_size(loaded: Checkpoint, block_size: int) -> GPT:
    """The model of the checkpoint `loaded`, with the maximum context length `block_size`.

    Raises UserError if the position encoding works only for the block_size of training, for example
    because it has a learned table.
    """
    if block_size == loaded.model.block_size:
        return loaded.model
    if loaded.model.position.limit:
        raise UserError(
            f"{type(loaded.model.position).__name__} was trained at block_size="
            f"{loaded.model.block_size}: {loaded.model.position.limit}"
        )
    sizes = Part(loaded.config.model, block_size=block_size)
    model = build_from_weights(sizes, loaded.tokenizer, loaded.model.state_dict())
    return model.to(loaded.model.device).eval()


def stored_corpus(loaded: Checkpoint) -> Corpus:
    """The corpus that the configuration of a checkpoint selects. The checkpoint names the files to
    read. Their names are printed on standard error, so that the user sees what is read. Raises
    UserError if the corpus cannot be built here."""
    if loaded.config.data is None:
        raise UserError(
            "the text that this model was trained on is unknown, because the model was imported: "
            "name a text, with data.path= for evaluate and train, or with text= for analyze"
        )
    for line in sources(loaded.config.data, "data"):
        print(printable(line), file=sys.stderr)
    try:
        return build_part(loaded.config.data, "data")
    except UserError as error:
        began = "a relative path begins in the folder where the run was started"
        raise UserError(f"{loaded.path}: {error}; {began}") from error


def sources(part: Part | None, group: str) -> list[str]:
    """One line for each file, folder or dataset that a part of a checkpoint's configuration
    names."""
    return [
        f"Reading {group}.{key}={value}, as the checkpoint says"
        for key in ("path", "name")
        if (value := (part or Part()).get(key)) is not None
    ]
