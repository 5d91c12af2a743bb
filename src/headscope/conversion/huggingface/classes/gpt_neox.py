"""GPTNeoXForCausalLM: rotary positions, LayerNorm, a feed-forward network without gate.

Shapes: H heads, D head_dim.
"""

from typing import Any

from headscope.config.model import (
    GeluConfig,
    GeluTanhConfig,
    LayerNormConfig,
    ModelConfig,
    MultiHeadConfig,
    ReluSquaredConfig,
    RotaryConfig,
)
from headscope.conversion.huggingface.classes.base import HuggingFaceClass
from headscope.conversion.huggingface.classes.fit import Abilities
from headscope.conversion.huggingface.classes.settings import Settings, heads, model_of
from headscope.conversion.huggingface.classes.sizes import Sizes
from headscope.conversion.huggingface.classes.table import Table, Transform


def by_head(heads: int) -> Transform:
    """GPT-NeoX stores the queries, keys and values of one head, then those of the next head. Ours
    are all queries, then all keys, then all values."""
    return Transform(
        split=lambda ours: [ours.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)],
        join=lambda theirs: theirs[0].unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2),
    )


class GPTNeoX(HuggingFaceClass):
    name = "GPTNeoXForCausalLM"
    model_type = "gpt_neox"
    prefix = "gpt_neox."
    head = "embed_out.weight"  # in memory, version 5 of transformers names it lm_head.weight
    tied = False
    abilities = Abilities(
        position=RotaryConfig,
        norm=LayerNormConfig,
        activations={
            GeluConfig: "gelu",
            GeluTanhConfig: "gelu_pytorch_tanh",
            ReluSquaredConfig: "relu2",
        },
    )

    def settings(self, model: ModelConfig) -> dict[str, Any]:
        assert isinstance(model.norm, LayerNormConfig)
        assert isinstance(model.position, RotaryConfig)
        return {
            "max_position_embeddings": model.block_size,
            "hidden_size": model.embed_dim,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "intermediate_size": Sizes.of(model).ff_dim,
            "hidden_act": self.abilities.activations[type(model.activation)],
            "layer_norm_eps": model.norm.eps,
            "rotary_emb_base": model.position.base,
            "rotary_pct": 1.0,
            "use_parallel_residual": False,
            "attention_bias": True,
            "attention_dropout": model.dropout,
            "hidden_dropout": model.dropout,
        }

    def read(self, settings: Settings) -> ModelConfig:
        settings.expect("use_parallel_residual", False, default=True)
        settings.expect("attention_bias", True, default=True)
        count, _, _ = heads(settings, query="num_attention_heads")
        width = settings.integer("hidden_size")
        # Its rotary positions use head_dim, but its heads do not.
        settings.expect("head_dim", None, width // count, default=None)
        return model_of(
            block_size=settings.integer("max_position_embeddings"),
            embed_dim=width,
            layers=settings.integer("num_hidden_layers", most=10_000),
            heads=count,
            ff_dim=settings.integer("intermediate_size"),
            bias=True,
            qkv_bias=True,
            attention=MultiHeadConfig(scale=None, qk_norm=False, out_proj=True),
            position=settings.rotary(
                old_key="rotary_emb_base", part_key="rotary_pct", part_default=0.25
            ),
            norm=LayerNormConfig(eps=settings.number("layer_norm_eps", default=1e-5)),
            activation=settings.activation("hidden_act", default="gelu"),
        )

    def table(self, model: ModelConfig) -> Table:
        width, sizes, table = model.embed_dim, Sizes.of(model), Table()
        table.add("embedding.weight", "gpt_neox.embed_in.weight")
        for layer in range(model.layers):
            ours, theirs = f"blocks.{layer}", f"gpt_neox.layers.{layer}"
            table.linear(
                f"{ours}.attention.qkv",
                f"{theirs}.attention.query_key_value",
                bias=model.qkv_bias,
                rows=3 * width,
                weight=by_head(model.heads),
                vector=by_head(model.heads),
            )
            for our_name, their_name, rows in (
                ("attention.out_proj", "attention.dense", width),
                ("feed_forward.up_proj", "mlp.dense_h_to_4h", sizes.ff_dim),
                ("feed_forward.down_proj", "mlp.dense_4h_to_h", width),
            ):
                table.linear(
                    f"{ours}.{our_name}", f"{theirs}.{their_name}", bias=model.bias, rows=rows
                )
            for our_name, their_name in (
                ("attention_norm", "input_layernorm"),
                ("feed_forward_norm", "post_attention_layernorm"),
            ):
                table.norm(
                    f"{ours}.{our_name}", f"{theirs}.{their_name}", width=width, bias=model.bias
                )
        table.norm("norm", "gpt_neox.final_layer_norm", width=width, bias=model.bias)
        table.head(self.head, tied=model.tied_head)
        return table
