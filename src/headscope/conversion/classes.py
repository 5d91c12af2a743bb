"""The classes of Hugging Face transformers that headscope reads and writes.

Each class maps entries of config.json to keys of ours, and the names of its parameters to the names
of ours. Whether a model is the same function in both is not derived from rules: `exact.py` and
`folder.py` compare logits.

Shapes: C embed_dim, H heads, K kv heads, D head_dim, V vocab_size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headscope.checkpoint.building import WithoutInitialization
from headscope.config import parse
from headscope.config.model import (
    ActivationConfig,
    AlibiConfig,
    AttentionConfig,
    GeluConfig,
    GeluTanhConfig,
    GroupedQueryConfig,
    LayerNormConfig,
    LearnedConfig,
    MlpConfig,
    ModelConfig,
    MultiHeadConfig,
    MultiQueryConfig,
    NormConfig,
    PositionConfig,
    ReluSquaredConfig,
    RmsNormConfig,
    RotaryConfig,
    SingleHeadConfig,
    StackedHeadsConfig,
    SwiGluConfig,
)
from headscope.config.parse import short
from headscope.conversion.settings import Settings
from headscope.conversion.standard_form import standard_form
from headscope.errors import UserError, first_line
from headscope.nn import GPT, MultiHeadAttention
from headscope.nn.norm import HeadNorm

ACTIVATIONS: dict[str, type[ActivationConfig]] = {
    "gelu": GeluConfig,
    "gelu_python": GeluConfig,
    "gelu_pytorch_tanh": GeluTanhConfig,
    "gelu_new": GeluTanhConfig,
    "gelu_python_tanh": GeluTanhConfig,
    "gelu_fast": GeluTanhConfig,
    "relu2": ReluSquaredConfig,
}
"""Our activation function for each name that transformers has for it."""

HEAD_NORM_EPS = float(HeadNorm(1).eps or 0)
"""The `eps` of our norm of queries and keys. transformers uses the `eps` of the other norms."""


DOT_PRODUCT = (
    *(SingleHeadConfig, MultiHeadConfig, MultiQueryConfig, GroupedQueryConfig, StackedHeadsConfig),
)
"""The attentions that other tools have. They do not have those that a user adds to headscope."""


class Unfit(Exception):
    """A class of transformers has no place for a part of a model."""


@dataclass(frozen=True)
class Transform:
    """How a parameter of ours becomes one or more parameters of theirs (`split`), and back
    (`join`)."""

    split: Callable[[Tensor], Sequence[Tensor]]
    join: Callable[[Sequence[Tensor]], Tensor]


SAME = Transform(split=lambda ours: [ours], join=lambda theirs: theirs[0])
TRANSPOSED = Transform(split=lambda ours: [ours.t()], join=lambda theirs: theirs[0].t())


def by_head(heads: int) -> Transform:
    """GPT-NeoX stores the queries, keys and values of one head, then those of the next head. Ours
    are all queries, then all keys, then all values."""
    return Transform(
        split=lambda ours: [ours.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)],
        join=lambda theirs: theirs[0].unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2),
    )


def projection_rows(layer: MultiHeadAttention) -> list[int]:
    """The numbers of rows of the matrices for queries, keys and values."""
    return [count * layer.head_dim for count in (layer.heads, layer.kv_heads, layer.kv_heads)]


def separate(layer: MultiHeadAttention, change: Callable[[Tensor], Tensor]) -> Transform:
    """Queries, keys and values in separate matrices. `change`, which undoes itself, is applied to
    queries and keys."""
    rows = projection_rows(layer)

    def apply(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        return [change(q), change(k), v]

    return Transform(
        split=lambda ours: apply(*ours.split(rows)),
        join=lambda theirs: torch.cat(apply(*theirs)),
    )


class HuggingFaceClass:
    """A class of transformers. `keys` maps our keys to its entries in config.json. `parts` are the
    layers of a block, and `ends` those outside the blocks, as {our name: its name or names}."""

    name: ClassVar[str]
    model_type: ClassVar[str]
    head = "lm_head.weight"
    """The name of the output head in files."""
    attention: tuple[type[AttentionConfig], ...] = DOT_PRODUCT
    position: tuple[type[PositionConfig], ...] = (RotaryConfig,)
    norm: tuple[type[NormConfig], ...] = (LayerNormConfig,)
    feed_forward: tuple[type[MlpConfig], ...] = (MlpConfig,)
    qk_norm = False
    can_export = True
    keys: ClassVar[dict[str, str]]
    fixed: ClassVar[dict[str, Any]] = {}
    """Entries of config.json that are the same for every model of ours."""
    dropouts: tuple[str, ...] = ("attention_dropout",)
    gelu_tanh = "gelu_pytorch_tanh"
    ends: ClassVar[dict[str, str]]
    block: str
    parts: ClassVar[dict[str, str | tuple[str, ...]]]

    # --- config.json ---

    def entries(self, gpt: GPT, config: ModelConfig) -> dict[str, Any]:
        """The content of config.json for a model in standard form. The versions 4.57 and 5 of
        transformers read it alike. Raises Unfit if the class has another part."""
        for group in ("attention", "position", "norm", "feed_forward"):
            if type(getattr(config, group)) not in getattr(self, group):
                raise Unfit(group)
        if "kv_heads" not in self.keys and gpt.attentions[0].kv_heads != gpt.attentions[0].heads:
            raise Unfit("kv_heads")
        layer, network, norm = gpt.attentions[0], gpt.blocks[0].feed_forward, gpt.norm
        values = {
            "block_size": gpt.block_size,
            "embed_dim": layer.embed_dim,
            "layers": len(gpt.blocks),
            "heads": layer.heads,
            "kv_heads": layer.kv_heads,
            "head_dim": layer.head_dim,
            "ff_dim": network.up_proj.out_features,  # type: ignore[union-attr]
            "eps": norm.eps,
            "base": getattr(config.position, "base", None),
            "activation": self.activation_name(type(config.activation)),
        }
        return {
            "architectures": [self.name],
            "model_type": self.model_type,
            "dtype": "float32",
            "vocab_size": gpt.vocab_size,
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
            "tie_word_embeddings": config.tied_head,
            **{theirs: values[ours] for ours, theirs in self.keys.items()},
            **dict.fromkeys(self.dropouts, config.dropout),
            **self.fixed,
        }

    def activation_name(self, activation: type[ActivationConfig]) -> str:
        if self.feed_forward[0] is SwiGluConfig:
            return "silu"
        names = [name for name, each in ACTIVATIONS.items() if each is activation]
        if not names:
            raise Unfit("activation")
        return self.gelu_tanh if activation is GeluTanhConfig else names[0]

    def read(self, settings: Settings, names: set[str]) -> ModelConfig:
        """Our configuration. `names` are those of the parameters. Raises UserError if an entry has
        no counterpart in headscope."""
        found = {ours: settings.get(theirs) for ours, theirs in self.keys.items()}
        heads, kv_heads = found["heads"], found.get("kv_heads")
        attention = MultiHeadConfig
        if kv_heads not in (None, heads):
            attention = MultiQueryConfig if kv_heads == 1 else GroupedQueryConfig  # type: ignore[assignment]
        activation: ActivationConfig = GeluConfig()
        if self.feed_forward[0] is not SwiGluConfig and "activation" in found:
            activation = self.activation(self.keys["activation"], found["activation"])
        position = self.position[0](**({"base": found["base"]} if "base" in found else {}))
        if isinstance(position, RotaryConfig):
            position.base, position.interleaved = settings.rotary_base(self.keys["base"]), False
        norm = self.norm[0](eps=found["eps"])  # type: ignore[call-arg]
        if isinstance(norm, RmsNormConfig):
            norm.gain = self.has("norm.weight", names)
        model = ModelConfig(
            block_size=found["block_size"],
            embed_dim=found["embed_dim"],
            layers=found["layers"],
            heads=heads,
            kv_heads=kv_heads if attention is not MultiHeadConfig else None,
            head_dim=found.get("head_dim"),
            ff_dim=found.get("ff_dim"),
            dropout=0.0,
            bias=self.has("blocks.0.attention.out_proj.bias", names),
            qkv_bias=self.has("blocks.0.attention.qkv.bias", names),
            tied_head=bool(settings.get("tie_word_embeddings")),
            scale_embedding=False,
            ngrams=1,
            ngram_buckets=8192,
            logit_cap=None,
            document_mask=False,
            attention=attention(scale=None, qk_norm=self.qk_norm, out_proj=True),
            position=position,
            norm=norm,
            activation=activation,
            feed_forward=self.feed_forward[0](),
        )
        self.adjust(model, settings)
        return parse(ModelConfig, asdict(model))  # checks the types of all values

    def activation(self, key: str, name: Any) -> ActivationConfig:
        if name not in ACTIVATIONS:
            raise UserError(
                f"config.json: {key}={short(name)} is not an activation function of headscope"
            )
        return ACTIVATIONS[name]()

    def adjust(self, model: ModelConfig, settings: Settings) -> None:
        """Applies entries of config.json that only this class has."""

    # --- parameters ---

    def build(self, config: Any) -> Any:
        """The model of transformers with this configuration, or with these entries of config.json.
        Its weights are arbitrary. Raises Unfit if transformers refuses them, or does not have this
        class."""
        import transformers

        try:
            made = getattr(transformers, self.name)
            if isinstance(config, dict):
                config = made.config_class(**config)
            with WithoutInitialization():
                options = {"attn_implementation": "eager", "dtype": torch.float32}
                return made._from_config(config, **options).eval()
        except Exception as error:  # for example sizes that do not fit together
            raise Unfit(f"transformers cannot build it: {first_line(error)[:200]}") from error

    def counterpart(self, ours: str) -> list[str]:
        """The names of their parameters that together are this parameter of ours, or an empty
        list."""
        module, _, kind = ours.rpartition(".")
        if module.startswith("blocks."):
            _, layer, part = module.split(".", 2)
            found: Any = self.parts.get(part, ())
            prefix = self.block.format(layer)
        else:
            found, prefix = self.ends.get(module, ()), ""
        modules = (found,) if isinstance(found, str) else found
        return [f"{prefix}{each}.{kind}" for each in modules]

    def has(self, ours: str, names: set[str]) -> bool:
        """Whether a parameter of ours has a counterpart among `names`."""
        theirs = self.counterpart(ours)
        return bool(theirs) and names.issuperset(theirs)

    def transform(self, ours: str, gpt: GPT) -> Transform:
        """The transformation of our parameter with this name."""
        return SAME

    def is_tied(self, theirs: Any) -> bool:
        return theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight

    def parameters(self, theirs: Any) -> dict[str, nn.Parameter]:
        """The parameters of a model of transformers. The output head has its name in files, and is
        left out if it is tied to the embedding."""
        head = theirs.get_output_embeddings().weight
        found = {name: each for name, each in theirs.named_parameters() if each is not head}
        if self.is_tied(theirs):
            return dict(theirs.named_parameters())
        return found | {self.head: head}

    @torch.no_grad()
    def fill(self, theirs: Any, gpt: GPT, config: ModelConfig) -> None:
        """Writes the weights of ours, in standard form, to `theirs`. Biases that ours does not have
        become zeros, and gains ones. Raises Unfit if a parameter has no counterpart, or another
        shape."""
        rest, given = self.parameters(theirs), {}
        for name, weight in standard_form(gpt, config)[1].items():
            if name == "head.weight":
                given[self.head] = weight
                continue
            split = self.transform(name, gpt).split(weight)
            names = self.counterpart(name)
            if not names and weight.dim() > 1:
                raise Unfit(name)
            given |= zip(names, split, strict=False)  # gains that theirs does not have
        for name, weight in given.items():
            if name not in rest or rest[name].shape != weight.shape:
                raise Unfit(name)
            rest.pop(name).copy_(weight)
        for name, parameter in rest.items():
            if parameter.dim() > 1:
                raise Unfit(name)
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)

    @torch.no_grad()
    def copy_to_ours(self, theirs: Any, gpt: GPT) -> None:
        """Copies the weights of `theirs` to `gpt`. Raises Unfit if a parameter has no counterpart,
        or another shape."""
        rest = self.parameters(theirs)
        for name, parameter in gpt.named_parameters():
            names = [self.head] if name == "head.weight" else self.counterpart(name)
            if not names and parameter.dim() == 1:
                parameter.fill_(1.0)  # gains that only ours has
                continue
            if missing := [each for each in names if each not in rest]:
                raise Unfit(f"it has no parameter {missing[0]!r}")
            weight = self.transform(name, gpt).join([rest.pop(each) for each in names])
            if weight.shape != parameter.shape:
                raise Unfit(f"its {names[0]!r} has the shape {tuple(weight.shape)}")
            parameter.copy_(weight)
        if rest:
            raise Unfit(f"headscope has no parameter like {min(rest)!r}")


class GPT2(HuggingFaceClass):
    """Learned positions, and linear layers that are stored as (inputs, outputs)."""

    name = "GPT2LMHeadModel"
    model_type = "gpt2"
    position = (LearnedConfig,)
    keys: ClassVar[dict[str, str]] = {
        "block_size": "n_positions",
        "embed_dim": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "ff_dim": "n_inner",
        "activation": "activation_function",
        "eps": "layer_norm_epsilon",
    }
    dropouts = ("attn_pdrop", "resid_pdrop", "embd_pdrop")
    gelu_tanh = "gelu_new"
    ends: ClassVar[dict[str, str]] = {
        "embedding": "transformer.wte",
        "position.table": "transformer.wpe",
        "norm": "transformer.ln_f",
    }
    block = "transformer.h.{}."
    parts: ClassVar[dict[str, str | tuple[str, ...]]] = {
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out_proj": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward.up_proj": "mlp.c_fc",
        "feed_forward.down_proj": "mlp.c_proj",
    }

    def adjust(self, model: ModelConfig, settings: Settings) -> None:
        if not settings.get("scale_attn_weights"):
            model.attention.scale = 1.0

    def transform(self, ours: str, gpt: GPT) -> Transform:
        return TRANSPOSED if "qkv" in ours or "_proj" in ours else SAME


class GPTNeoX(HuggingFaceClass):
    name = "GPTNeoXForCausalLM"
    model_type = "gpt_neox"
    head = "embed_out.weight"
    keys: ClassVar[dict[str, str]] = {
        "block_size": "max_position_embeddings",
        "embed_dim": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "ff_dim": "intermediate_size",
        "activation": "hidden_act",
        "eps": "layer_norm_eps",
        "base": "rotary_emb_base",
    }
    fixed: ClassVar[dict[str, Any]] = {
        "rotary_pct": 1.0,
        "use_parallel_residual": False,
        "attention_bias": True,
    }
    dropouts = ("attention_dropout", "hidden_dropout")
    ends: ClassVar[dict[str, str]] = {
        "embedding": "gpt_neox.embed_in",
        "norm": "gpt_neox.final_layer_norm",
    }
    block = "gpt_neox.layers.{}."
    parts: ClassVar[dict[str, str | tuple[str, ...]]] = {
        "attention_norm": "input_layernorm",
        "attention.qkv": "attention.query_key_value",
        "attention.out_proj": "attention.dense",
        "feed_forward_norm": "post_attention_layernorm",
        "feed_forward.up_proj": "mlp.dense_h_to_4h",
        "feed_forward.down_proj": "mlp.dense_4h_to_h",
    }

    def transform(self, ours: str, gpt: GPT) -> Transform:
        return by_head(gpt.attentions[0].heads) if "qkv" in ours else SAME


class Mpt(HuggingFaceClass):
    """ALiBi, without biases. Its slopes are those of our ALiBi for any number of heads."""

    name = "MptForCausalLM"
    model_type = "mpt"
    position = (AlibiConfig,)
    keys: ClassVar[dict[str, str]] = {
        "block_size": "max_seq_len",
        "embed_dim": "d_model",
        "layers": "n_layers",
        "heads": "n_heads",
        "eps": "layer_norm_epsilon",
    }
    fixed: ClassVar[dict[str, Any]] = {"attn_config": {"alibi": True}, "learned_pos_emb": False}
    dropouts = ()
    ends: ClassVar[dict[str, str]] = {
        "embedding": "transformer.wte",
        "norm": "transformer.norm_f",
    }
    block = "transformer.blocks.{}."
    parts: ClassVar[dict[str, str | tuple[str, ...]]] = {
        "attention_norm": "norm_1",
        "attention.qkv": "attn.Wqkv",
        "attention.out_proj": "attn.out_proj",
        "feed_forward_norm": "norm_2",
        "feed_forward.up_proj": "ffn.up_proj",
        "feed_forward.down_proj": "ffn.down_proj",
    }

    def adjust(self, model: ModelConfig, settings: Settings) -> None:
        model.attention.scale = settings.get("attn_config").softmax_scale


class Llama(HuggingFaceClass):
    name = "LlamaForCausalLM"
    model_type = "llama"
    norm = (RmsNormConfig,)
    feed_forward: tuple[type[MlpConfig], ...] = (SwiGluConfig,)
    keys: ClassVar[dict[str, str]] = {
        "block_size": "max_position_embeddings",
        "embed_dim": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "ff_dim": "intermediate_size",
        "activation": "hidden_act",
        "eps": "rms_norm_eps",
        "base": "rope_theta",
    }
    ends: ClassVar[dict[str, str]] = {"embedding": "model.embed_tokens", "norm": "model.norm"}
    block = "model.layers.{}."
    parts: ClassVar[dict[str, str | tuple[str, ...]]] = {
        "attention_norm": "input_layernorm",
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.out_proj": "self_attn.o_proj",
        "feed_forward_norm": "post_attention_layernorm",
        "feed_forward.gate_proj": "mlp.gate_proj",
        "feed_forward.up_proj": "mlp.up_proj",
        "feed_forward.down_proj": "mlp.down_proj",
    }

    def entries(self, gpt: GPT, config: ModelConfig) -> dict[str, Any]:
        biases = {"attention_bias": config.bias or config.qkv_bias, "mlp_bias": config.bias}
        return super().entries(gpt, config) | biases

    def transform(self, ours: str, gpt: GPT) -> Transform:
        return separate(gpt.attentions[0], lambda rows: rows) if "qkv" in ours else SAME


class Arcee(Llama):
    """Llama with a feed-forward network without gate."""

    name = "ArceeForCausalLM"
    model_type = "arcee"
    feed_forward = (MlpConfig,)
    parts: ClassVar[dict[str, str | tuple[str, ...]]] = {
        ours: theirs for ours, theirs in Llama.parts.items() if "gate" not in ours
    }


class Qwen3(Llama):
    """Llama with normalized queries and keys."""

    name = "Qwen3ForCausalLM"
    model_type = "qwen3"
    qk_norm = True
    parts: ClassVar[dict[str, str | tuple[str, ...]]] = {
        **Llama.parts,
        "attention.q_norm": "self_attn.q_norm",
        "attention.k_norm": "self_attn.k_norm",
    }

    def entries(self, gpt: GPT, config: ModelConfig) -> dict[str, Any]:
        if gpt.norm.eps != HEAD_NORM_EPS:
            raise Unfit("norm.eps")
        return super().entries(gpt, config)

    def adjust(self, model: ModelConfig, settings: Settings) -> None:
        if model.norm.eps != HEAD_NORM_EPS:  # type: ignore[attr-defined]
            raise UserError(
                f"config.json: rms_norm_eps={short(settings.get('rms_norm_eps'))}: headscope "
                f"normalizes queries and keys with {HEAD_NORM_EPS:g}"
            )


class NanoChat(Llama):
    """Squared ReLU and soft-capped logits. It can only be imported: it normalizes queries and keys
    without gains, so ours become ones. It differs in three ways that become other weights:

    - It normalizes each embedding before the first block. We store the normalized embeddings.
    - It rotates queries and keys by the negative angle. Swapping the two halves of each head has
      the same effect.
    - It normalizes queries and keys after the rotation, which does not change their lengths.
    """

    name = "NanoChatForCausalLM"
    model_type = "nanochat"
    feed_forward = (MlpConfig,)
    qk_norm = True
    can_export = False
    ends: ClassVar[dict[str, str]] = {"embedding": "model.embed_tokens"}
    parts: ClassVar[dict[str, str | tuple[str, ...]]] = {
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.out_proj": "self_attn.o_proj",
        "feed_forward.up_proj": "mlp.fc1",
        "feed_forward.down_proj": "mlp.fc2",
    }

    def adjust(self, model: ModelConfig, settings: Settings) -> None:
        Qwen3.adjust(self, model, settings)  # type: ignore[arg-type]
        model.logit_cap = settings.get("final_logit_softcapping")
        if model.tied_head:
            raise UserError(
                "config.json: tie_word_embeddings=True: the output head cannot share embeddings "
                "that NanoChat normalizes; set it to false"
            )

    def transform(self, ours: str, gpt: GPT) -> Transform:
        def swapped(rows: Tensor) -> Tensor:
            halves = (-1, 2, gpt.attentions[0].head_dim // 2)
            return rows.unflatten(0, halves).flip(1).flatten(0, 2)

        def normalized(theirs: Sequence[Tensor]) -> Tensor:
            mean_square = theirs[0].square().mean(dim=-1, keepdim=True)
            return theirs[0] * torch.rsqrt(mean_square + HEAD_NORM_EPS)

        if "qkv" in ours:
            return separate(gpt.attentions[0], swapped)
        return Transform(SAME.split, normalized) if ours == "embedding.weight" else SAME


CLASSES: tuple[HuggingFaceClass, ...] = (
    *(GPT2(), GPTNeoX(), Mpt(), Llama(), Arcee(), Qwen3(), NanoChat()),
)
CLASS_OF = {each.name: each for each in CLASSES}


def exportable() -> Iterator[HuggingFaceClass]:
    """The classes that a model can be exported to."""
    return (each for each in CLASSES if each.can_export)
