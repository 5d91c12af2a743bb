"""GPT2LMHeadModel: learned positions, LayerNorm, a feed-forward network without gate."""

from collections.abc import Mapping
from typing import Any, ClassVar

from headscope.config.model import (
    GeluConfig,
    GeluTanhConfig,
    LayerNormConfig,
    LearnedConfig,
    ModelConfig,
    MultiHeadConfig,
    ReluSquaredConfig,
)
from headscope.conversion.huggingface.classes.base import HuggingFaceClass
from headscope.conversion.huggingface.classes.fit import Abilities
from headscope.conversion.huggingface.classes.settings import Settings, heads, model_of
from headscope.conversion.huggingface.classes.sizes import Sizes
from headscope.conversion.huggingface.classes.table import TRANSPOSED, Table


class GPT2(HuggingFaceClass):
    name = "GPT2LMHeadModel"
    model_type = "gpt2"
    prefix = "transformer."
    tied = True
    aliases: ClassVar[Mapping[str, str]] = {
        "n_positions": "max_position_embeddings",
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
    }
    abilities = Abilities(
        position=LearnedConfig,
        norm=LayerNormConfig,
        activations={GeluTanhConfig: "gelu_new", GeluConfig: "gelu", ReluSquaredConfig: "relu2"},
    )

    def settings(self, model: ModelConfig) -> dict[str, Any]:
        dropouts = ("attn_pdrop", "resid_pdrop", "embd_pdrop")
        assert isinstance(model.norm, LayerNormConfig)
        return {
            "n_positions": model.block_size,
            "n_embd": model.embed_dim,
            "n_layer": model.layers,
            "n_head": model.heads,
            "n_inner": Sizes.of(model).ff_dim,
            "activation_function": self.abilities.activations[type(model.activation)],
            "layer_norm_epsilon": model.norm.eps,
            # False would express a scale of 1, but version 4.57 ignores it unless
            # attn_implementation is "eager".
            "scale_attn_weights": True,
            **dict.fromkeys(dropouts, model.dropout),
        }

    def read(self, settings: Settings) -> ModelConfig:
        settings.expect("scale_attn_by_inverse_layer_idx", False, default=False)
        settings.expect("add_cross_attention", False, default=False)
        count, _, _ = heads(settings, query="n_head")
        scaled = settings.flag("scale_attn_weights", default=True)
        return model_of(
            block_size=settings.integer("n_positions"),
            embed_dim=settings.integer("n_embd"),
            layers=settings.integer("n_layer", most=10_000),
            heads=count,
            ff_dim=settings.integer("n_inner", default=None),
            bias=True,
            qkv_bias=True,
            attention=MultiHeadConfig(scale=None if scaled else 1.0, qk_norm=False, out_proj=True),
            position=LearnedConfig(),
            norm=LayerNormConfig(eps=settings.number("layer_norm_epsilon", default=1e-5)),
            activation=settings.activation("activation_function", default="gelu_new"),
        )

    def table(self, model: ModelConfig) -> Table:
        width, sizes, table = model.embed_dim, Sizes.of(model), Table()
        table.add("embedding.weight", "transformer.wte.weight")
        table.add("position.table.weight", "transformer.wpe.weight")
        for layer in range(model.layers):
            ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
            for our_name, their_name, rows, bias in (
                ("attention.qkv", "attn.c_attn", 3 * width, model.qkv_bias),
                ("attention.out_proj", "attn.c_proj", width, model.bias),
                ("feed_forward.up_proj", "mlp.c_fc", sizes.ff_dim, model.bias),
                ("feed_forward.down_proj", "mlp.c_proj", width, model.bias),
            ):
                table.linear(
                    f"{ours}.{our_name}",
                    f"{theirs}.{their_name}",
                    bias=bias,
                    rows=rows,
                    weight=TRANSPOSED,
                )
            for our_name, their_name in (("attention_norm", "ln_1"), ("feed_forward_norm", "ln_2")):
                table.norm(
                    f"{ours}.{our_name}", f"{theirs}.{their_name}", width=width, bias=model.bias
                )
        table.norm("norm", "transformer.ln_f", width=width, bias=model.bias)
        table.head(self.head, tied=model.tied_head)
        return table
