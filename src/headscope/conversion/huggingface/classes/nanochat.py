"""NanoChatForCausalLM: rotary positions, RMSNorm without gains, squared ReLU, soft-capped logits.

It can only be imported: it normalizes queries and keys without gains, and ours have learned gains,
which become ones. It also differs in three ways that become other weights:

- It normalizes each embedding before the first block. We store the normalized embeddings. So the
  output head is always untied.
- It rotates queries and keys by the negative angle. Swapping the two halves of each head has the
  same effect.
- It normalizes queries and keys after the rotation, which does not change their lengths.

Shapes: V vocab_size, C embed_dim, D head_dim.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headscope.config.model import (
    ModelConfig,
    RmsNormConfig,
    RotaryConfig,
)
from headscope.conversion.huggingface.classes.base import HuggingFaceClass
from headscope.conversion.huggingface.classes.fit import HEAD_NORM_EPS, Abilities
from headscope.conversion.huggingface.classes.settings import Settings, heads, model_of
from headscope.conversion.huggingface.classes.sizes import Sizes
from headscope.conversion.huggingface.classes.table import Constant, Table, Transform


def normalized(theirs: Sequence[Tensor]) -> Tensor:
    """The embeddings (V, C), each divided by its root mean square."""
    rows = theirs[0].float()
    return rows * torch.rsqrt(rows.square().mean(dim=-1, keepdim=True) + HEAD_NORM_EPS)


def swapped(sizes: Sizes) -> Transform:
    """Queries, keys and values, with the two halves of each query and key swapped."""

    def swap(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, 2, sizes.head_dim // 2)).flip(1).flatten(0, 2)

    def join(theirs: Sequence[Tensor]) -> Tensor:
        q, k, v = theirs
        return torch.cat([swap(q), swap(k), v])

    def split(ours: Tensor) -> Sequence[Tensor]:
        q, k, v = ours.split(sizes.qkv_rows)
        return [swap(q), swap(k), v]

    return Transform(split=split, join=join)


class NanoChat(HuggingFaceClass):
    name = "NanoChatForCausalLM"
    model_type = "nanochat"
    prefix = "model."
    tied = False
    abilities = Abilities(position=RotaryConfig, norm=RmsNormConfig, qk_norm=True)

    def reason(self, model: ModelConfig) -> str | None:
        if not model.attention.qk_norm:
            return super().reason(model)
        return f"model.attention.qk_norm=true: {self.name} does not do this with learned gains"

    def settings(self, model: ModelConfig) -> dict[str, Any]:
        raise AssertionError("no model of ours fits this class")

    def read(self, settings: Settings) -> ModelConfig:
        for key in ("attention_bias", "tie_word_embeddings"):
            settings.expect(key, False, default=False)
        settings.expect("rms_norm_eps", HEAD_NORM_EPS, default=HEAD_NORM_EPS)
        count, kv_heads, attention = heads(
            settings, query="num_attention_heads", kv="num_key_value_heads"
        )
        # Without this entry, the cap is 15. null means that there is none.
        key = "final_logit_softcapping"
        default = None if key in settings.values else 15.0
        model = model_of(
            block_size=settings.integer("max_position_embeddings"),
            embed_dim=settings.integer("hidden_size"),
            layers=settings.integer("num_hidden_layers", most=10_000),
            heads=count,
            kv_heads=kv_heads,
            head_dim=settings.integer("head_dim", default=None),
            ff_dim=settings.integer("intermediate_size"),
            attention=attention(scale=None, qk_norm=True, out_proj=True),
            position=settings.rotary(old_key="rope_theta", part_key="partial_rotary_factor"),
            norm=RmsNormConfig(eps=HEAD_NORM_EPS, gain=False),
            activation=settings.activation("hidden_act", default="relu2"),
        )
        model.logit_cap = settings.number(key, default=default)
        return model

    def table(self, model: ModelConfig) -> Table:
        sizes, table = Sizes.of(model), Table()
        embedding = Transform(split=lambda ours: [ours], join=normalized, by_row=True)
        table.add("embedding.weight", "model.embed_tokens.weight", transform=embedding)
        for layer in range(model.layers):
            ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
            table.add(
                f"{ours}.attention.qkv.weight",
                *(f"{theirs}.self_attn.{part}_proj.weight" for part in "qkv"),
                transform=swapped(sizes),
            )
            for our_name, their_name in (
                ("attention.out_proj", "self_attn.o_proj"),
                ("feed_forward.up_proj", "mlp.fc1"),
                ("feed_forward.down_proj", "mlp.fc2"),
            ):
                table.add(f"{ours}.{our_name}.weight", f"{theirs}.{their_name}.weight")
            for name in ("q_norm", "k_norm"):
                gains = Constant((sizes.head_dim,), 1.0)
                table.our_constants[f"{ours}.attention.{name}.weight"] = gains
        table.head(self.head, tied=model.tied_head)
        return table
