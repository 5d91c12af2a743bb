"""Loads the model, the tokenizer and the configuration from a checkpoint file, without Lightning.
The file of a stranger cannot run code: it can only name parts of headscope."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.checkpoint.building import build_model_for
from headscope.checkpoint.file import Stored, read
from headscope.checkpoint.finding import pick_device, warn
from headscope.config.parts import Part, build_part
from headscope.config.training import TrainConfig
from headscope.data.corpus import Corpus
from headscope.data.tokenizer import Tokenizer, is_own, tokenizer_from_state
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.capture import attention_weights_and_scores
from headscope.nn.checks import token_ids
from headscope.nn.loss import Answers, counted_targets


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file. `step` is the training step, and `precision` that of the
    run, one of `PRECISIONS`. `answers` is what its losses count, if not all tokens."""

    path: Path
    model: GPT
    tokenizer: Tokenizer
    config: TrainConfig
    step: int
    precision: str
    answers: Answers | None

    def tokens(self, text: str | Sequence[int]) -> list[int]:
        """The tokens of a text, or the token ids as they are. Raises UserError for what is not in
        the vocabulary."""
        if isinstance(text, str):
            return self.tokenizer.encode_prompt(text)
        return token_ids(text, self.tokenizer.vocab_size)

    def targets(self, tokens: Tensor, *, begun: bool = True) -> Tensor:
        """The tokens that follow in texts (B, T), (B, T - 1), for losses (see `counted_targets`).
        Without `begun`, the beginning of the texts was cut off."""
        return counted_targets(tokens[:, :-1], tokens[:, 1:], self.answers, begun=begun)

    def attention(self, text: str | Sequence[int]) -> "AttentionReading":
        """The attention of the model on the first `block_size` tokens of a text or of token ids.
        Raises UserError as `tokens` does, and if there are no tokens."""
        tokens = self.tokens(text)[: self.model.block_size]
        if not tokens:
            raise UserError("the text is empty: give at least one token")
        batch = torch.tensor([tokens], device=self.model.device)
        found = attention_weights_and_scores(self.model, batch)
        weights, scores = (each[:, 0].cpu() for each in found)
        return AttentionReading(tokens, self.tokenizer.labels(tokens), weights, scores)


@dataclass(frozen=True)
class AttentionReading:
    """The attention of a model (L layers, H heads per layer) on a text of T tokens.

    `labels` are printable texts of the tokens. `weights` (L, H, T, T) are the attention weights,
    `scores` (L, H, T, T) those before the causal mask and the softmax: scaled, and with the bias of
    the position encoding.
    """

    tokens: list[int]
    labels: list[str]
    weights: torch.Tensor
    scores: torch.Tensor

    def __repr__(self) -> str:
        layers, heads, tokens, _ = self.weights.shape
        return f"<{type(self).__name__}: {layers} layers, {heads} heads each, {tokens} tokens>"

    def first(self, length: int) -> Self:
        """The attention among the first `length` tokens, which later tokens do not affect."""
        weights, scores = (each[..., :length, :length] for each in (self.weights, self.scores))
        tokens, labels = self.tokens[:length], self.labels[:length]
        return replace(self, tokens=tokens, labels=labels, weights=weights, scores=scores)

    def to_bertviz(self) -> tuple[tuple[torch.Tensor, ...], list[str]]:
        """The arguments `attention` and `tokens` of BertViz's `head_view` and `model_view`: the
        weights (1, H, T, T) of each layer, and the labels of the tokens."""
        return tuple(self.weights[:, None].unbind()), list(self.labels)


def load(path: str | Path, *, device: str | torch.device = "cpu") -> Checkpoint:
    """Load a checkpoint. The model is on `device`, in evaluation mode. Raises UserError if the file
    is missing, damaged or not a headscope checkpoint, if a weight is NaN or infinite, or if this
    machine does not have the device."""
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
    """The tokenizer of a checkpoint. Raises UserError if it is damaged or may not be named."""
    return tokenizer_from_state(stored.data["tokenizer"], own_tokenizer(stored))


def own_tokenizer(stored: Stored) -> type | None:
    """The class of a checkpoint's tokenizer, if it is not headscope's."""
    part = stored.config.tokenizer
    if part is None or not is_own(stored.data["tokenizer"]):
        return None
    made = build_part(part, "tokenizer")
    return made.func if isinstance(made.func, type) else None


class WithoutInitialization(TorchFunctionMode):
    """Inside the `with` block, no random initial weights are drawn: the weights of a new model are
    arbitrary, and all must then be read from a file. This saves most of the time to load one."""

    RANDOM: tuple[Any, ...] = (torch.Tensor.normal_, torch.Tensor.uniform_, nn.init.normal_)
    RANDOM += (nn.init.uniform_, nn.init.kaiming_uniform_)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in self.RANDOM:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def build_from_weights(config: Part, tokenizer: Tokenizer, weights: Mapping[str, Tensor]) -> GPT:
    """The model with these weights. Raises UserError if they do not fit."""
    check_sizes(config, tokenizer, weights)
    with WithoutInitialization():
        model = build_model_for(config, tokenizer)
    load_weights(model, weights)
    return model


def check_sizes(config: Part, tokenizer: Tokenizer, weights: Mapping[str, Tensor]) -> None:
    """Raises UserError if `weights` are of another size, before such a large model is built."""
    layers = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
    shape = tuple(weights["embedding.weight"].shape) if "embedding.weight" in weights else ()
    own = (config.layers, (tokenizer.vocab_size, config.embed_dim))
    if (layers, shape) != own:
        found = f"{layers} layers and an embedding of {shape}"
        raise UserError(f"the weights have {found}, but the model {own[0]} layers and {own[1]}")


def load_weights(model: GPT, weights: Mapping[str, Tensor]) -> None:
    """Loads a state dict into `model`. Raises UserError if the names, shapes or ties of the weights
    are not those of the model."""
    both = [weights[name] for name in ("head.weight", "embedding.weight") if name in weights]
    tied = model.head.weight is model.embedding.weight
    if tied and len(both) == 2 and not torch.equal(*both):
        raise UserError("embedding and output head differ, but model.tied_head=true ties them")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = " ".join(str(error).splitlines()[-1].split())[:300]
        raise UserError(f"the weights are those of another model: {problem}") from error


def with_block_size(loaded: Checkpoint, block_size: int) -> GPT:
    """The model of the checkpoint `loaded`, with the maximum context length `block_size`. Raises
    UserError if the position encoding works only for that of training."""
    if block_size == loaded.model.block_size:
        return loaded.model
    if loaded.model.position.limit:
        position, trained = loaded.model.position, loaded.model.block_size
        kind = type(position).__name__
        raise UserError(f"{kind} was trained at block_size={trained}: {position.limit}")
    sizes = Part(loaded.config.model, block_size=block_size)
    model = build_from_weights(sizes, loaded.tokenizer, loaded.model.state_dict())
    return model.to(loaded.model.device).eval()


def stored_corpus(loaded: Checkpoint) -> Corpus:
    """The corpus that the configuration of a checkpoint selects. Prints on standard error which
    files it reads. Raises UserError if the corpus cannot be built here."""
    if loaded.config.data is None:
        problem = "the text that this model was trained on is unknown, because it was imported"
        raise UserError(f"{problem}: name one with data.path=, or for analyze with text=")
    for line in sources(loaded.config.data, "data"):
        warn(line)
    try:
        return build_part(loaded.config.data, "data")
    except UserError as error:
        began = "a relative path begins in the folder where the run was started"
        raise UserError(f"{loaded.path}: {error}; {began}") from error


def sources(part: Part | None, group: str) -> list[str]:
    """One line for each file, folder or dataset that a part of a checkpoint names."""
    return [
        f"Reading {group}.{key}={value}, as the checkpoint says"
        for key in ("path", "name")
        if (value := (part or Part()).get(key)) is not None
    ]
