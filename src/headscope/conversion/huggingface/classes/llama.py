"""Classes like LlamaForCausalLM: rotary positions, RMSNorm with gains, grouped heads.

Llama and Qwen3 have SwiGLU. Qwen3 also normalizes queries and keys. Arcee has a feed-forward
network without gate, with squared ReLU.
"""

from typing import Any

from headscope.config.model import (
    ActivationConfig,
    GeluConfig,
    GeluTanhConfig,
    MlpConfig,
    ModelConfig,
    ReluSquaredConfig,
    RmsNormConfig,
    RotaryConfig,
    SwiGluConfig,
)
from headscope.conversion.huggingface.classes.base import HuggingFaceClass
from headscope.conversion.huggingface.classes.fit import HEAD_NORM_EPS, Abilities
from headscope.conversion.huggingface.classes.settings import Settings, heads, model_of
from headscope.conversion.huggingface.classes.sizes import Sizes
from headscope.conversion.huggingface.classes.table import Table, parts


class Llama(HuggingFaceClass):
    name = "LlamaForCausalLM"
    model_type = "llama"
    prefix = "model."
    tied = False
    abilities = Abilities(
        position=RotaryConfig,
        norm=RmsNormConfig,
        feed_forward=SwiGluConfig,
        grouped=True,
        any_head_dim=True,
    )
    eps = 1e-6
    """The default of rms_norm_eps."""

    def activation(self, model: ModelConfig) -> str:
        """The value of hidden_act."""
        return "silu"

    def read_activation(self, settings: Settings) -> tuple[MlpConfig, ActivationConfig]:
        """The feed-forward network and the activation that config.json describes. SwiGLU does not
        use the activation."""
        settings.expect("hidden_act", "silu", "swish", default="silu")
        return SwiGluConfig(), GeluConfig()

    def settings(self, model: ModelConfig) -> dict[str, Any]:
        sizes = Sizes.of(model)
        assert isinstance(model.norm, RmsNormConfig)
        assert isinstance(model.position, RotaryConfig)
        return {
            "max_position_embeddings": model.block_size,
            "hidden_size": model.embed_dim,
            "num_hidden_layers": model.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "intermediate_size": sizes.ff_dim,
            "hidden_act": self.activation(model),
            "rms_norm_eps": model.norm.eps,
            "rope_theta": model.position.base,
            "attention_bias": model.bias or model.qkv_bias,
            "mlp_bias": model.bias,
            "attention_dropout": model.dropout,
        }

    def read(self, settings: Settings) -> ModelConfig:
        count, kv_heads, attention = heads(
            settings, query="num_attention_heads", kv="num_key_value_heads"
        )
        bias = settings.flag("attention_bias", default=False)
        if settings.flag("mlp_bias", default=False) != bias:
            raise settings.refusal("mlp_bias", f"{not bias} with attention_bias={bias}")
        feed_forward, activation = self.read_activation(settings)
        return model_of(
            block_size=settings.integer("max_position_embeddings"),
            embed_dim=settings.integer("hidden_size"),
            layers=settings.integer("num_hidden_layers", most=10_000),
            heads=count,
            kv_heads=kv_heads,
            head_dim=settings.integer("head_dim", default=None),
            ff_dim=settings.integer("intermediate_size"),
            bias=bias,
            qkv_bias=bias,
            attention=attention(scale=None, qk_norm=self.abilities.qk_norm, out_proj=True),
            position=settings.rotary(old_key="rope_theta", part_key="partial_rotary_factor"),
            norm=RmsNormConfig(eps=settings.number("rms_norm_eps", default=self.eps), gain=True),
            activation=activation,
            feed_forward=feed_forward,
        )

    def table(self, model: ModelConfig) -> Table:
        width, sizes, table = model.embed_dim, Sizes.of(model), Table()
        assert isinstance(model.norm, RmsNormConfig)
        gain = model.norm.gain
        table.add("embedding.weight", "model.embed_tokens.weight")
        for layer in range(model.layers):
            ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
            names = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
            table.linear(
                f"{ours}.attention.qkv",
                dict(zip(names, sizes.qkv_rows, strict=True)),
                bias=model.qkv_bias,
                their_bias=model.bias,
                weight=parts(*sizes.qkv_rows),
                vector=parts(*sizes.qkv_rows),
            )
            table.linear(
                f"{ours}.attention.out_proj",
                f"{theirs}.self_attn.o_proj",
                bias=model.bias,
                their_bias=model.qkv_bias,
                rows=width,
            )
            if self.abilities.qk_norm:
                for name in ("q_norm", "k_norm"):
                    table.norm(
                        f"{ours}.attention.{name}",
                        f"{theirs}.self_attn.{name}",
                        width=sizes.head_dim,
                    )
            gate = ["gate_proj"] if self.abilities.feed_forward is SwiGluConfig else []
            for name in [*gate, "up_proj", "down_proj"]:
                our_name, their_name = f"{ours}.feed_forward.{name}", f"{theirs}.mlp.{name}"
                table.linear(our_name, their_name, bias=model.bias, their_bias=False)
            for our_name, their_name in (
                ("attention_norm", "input_layernorm"),
                ("feed_forward_norm", "post_attention_layernorm"),
            ):
                table.norm(f"{ours}.{our_name}", f"{theirs}.{their_name}", width=width, gain=gain)
        table.norm("norm", "model.norm", width=width, gain=gain)
        table.head(self.head, tied=model.tied_head)
        return table


class Arcee(Llama):
    name = "ArceeForCausalLM"
    model_type = "arcee"
    abilities = Abilities(
        position=RotaryConfig,
        norm=RmsNormConfig,
        activations={
            ReluSquaredConfig: "relu2",
            GeluConfig: "gelu",
            GeluTanhConfig: "gelu_pytorch_tanh",
        },
        grouped=True,
        any_head_dim=True,
    )
    eps = 1e-5

    def activation(self, model: ModelConfig) -> str:
        return self.abilities.activations[type(model.activation)]

    def read_activation(self, settings: Settings) -> tuple[MlpConfig, ActivationConfig]:
        return MlpConfig(), settings.activation("hidden_act", default="relu2")


class Qwen3(Llama):
    name = "Qwen3ForCausalLM"
    model_type = "qwen3"
    abilities = Abilities(
        position=RotaryConfig,
        norm=RmsNormConfig,
        feed_forward=SwiGluConfig,
        bias=False,
        grouped=True,
        any_head_dim=True,
        divides=False,
        qk_norm=True,
    )

    def read(self, settings: Settings) -> ModelConfig:
        settings.expect("use_sliding_window", False, default=False)
        layers = settings.raw("layer_types", [])
        if not isinstance(layers, list) or any(each != "full_attention" for each in layers):
            raise settings.refusal("layer_types", layers)
        settings.expect("attention_bias", False, default=False)
        settings.expect("rms_norm_eps", HEAD_NORM_EPS, default=self.eps)
        defaults = {"head_dim": 128, "num_key_value_heads": 32}
        return super().read(Settings({**defaults, **settings.values}, settings.name))
