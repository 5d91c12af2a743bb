"""A class of transformers that runs a model trained with headscope.

Load it with `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`.

Shapes: B batch, T new tokens, S all tokens (cached and new), L layers, H heads, V vocab_size.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from headscope.nn import GPT, PARTS, MultiHeadAttention, Position, gpt_from_keys
from headscope.nn.capture import captured_attention
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
    """The model that the `HeadscopeConfig` describes, with untrained weights. `changes` are keys
    with other values."""
    keys = {key: value for key, value in config.model.items() if key != "_target_"}
    keys |= {"vocab_size": config.vocab_size, "end_of_text": config.end_of_text} | changes
    return gpt_from_keys(
        **{key: part(value) if isinstance(value, dict) else value for key, value in keys.items()}
    )


def part(settings: dict[str, Any]) -> Any:
    """The function or class that `_target_` in `settings` names, with its options."""
    name = settings["_target_"].rpartition(".")[2]
    return partial(PARTS[name], **{k: v for k, v in settings.items() if not k.startswith("_")})


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
        # Assisted generation removes rejected tokens from the cache. transformers refuses it here.
        self._is_stateful = not self.can_cache(None)
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
        if not isinstance(module, MultiHeadAttention | Position):
            return
        buffers = dict(module.named_buffers(recurse=False))
        if not buffers or any(buffer.is_meta for buffer in buffers.values()):
            return
        smallest = {"layers": 1, "vocab_size": 1, "ff_dim": 1, "ngrams": 1, "document_mask": False}
        with torch.device("cpu"):
            small = build_gpt(self.config, **smallest)
        computed = small.position if isinstance(module, Position) else small.attentions[0]
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(computed.get_buffer(name))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        cache: Any = None,
    ) -> Any:
        """Logits (B, T, V) of the next token after each of `input_ids` (B, T).

        `cache` is a cache of transformers, or None; `past_key_values` is its old name.
        `attention_mask` (B, S) is 0 for padding. With `labels` (B, T), which are usually
        `input_ids`, also returns the mean cross-entropy of each next token. A label of -100 does
        not count.
        """
        padding = None if attention_mask is None else left_padding(attention_mask)
        past = past_key_values if cache is None else cache
        cached = length_of(past)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if return_dict is None:
            return_dict = self.config.return_dict
        if not self.can_cache(padding) or output_attentions:
            if cached or use_cache:
                raise ValueError(
                    "a cache cannot be used with n-gram embeddings, a document mask, "
                    "padding on the left or output_attentions: give all tokens, and use_cache=False"
                )
            past = None
        elif past is None and use_cache:
            past = DynamicCache()
        attentions: list[Tensor] | None = None
        if padding is not None:
            if output_attentions:
                raise ValueError("output_attentions needs padding on the right")
            hidden = rolled(self.model.hidden(rolled(input_ids, -padding)), padding)
        elif output_attentions:
            with captured_attention(self.model) as attentions:
                hidden = self.model.hidden(input_ids)
        elif past is None:
            hidden = self.model.hidden(input_ids)
        else:
            hidden = self.hidden_with_cache(input_ids, past, cached)
        logits = self.model.unembed(hidden)
        loss = None if labels is None else next_token_loss(logits[:, :-1], labels[:, 1:])
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            attentions=None if attentions is None else tuple(attentions),
            **{CACHE: past},
        )
        return output if return_dict else output.to_tuple()

    def hidden_with_cache(self, tokens: Tensor, cache: Any, cached: int) -> Tensor:
        """The last block's output for new `tokens` (B, T), which follow the `cached` tokens in
        `cache`."""
        gpt = self.model
        end = cached + tokens.size(1)
        if end > gpt.block_size:
            raise ValueError(f"{end} tokens are more than block_size={gpt.block_size}")
        x = gpt.dropout(gpt.position(gpt.embedding(tokens) * gpt.embedding_scale, cached))
        pasts: Any = [LayerCache(cache, layer, cached) for layer in range(len(gpt.blocks))]
        return gpt.through_blocks(x, pasts)

    def can_cache(self, padding: Tensor | None) -> bool:
        """Whether keys and values are all that the model needs to know of earlier tokens. `padding`
        is the result of `left_padding`."""
        return padding is None and self.model.ngrams == 1 and self.model.end_of_text is None

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
        padding = None if attention_mask is None else left_padding(attention_mask)
        past = past_key_values if cache is None else cache
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        inputs = {"attention_mask": attention_mask, "output_attentions": output_attentions}
        complete = past is None or next_sequence_length is not None
        if cache_position is not None:
            complete = int(cache_position[-1]) < input_ids.size(1)
            next_sequence_length = cache_position.numel()
        if not use_cache or output_attentions or not self.can_cache(padding):
            if not complete:
                raise ValueError(
                    "this model, or its padding on the left, needs all tokens in each step: leave "
                    f"out prefill_chunk_size and {CACHE}"
                )
            return {"input_ids": input_ids, "use_cache": False, **inputs}
        new = input_ids if next_sequence_length is None else input_ids[:, -next_sequence_length:]
        return {"input_ids": new, CACHE: past, "use_cache": True, **inputs}


def length_of(cache: Any) -> int:
    """The number of tokens in a cache of transformers, or 0 without a cache."""
    return 0 if cache is None else int(cache.get_seq_length())  # a static cache has a tensor


class LayerCache:
    """The keys and values of one layer in a cache of transformers, with the interface of `Past`."""

    def __init__(self, cache: Any, layer: int, length: int) -> None:
        self.cache, self.layer, self.length = cache, layer, length

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        end = self.length + k.size(2)
        # transformers 4 needs the position for a static cache.
        position = {"cache_position": torch.arange(self.length, end, device=k.device)}
        k, v = self.cache.update(k, v, self.layer, position)
        if k.size(2) < end:
            raise ValueError(f"the cache holds {k.size(2)} of {end} tokens: use a larger one")
        return k[:, :, :end], v[:, :, :end]  # a static cache has room for later tokens


def left_padding(attention_mask: Tensor) -> Tensor | None:
    """The number of padding tokens on the left of each sequence (B,). None if there are none.

    Raises ValueError if there is padding between tokens.
    """
    real = attention_mask.bool()
    if real.all():
        return None
    padding = real.int().argmax(dim=1)
    position = torch.arange(real.size(1), device=real.device)
    length = real.sum(dim=1)
    inside = (position >= padding[:, None]) & (position < (padding + length)[:, None])
    if not torch.equal(inside, real):
        raise ValueError("attention_mask has padding between tokens: pad on the left or the right")
    return padding if padding.any() else None


def rolled(x: Tensor, shifts: Tensor) -> Tensor:
    """Shifts each sequence x[b] (S, ...) by shifts[b] to the right. What leaves it on one side
    enters it on the other side."""
    position = torch.arange(x.size(1), device=x.device)
    index = (position - shifts[:, None]) % x.size(1)  # (B, S)
    return x[torch.arange(x.size(0), device=x.device)[:, None], index]
