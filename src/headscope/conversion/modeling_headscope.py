"""A class of transformers that runs a model trained with headscope.

Load it with `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`.

Shapes: B batch, T new tokens, S all tokens (cached and new), L layers, H heads, V vocab_size.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from headscope.nn import GPT, PARTS, MultiHeadAttention, Position
from headscope.nn.capture import capture_blocks
from headscope.nn.loss import next_token_loss

# transformers 5.24 renamed it.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class HeadscopeConfig(PretrainedConfig):
    """`model` has the keys of headscope's conf/model. The value of a key that selects a part is a
    dictionary: `_target_` is the name of the part, and the other entries are its options.
    `end_of_text` is the token that begins a new document, if the model has a document mask."""

    model_type = "headscope"
    keys_to_ignore_at_inference = (CACHE,)

    def __init__(
        self,
        *,
        vocab_size: int = 1,
        end_of_text: int | None = None,
        model: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        model = model or {}
        self.vocab_size = vocab_size
        self.end_of_text = end_of_text
        self.model = model
        # The names that other tools look for.
        self.hidden_size = model.get("embed_dim")
        self.num_hidden_layers = model.get("layers")
        self.num_attention_heads = model.get("heads")
        self.max_position_embeddings = model.get("block_size")
        options["tie_word_embeddings"] = model.get("tied_head", True)
        super().__init__(**options)


def build_gpt(config: Any, **changes: Any) -> GPT:
    """The untrained model that a `HeadscopeConfig` with these `changes` of its keys describes."""
    keys = {key: value for key, value in config.model.items() if key != "_target_"}
    for key, value in keys.items():
        if isinstance(value, dict):
            part = PARTS[value["_target_"].rpartition(".")[2]]
            keys[key] = partial(part, **{k: v for k, v in value.items() if not k.startswith("_")})
    keys |= {"vocab_size": config.vocab_size, "end_of_text": config.end_of_text} | changes
    return GPT(**keys)


class HeadscopeForCausalLM(PreTrainedModel, GenerationMixin):
    """A `GPT` of headscope with the interface of transformers.

    - Padding may be on the right or on the left. It does not change the logits of the other tokens.
    - `output_attentions` returns the weights (B, H, T, T) of each layer, and uses no cache.
    - The cache, dynamic or static, holds keys and values. It is not used for models with n-gram
      embeddings or a document mask, which need all earlier tokens, nor with padding on the left:
      then each new token is computed from all tokens.
    """

    config_class = HeadscopeConfig
    base_model_prefix = "model"
    # transformers 4 reads only the keys.
    _tied_weights_keys = {"model.head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: HeadscopeConfig) -> None:
        super().__init__(config)
        self.model = build_gpt(config)
        # Whether keys and values are not all that the model needs to know of earlier tokens.
        # transformers then refuses assisted generation, which removes tokens from the cache.
        self._is_stateful = self.model.ngrams > 1 or self.model.end_of_text is not None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.model.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def set_output_embeddings(self, value: Any) -> None:
        self.model.head = value

    def _init_weights(self, module: nn.Module) -> None:
        """Restores the tables and masks of `module`, which are computed and not stored: when
        transformers loads weights, it replaces these buffers by uninitialized memory. The weights
        are not changed, because the constructor of `GPT` initializes them."""
        buffers = dict(module.named_buffers(recurse=False))
        if isinstance(module, MultiHeadAttention) and module.mask is not None:
            with torch.device("cpu"):
                module.mask.copy_(module.causal_mask(len(module.mask)))
        elif buffers and isinstance(module, Position):
            with torch.device("cpu"):
                changes = {"layers": 1, "vocab_size": 1, "ff_dim": 1, "ngrams": 1}
                changes |= {"end_of_text": 0}
                small = build_gpt(self.config, **changes, document_mask=False)
            for name, buffer in buffers.items():
                buffer.copy_(small.position.get_buffer(name))

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        cache: Any = None,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, V) of the next token after each of `input_ids` (B, T).

        `cache` is a cache of transformers, or None; `past_key_values` is its old name.
        `attention_mask` (B, S) is 0 for padding. With `labels` (B, T), usually `input_ids`, also
        returns the mean cross-entropy of the next tokens. A label of -100 does not count.
        """
        cache = past_key_values if cache is None else cache
        cached = 0 if cache is None else int(cache.get_seq_length())  # a static cache has a tensor
        order = left_padding_order(attention_mask)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if self._is_stateful or order is not None or output_attentions:
            if cached or use_cache:
                unfit = "n-gram embeddings, a document mask, left padding or output_attentions"
                raise ValueError(f"a cache cannot be used with {unfit}: use_cache=False")
            cache = None
        elif cache is None and use_cache:
            cache = DynamicCache()
        if order is not None and output_attentions:
            raise ValueError("output_attentions needs padding on the right")
        tokens = input_ids if order is None else input_ids.gather(1, order)
        attentions = None
        if output_attentions:
            captured = capture_blocks(self.model, tokens)
            hidden, attentions = captured.residual[-1], tuple(captured.weights)
        elif cache is None:
            hidden = self.model.hidden(tokens)
        else:  # of the cached tokens, only the number counts
            x = self.model.embed(F.pad(tokens, (cached, 0)), cached)
            pasts: Any = [LayerCache(cache, i, cached) for i in range(len(self.model.blocks))]
            hidden = self.model.through_blocks(x, pasts)
        if order is not None:
            hidden = hidden.take_along_dim(order.argsort(dim=1)[:, :, None], dim=1)
        logits = self.model.unembed(hidden)
        loss = None if labels is None else next_token_loss(logits[:, :-1], labels[:, 1:])
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, attentions=attentions, **{CACHE: cache}
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        use_cache: bool | None = None,
        cache: Any = None,
        next_sequence_length: int | None = None,
        cache_position: Tensor | None = None,
        **unused: Any,
    ) -> dict[str, Any]:
        """The arguments of `forward` for the next step of `generate`.

        `input_ids` (B, S) are all tokens so far. The last `next_sequence_length` of them are not in
        the cache, or the tokens at `cache_position`: this depends on the version of transformers.
        If both are None, all of them may be the next part of a prompt (`prefill_chunk_size`).
        """
        cache = past_key_values if cache is None else cache
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        inputs = {"attention_mask": attention_mask, "output_attentions": output_attentions}
        complete = cache is None or next_sequence_length is not None
        if cache_position is not None:
            complete = int(cache_position[-1]) < input_ids.size(1)
            next_sequence_length = cache_position.numel()
        padded = left_padding_order(attention_mask) is not None
        if not use_cache or self._is_stateful or padded or output_attentions:
            if not complete:
                problem = "this model, or its padding on the left, needs all tokens in each step"
                raise ValueError(f"{problem}: leave out prefill_chunk_size and {CACHE}")
            return {"input_ids": input_ids, "use_cache": False, **inputs}
        new = input_ids if next_sequence_length is None else input_ids[:, -next_sequence_length:]
        return {"input_ids": new, CACHE: cache, "use_cache": True, **inputs}


class LayerCache(NamedTuple):
    """The keys and values of one layer in a cache of transformers, with the interface of `Past`."""

    cache: Any
    layer: int
    length: int

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        end = self.length + k.size(2)
        # transformers 4 needs the position for a static cache.
        position = {"cache_position": torch.arange(self.length, end, device=k.device)}
        k, v = self.cache.update(k, v, self.layer, position)
        if k.size(2) < end:
            raise ValueError(f"the cache holds {k.size(2)} of {end} tokens: use a larger one")
        return k[:, :, :end], v[:, :, :end]  # a static cache has room for later tokens


def left_padding_order(attention_mask: Tensor | None) -> Tensor | None:
    """The order (B, S) in which padding comes after the tokens. None if there is no padding on the
    left. Raises ValueError if there is padding between tokens."""
    if attention_mask is None:
        return None
    real = attention_mask.bool().int()
    starts = F.pad(real, (1, 0)).diff() == 1  # where a token follows padding, or is the first
    if (starts.sum(dim=1) > 1).any():
        raise ValueError("attention_mask has padding between tokens: pad on the left or the right")
    return real.argsort(dim=1, descending=True, stable=True) if starts[:, 1:].any() else None
