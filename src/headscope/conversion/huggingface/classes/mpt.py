"""MptForCausalLM: ALiBi, LayerNorm and linear layers without biases.

For any number of heads, its slopes are those of our ALiBi. It does not subtract the position of the
query from that of the key, which changes all scores of a query by the same number, and no weight.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from headscope.config.model import (
    AlibiConfig,
    GeluConfig,
    LayerNormConfig,
    ModelConfig,
    MultiHeadConfig,
)
from headscope.conversion.huggingface.classes.base import HuggingFaceClass
from headscope.conversion.huggingface.classes.fit import Abilities
from headscope.conversion.huggingface.classes.settings import Settings, heads, model_of
from headscope.conversion.huggingface.classes.table import Table

FIXED: dict[str, tuple[Any, ...]] = {
    "expansion_ratio": (4, 4.0),
    "logit_scale": (None,),
    "no_bias": (True,),
    "norm_type": ("low_precision_layernorm", "layernorm"),
}
"""Entries that MptForCausalLM ignores, and the values with which this makes no difference. The
first value is the default."""

FIXED_ATTENTION: dict[str, tuple[Any, ...]] = {
    "attn_type": ("multihead_attention",),
    "clip_qkv": (None,),
    "prefix_lm": (False,),
    "qk_ln": (False,),
    "alibi": (True,),
    "alibi_bias_max": (8,),
}


class Mpt(HuggingFaceClass):
    name = "MptForCausalLM"
    model_type = "mpt"
    prefix = "transformer."
    tied = True
    aliases: ClassVar[Mapping[str, str]] = {
        "d_model": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
    }
    abilities = Abilities(
        position=AlibiConfig,
        norm=LayerNormConfig,
        activations={GeluConfig: "gelu"},
        bias=False,
        qkv_bias=False,
        ff_dim=False,
        any_scale=True,
    )

    def settings(self, model: ModelConfig) -> dict[str, Any]:
        assert isinstance(model.norm, LayerNormConfig)
        return {
            "max_seq_len": model.block_size,
            "d_model": model.embed_dim,
            "n_layers": model.layers,
            "n_heads": model.heads,
            "layer_norm_epsilon": model.norm.eps,
            "learned_pos_emb": False,
            "attn_config": {"alibi": True, "softmax_scale": model.attention.scale},
            **{key: values[0] for key, values in FIXED.items()},
        }

    def read(self, settings: Settings) -> ModelConfig:
        attention = settings.part("attn_config")
        for part, fixed in ((settings, FIXED), (attention, FIXED_ATTENTION)):
            for key, allowed in fixed.items():
                part.expect(key, *allowed, default=allowed[0])
        count, _, _ = heads(settings, query="n_heads")
        scale = attention.number("softmax_scale", default=None)
        return model_of(
            block_size=settings.integer("max_seq_len"),
            embed_dim=settings.integer("d_model"),
            layers=settings.integer("n_layers", most=10_000),
            heads=count,
            attention=MultiHeadConfig(scale=scale, qk_norm=False, out_proj=True),
            position=AlibiConfig(),
            norm=LayerNormConfig(eps=settings.number("layer_norm_epsilon", default=1e-5)),
            activation=GeluConfig(),
        )

    def table(self, model: ModelConfig) -> Table:
        width, table = model.embed_dim, Table()
        table.add("embedding.weight", "transformer.wte.weight")
        for layer in range(model.layers):
            ours, theirs = f"blocks.{layer}", f"transformer.blocks.{layer}"
            for our_name, their_name in (
                ("attention.qkv", "attn.Wqkv"),
                ("attention.out_proj", "attn.out_proj"),
                ("feed_forward.up_proj", "ffn.up_proj"),
                ("feed_forward.down_proj", "ffn.down_proj"),
                ("attention_norm", "norm_1"),
                ("feed_forward_norm", "norm_2"),
            ):
                table.add(f"{ours}.{our_name}.weight", f"{theirs}.{their_name}.weight")
        table.norm("norm", "transformer.norm_f", width=width)
        table.head(self.head, tied=model.tied_head)
        return table
