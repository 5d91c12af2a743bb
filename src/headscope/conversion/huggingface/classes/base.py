"""The interface of a class of transformers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from headscope.config.model import ModelConfig
from headscope.config.parse import short
from headscope.conversion.huggingface.classes import standard_form
from headscope.conversion.huggingface.classes.fit import Abilities, reason
from headscope.conversion.huggingface.classes.settings import Settings
from headscope.conversion.huggingface.classes.table import Table
from headscope.errors import UserError

UNUSED = r"(^|\.)(rotary_emb\.inv_freq|attn\.(bias|masked_bias)|attention\.(bias|masked_bias))$"
"""The names of tensors in old folders that are not weights: causal masks and constants."""


class HuggingFaceClass(ABC):
    """A class of transformers: which of our models it expresses, and how to convert both ways.

    All methods are pure. `model` is the `model` part of our configuration. `weights` map the names
    in a state dict to tensors; results may share memory with them.
    """

    name: str
    """The name of the class, such as GPT2LMHeadModel."""
    model_type: str
    """The value of `model_type` in config.json."""
    prefix: str
    """The first part of the names of all weights except the output head. Some folders omit it."""
    head = "lm_head.weight"
    """The name of the output head's weights in files."""
    tied: bool
    """Whether the output head is tied if config.json does not say it."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Maps entries of config.json to other names of them that transformers reads too."""
    abilities: Abilities

    def reason(self, model: ModelConfig) -> str | None:
        """None if this class expresses `model` exactly. Otherwise one line that names the key and
        the value that it cannot express."""
        return reason(model, self.abilities, self.name)

    @abstractmethod
    def settings(self, model: ModelConfig) -> dict[str, Any]:
        """The entries of config.json that are specific to this class. `model` is in standard
        form."""

    @abstractmethod
    def read(self, settings: Settings) -> ModelConfig:
        """The `model` part of our configuration, from the entries of config.json. Its `tied_head`
        and a smaller `block_size` are set later. Raises UserError if it cannot be expressed."""

    @abstractmethod
    def table(self, model: ModelConfig) -> Table:
        """The names of all weights. `model` is in standard form."""

    def config(
        self, model: ModelConfig, *, vocab_size: int, end_of_text: int | None
    ) -> dict[str, Any]:
        """The content of config.json. The versions 4.57 and 5 of transformers read it alike."""
        return {
            "architectures": [self.name],
            "model_type": self.model_type,
            "dtype": "float32",
            "vocab_size": vocab_size,
            "tie_word_embeddings": model.tied_head,
            "bos_token_id": end_of_text,
            "eos_token_id": end_of_text,
            **self.settings(standard_form.of_config(model)),
        }

    def model_config(self, hf: Mapping[str, Any], *, block_size: int | None = None) -> ModelConfig:
        """The `model` part of our configuration, from the content of a config.json, which may come
        from a stranger. Dropout is not taken over.

        `block_size` is a shorter context length than that of the model. By default it is the same,
        but at most `MAX_LENGTH` if the position encoding has no table.

        Raises UserError if an entry has the wrong type or is out of range, or if it has a value
        that our model cannot express.
        """
        settings = Settings(self.without_aliases(hf), self.name)
        for key in ("quantization_config", "per_layer_config", "transformers_weights"):
            settings.expect(key, None, default=None)
        if not settings.flag("is_causal", default=True):
            raise settings.refusal("is_causal", False)
        model = self.read(settings)
        model.tied_head = settings.flag("tie_word_embeddings", default=self.tied)
        model.block_size = settings.context_length(model, block_size)
        return model

    def without_aliases(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of config.json, without aliases. Raises UserError if an entry and its alias
        have different values: transformers would use that of the alias."""
        values = dict(hf)
        for key, alias in self.aliases.items():
            other = hf.get(alias)
            if other is not None and hf.get(key, other) != other:
                raise UserError(
                    f"config.json: {key}={short(hf[key])} and {alias}={short(other)} contradict "
                    "each other: keep the one that is meant"
                )
            if other is not None:
                values[key] = other
        return values

    def to_theirs(self, model: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of their class, from the state dict of our model. Biases that our model does
        not have are zeros, and gains are ones. A tied output head is left out."""
        table = self.table(standard_form.of_config(model))
        ours = standard_form.of_weights(model, weights)
        theirs: dict[str, Tensor] = {}
        for link in table.links:
            theirs |= zip(link.theirs, link.transform.split(ours[link.ours]), strict=True)
        like = next(iter(weights.values()))
        for name, constant in table.constants.items():
            theirs[name] = torch.full(constant.shape, constant.value, dtype=like.dtype)
        return theirs

    def to_ours(self, model: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state dict of our model, from the weights of their class. Undoes `to_theirs`."""
        table = self.table(standard_form.of_config(model))
        ours = {
            link.ours: link.transform.join([weights[name] for name in link.theirs])
            for link in table.links
        }
        for name, constant in table.our_constants.items():
            ours[name] = torch.full(constant.shape, constant.value)
        if model.tied_head:
            ours["head.weight"] = ours["embedding.weight"]
        return standard_form.undo(model, ours)
