"""The classes of Hugging Face transformers that headscope reads and writes.

Each class maps entries of config.json to keys of ours, and the names of its parameters to the names
of ours. That both are the same function is proven by logits: see `proof.py` and `folder.py`.

Shapes: C embed_dim, H heads, K kv heads, D head_dim, V vocab_size.
"""

from collections.abc import Iterable
from copy import deepcopy
from inspect import Parameter
from typing import Any, ClassVar

import torch
from torch import Tensor

from headscope.config.parse import parse_part
from headscope.config.parts import Part, arguments_of, locate
from headscope.errors import UserError, first_line, short
from headscope.nn import GPT
from headscope.nn.norm import HeadNorm
from headscope.trained.checkpoint.loading import WithoutInitialization

HEAD_NORM_EPS = float(HeadNorm(1).eps or 0)
"""The `eps` of our norm of queries and keys. transformers uses the `eps` of the other norms."""

EXTRAS = ("ngrams", "logit_cap", "document_mask")
"""Keys that must have their defaults in an exported model: random tokens may not show them."""

INSTEAD = "use to=huggingface or to=safetensors"  # which fit every model


class Unfit(Exception):
    """A class of another tool does not fit a model, such as a part that only one of them has."""


def divide(weight: Tensor, names: list[str], gpt: GPT) -> Iterable[tuple[str, Tensor]]:
    """The parameters with these names: the whole `weight`, or queries, keys and values."""
    layer = gpt.attentions[0]
    rows = [count * layer.head_dim for count in (layer.heads, layer.kv_heads, layer.kv_heads)]
    return zip(names, weight.split(rows) if len(names) > 1 else [weight], strict=True)


def table(text: str) -> dict[str, str]:
    """The words `ours=theirs` of a text, as a dictionary."""
    return dict(word.split("=") for word in text.split())


def part(name: str, **options: Any) -> dict[str, Any]:
    """A part of conf/model as plain data."""
    return {"_target_": f"headscope.{name}", **options}


def name_of(part: Part) -> str:
    """The name in `headscope` of a part."""
    return str(part["_target_"]).removeprefix("headscope.")


def unusual(config: Part) -> dict[str, Any]:
    """The keys of a model, without its parts and sizes, that do not have their defaults."""
    known = arguments_of(locate(config["_target_"]))
    plain = {key: value for key, value in config.items() if key in known if type(value) is not Part}
    return {k: v for k, v in plain.items() if known[k].default not in (Parameter.empty, v)}


def sizes(gpt: GPT, config: Part) -> dict[str, Any]:
    """The keys of a model that has a feed-forward network, with all sizes."""
    block: Any = gpt.blocks[0]
    return {
        **config,
        "kv_heads": block.attention.kv_heads,
        "head_dim": block.attention.head_dim,
        "ff_dim": block.feed_forward.up_proj.out_features,
        "eps": gpt.norm.eps,
        "base": getattr(config.position, "base", None),
    }


class HuggingFaceClass:
    """A class of transformers: a table of entries of config.json, and one of names of layers."""

    name: str
    model_type: str
    position, norm, feed_forward = "Rotary", "LayerNorm", "FeedForward"
    activations = table(
        "gelu=Gelu gelu_pytorch_tanh=GeluTanh relu2=ReluSquared gelu_python=Gelu "
        "gelu_new=GeluTanh gelu_python_tanh=GeluTanh gelu_fast=GeluTanh"
    )
    """Maps its names of activation functions to ours. The first name of each is written."""
    qk_norm = False
    keys = table(
        "block_size=max_position_embeddings embed_dim=hidden_size layers=num_hidden_layers "
        "heads=num_attention_heads ff_dim=intermediate_size activation=hidden_act"
    )
    """Maps our keys to entries of config.json. These are those of most classes."""
    dropouts: tuple[str, ...] = ("attention_dropout",)
    fixed: ClassVar[dict[str, Any]] = {}
    """Entries of config.json that are the same for every model of ours."""
    free: tuple[str, ...] = ()
    """The keys of ours that most classes do not have, but this one does: see `entries`."""
    windowed = False
    """Whether layers may have windows."""
    names: dict[str, str]
    """Maps our layers to theirs. The names of layers in a block follow `block`. Queries, keys and
    values may be three layers, separated by commas."""
    block: str

    def entries(self, gpt: GPT, config: Part) -> dict[str, Any]:
        """The content of config.json for a model in standard form. The versions 4.57 and 5 of
        transformers read it alike. Raises Unfit if the class has another part."""
        layer, activation = gpt.attentions[0], name_of(config.activation)
        names = [theirs for theirs, ours in self.activations.items() if ours == activation]
        fits = {
            "position": name_of(config.position) == self.position,
            "norm": name_of(config.norm) == self.norm,
            "block": name_of(config.block) == "Block",
            "windows": config.windows is None,
            "position.share": getattr(config.position, "share", 1.0) == 1.0,
            "feed_forward": name_of(config.feed_forward) == self.feed_forward,
            "activation": names or self.feed_forward == "SwiGLU",
            "kv_heads": layer.kv_heads == layer.heads or "kv_heads" in self.keys,
            "norm.eps": not self.qk_norm or getattr(gpt.norm, "eps", 0) == HEAD_NORM_EPS,
            **{key: key not in unusual(config) for key in EXTRAS},
        }
        if unfit := [name for name in fits if not fits[name] and name not in self.free]:
            raise Unfit(", ".join(unfit))
        values = sizes(gpt, config)
        values["activation"] = "silu" if self.feed_forward == "SwiGLU" else names[0]
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

    def read(self, config: Any, names: set[str]) -> Part:
        """Our configuration for that of transformers. `names` are those of parameters. Raises
        UserError for an unknown entry."""
        values = {ours: getattr(config, theirs, None) for ours, theirs in self.keys.items()}
        activation = values.pop("activation", "gelu")
        if self.feed_forward == "SwiGLU":
            activation = "gelu"  # ours has no choice, and ignores this key
        if not isinstance(activation, str) or activation not in self.activations:
            entry = f"config.json: {self.keys['activation']}={short(activation)}"
            raise UserError(f"{entry}: headscope reads {', '.join(self.activations)}")
        if self.qk_norm and values["eps"] != HEAD_NORM_EPS:
            entry = f"config.json: {self.keys['eps']}={short(values['eps'])}"
            raise UserError(f"{entry}: headscope has {HEAD_NORM_EPS:g} for queries and keys")
        kv_heads = values.get("kv_heads") or values["heads"]
        kinds = {values["heads"]: "MultiHead", 1: "MultiQuery"}
        position, norm = part(self.position), part(self.norm, eps=values.pop("eps"))
        if self.position == "Rotary":
            base = values.pop("base")  # transformers 5 has it in `rope_parameters`
            rope = getattr(config, "rope_parameters", None) or {}
            position["base"] = rope.get("rope_theta", 10000.0 if base is None else base)
            position["float32_angles"] = True
        if self.norm == "RMSNorm":
            norm["gain"] = self.has("norm.weight", names)
        return parse_part(
            {
                "_target_": "headscope.GPT",
                "bias": self.has("blocks.0.attention.out_proj.bias", names),
                "qkv_bias": self.has("blocks.0.attention.qkv.bias", names),
                "tied_head": getattr(config, "tie_word_embeddings", None),
                "attention": part(kinds.get(kv_heads, "GroupedQuery"), qk_norm=self.qk_norm),
                "position": position,
                "norm": norm,
                "activation": part(self.activations[activation]),
                "feed_forward": part(self.feed_forward),
                "block": part("Block"),
                "windows": self.read_windows(config),
                **values,
            },
            "model",
            composed=False,
        )

    def read_windows(self, config: Any) -> list[int] | None:
        """The window of each layer, or 0 for all keys. None if no layer has one."""
        if not self.windowed or not config.sliding_window:
            return None
        layers = getattr(config, self.keys["layers"])
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
        return [config.sliding_window * (kind == "sliding_attention") for kind in kinds]

    def shortened(self, config: Any) -> Any:
        """`config` with few layers, one of each kind, and few tokens: the same architecture."""
        small = deepcopy(config)
        lists = [name for name in ("layer_types", "attention_layers") if hasattr(config, name)]
        kinds = getattr(config, lists[0]) if lists else ["the only kind"]
        chosen = [*dict.fromkeys(kinds)]
        chosen *= 2 // len(chosen) or 1
        for name in lists:
            setattr(small, name, chosen)
        setattr(small, self.keys["layers"], len(chosen))
        small.vocab_size = min(config.vocab_size, 1000)
        small.pad_token_id = None  # it may be one of the others
        return small

    def build(self, config: Any) -> Any:
        """The model of transformers with this configuration or these entries of config.json, with
        arbitrary weights of the default dtype. Raises Unfit if transformers refuses them, or lacks
        this class."""
        import transformers

        try:
            made = getattr(transformers, self.name)
            if isinstance(config, dict):
                config = made.config_class(**config)
            with WithoutInitialization():
                dtype = torch.get_default_dtype()
                options = {"attn_implementation": "eager", "dtype": dtype}
                return made._from_config(config, **options).to(dtype).eval()
        except Exception as error:  # for example sizes that do not fit together
            raise Unfit(f"transformers cannot build it: {first_line(error)[:200]}") from error

    def counterpart(self, ours: str) -> list[str]:
        """The names of their parameters that together are `ours`, or an empty list."""
        module, _, kind = ours.rpartition(".")
        prefix = ""
        if module.startswith("blocks."):
            _, layer, module = module.split(".", 2)
            prefix = self.block.format(layer)
        layers = self.names.get(module)
        return [f"{prefix}{layer}.{kind}" for layer in layers.split(",")] if layers else []

    def has(self, ours: str, names: set[str]) -> bool:
        """Whether a parameter of ours has a counterpart among `names`."""
        theirs = self.counterpart(ours)
        return bool(theirs) and names.issuperset(theirs)

    def arrange(self, ours: str, weight: Tensor, gpt: GPT, *, to_ours: bool) -> Tensor:
        """The parameter `ours` in the other layout: in theirs, or in ours if `to_ours`."""
        return weight

    def parameters(self, theirs: Any, rows: int | None = None) -> dict[str, Tensor]:
        """The parameters of a model of transformers. The output head has its name in files, and is
        left out if it is tied to the embedding. A table of positions has only its first `rows`."""
        named = dict(theirs.named_parameters())
        head = theirs.get_output_embeddings().weight
        if head is not theirs.get_input_embeddings().weight:
            named = {name: each for name, each in named.items() if each is not head}
            named[self.counterpart("head.weight")[0]] = head
        if self.position == "Learned":
            [table] = self.counterpart("position.table.weight")
            named[table] = named[table][:rows]
        return named

    @torch.no_grad()
    def fill(self, theirs: Any, gpt: GPT, weights: dict[str, Tensor]) -> None:
        """Writes the `weights` of ours, in standard form, to `theirs`. Missing biases become zeros,
        and gains ones. Raises Unfit if a parameter has no counterpart, or another shape."""
        rest = self.parameters(theirs, gpt.block_size)
        for ours, weight in weights.items():
            names = self.counterpart(ours)
            if not names and weight.dim() == 1:
                continue  # gains that theirs does not have
            weight = self.arrange(ours, weight, gpt, to_ours=False)
            for name, piece in divide(weight, names or [ours], gpt):
                if name not in rest or rest[name].shape != piece.shape:
                    raise Unfit(ours)
                rest.pop(name).copy_(piece)
        for name, parameter in rest.items():
            if parameter.dim() > 1:
                raise Unfit(name)
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)

    def in_files(self, tensors: dict[str, Tensor], gpt: GPT) -> dict[str, Tensor]:
        """The same for tensors in files, whose names may lack that of the module without head."""
        head, base = self.counterpart("head.weight")[0], self.names["embedding"].split(".")[0]
        named = {
            name if name == head or name.startswith(f"{base}.") else f"{base}.{name}": tensor
            for name, tensor in tensors.items()
        }
        if gpt.head.weight is gpt.embedding.weight:
            named.pop(head, None)
        return named

    @torch.no_grad()
    def copy_to_ours(self, weights: dict[str, Tensor], gpt: GPT) -> None:
        """Puts `weights`, with their names of `parameters`, into `gpt`, and copies only those that
        change. Raises Unfit if a name or a shape differs."""
        rest = {**weights}
        for ours, parameter in gpt.named_parameters():
            names = self.counterpart(ours)
            if not names and parameter.dim() == 1:
                parameter.fill_(1.0)  # gains that only ours has
                continue
            if missing := [each for each in names if each not in rest]:
                raise Unfit(f"it has no parameter {missing[0]!r}")
            pieces = [rest.pop(each) for each in names]
            try:
                weight = torch.cat(pieces) if len(pieces) > 1 else pieces[0].detach()
                weight = self.arrange(ours, weight, gpt, to_ours=True).to(parameter.dtype)
            except RuntimeError:  # sizes that do not fit together
                weight = pieces[0]
            if ours == "position.table.weight":
                weight = weight[: gpt.block_size]
            if weight.shape != parameter.shape:
                raise Unfit(f"its {names[0]!r} has the shape {tuple(weight.shape)}")
            parameter.data = weight.contiguous()
        if rest:
            raise Unfit(f"headscope has no parameter like {min(rest)!r}")


class GPT2(HuggingFaceClass):
    """Learned positions, and linear layers that are stored as (inputs, outputs)."""

    name, model_type, position = "GPT2LMHeadModel", "gpt2", "Learned"
    activations = table("gelu_new=GeluTanh") | HuggingFaceClass.activations
    keys = table(
        "block_size=n_positions embed_dim=n_embd layers=n_layer heads=n_head ff_dim=n_inner "
        "activation=activation_function eps=layer_norm_epsilon"
    )
    dropouts = ("attn_pdrop", "resid_pdrop", "embd_pdrop")
    block = "transformer.h.{}."
    names = table(
        "embedding=transformer.wte position.table=transformer.wpe norm=transformer.ln_f "
        "head=lm_head attention_norm=ln_1 attention.qkv=attn.c_attn attention.out_proj=attn.c_proj "
        "feed_forward_norm=ln_2 feed_forward.up_proj=mlp.c_fc feed_forward.down_proj=mlp.c_proj"
    )

    def read(self, config: Any, names: set[str]) -> Part:
        model = super().read(config, names)
        model.attention.scale = None if config.scale_attn_weights else 1.0
        return model

    def arrange(self, ours: str, weight: Tensor, gpt: GPT, *, to_ours: bool) -> Tensor:
        return weight.t() if "qkv" in ours or "_proj" in ours else weight


class GPTNeoX(HuggingFaceClass):
    """It stores the queries, keys and values of one head, then those of the next head. Ours are all
    queries, then all keys, then all values."""

    name, model_type = "GPTNeoXForCausalLM", "gpt_neox"
    keys = HuggingFaceClass.keys | table("eps=layer_norm_eps base=rotary_emb_base")
    dropouts = ("attention_dropout", "hidden_dropout")
    fixed: ClassVar = {"attention_bias": True}
    free = ("block", "position.share")
    block = "gpt_neox.layers.{}."
    names = table(
        "embedding=gpt_neox.embed_in norm=gpt_neox.final_layer_norm head=embed_out "
        "attention_norm=input_layernorm attention.qkv=attention.query_key_value "
        "attention.out_proj=attention.dense feed_forward_norm=post_attention_layernorm "
        "feed_forward.up_proj=mlp.dense_h_to_4h feed_forward.down_proj=mlp.dense_4h_to_h"
    )

    def entries(self, gpt: GPT, config: Part) -> dict[str, Any]:
        parallel = name_of(config.block) == "ParallelBlock"
        entries = super().entries(gpt, config) | {"use_parallel_residual": parallel}
        return entries | {"rotary_pct": config.position.share}

    def read(self, config: Any, names: set[str]) -> Part:
        model = super().read(config, names)
        rope = getattr(config, "rope_parameters", None) or {}  # of transformers 5
        share = rope.get("partial_rotary_factor")
        model.position.share = config.rotary_pct if share is None else share
        if config.use_parallel_residual:
            model.block = Part(part("ParallelBlock"))
        return model

    def arrange(self, ours: str, weight: Tensor, gpt: GPT, *, to_ours: bool) -> Tensor:
        if "qkv" not in ours:
            return weight
        heads = gpt.attentions[0].heads
        axes = (heads, 3, -1) if to_ours else (3, heads, -1)
        return weight.unflatten(0, axes).transpose(0, 1).flatten(0, 2)


class GPTNeo(HuggingFaceClass):
    """Learned positions, unscaled scores, and windows in every second layer. It can only be
    imported: other classes express what is left without windows."""

    name, model_type, position = "GPTNeoForCausalLM", "gpt_neo", "Learned"
    keys = table(
        "block_size=max_position_embeddings embed_dim=hidden_size layers=num_layers "
        "heads=num_heads ff_dim=intermediate_size activation=activation_function "
        "eps=layer_norm_epsilon"
    )
    block = "transformer.h.{}."
    names = table(
        "embedding=transformer.wte position.table=transformer.wpe norm=transformer.ln_f "
        "head=lm_head attention_norm=ln_1 "
        "attention.qkv=attn.attention.q_proj,attn.attention.k_proj,attn.attention.v_proj "
        "attention.out_proj=attn.attention.out_proj feed_forward_norm=ln_2 "
        "feed_forward.up_proj=mlp.c_fc feed_forward.down_proj=mlp.c_proj"
    )

    def read(self, config: Any, names: set[str]) -> Part:
        model = super().read(config, names)
        model.attention.scale = 1.0
        return model

    def read_windows(self, config: Any) -> list[int]:
        return [config.window_size * (kind == "local") for kind in config.attention_layers]


class Mpt(HuggingFaceClass):
    """ALiBi, without biases. Its slopes are those of our ALiBi for any number of heads."""

    name, model_type, position = "MptForCausalLM", "mpt", "Alibi"
    activations = table("gelu=Gelu")
    keys = table(
        "block_size=max_seq_len embed_dim=d_model layers=n_layers heads=n_heads "
        "eps=layer_norm_epsilon"
    )
    dropouts = ()
    fixed: ClassVar = {"attn_config": {"alibi": True}, "learned_pos_emb": False}
    block = "transformer.blocks.{}."
    names = table(
        "embedding=transformer.wte norm=transformer.norm_f head=lm_head attention_norm=norm_1 "
        "attention.qkv=attn.Wqkv attention.out_proj=attn.out_proj feed_forward_norm=norm_2 "
        "feed_forward.up_proj=ffn.up_proj feed_forward.down_proj=ffn.down_proj"
    )

    def read(self, config: Any, names: set[str]) -> Part:
        model = super().read(config, names)
        attention = config.attn_config
        if attention.clip_qkv is not None:  # random weights may not reach it
            clip = short(attention.clip_qkv)
            raise UserError(f"config.json: attn_config.clip_qkv={clip}: headscope does not clip")
        model.attention.scale = attention.softmax_scale
        return model


class Llama(HuggingFaceClass):
    name, model_type = "LlamaForCausalLM", "llama"
    norm, feed_forward = "RMSNorm", "SwiGLU"
    keys = HuggingFaceClass.keys | table(
        "kv_heads=num_key_value_heads head_dim=head_dim eps=rms_norm_eps base=rope_theta"
    )
    block = "model.layers.{}."
    names = table(
        "embedding=model.embed_tokens norm=model.norm head=lm_head attention_norm=input_layernorm "
        "attention.qkv=self_attn.q_proj,self_attn.k_proj,self_attn.v_proj "
        "attention.out_proj=self_attn.o_proj feed_forward_norm=post_attention_layernorm "
        "feed_forward.gate_proj=mlp.gate_proj feed_forward.up_proj=mlp.up_proj "
        "feed_forward.down_proj=mlp.down_proj"
    )

    def entries(self, gpt: GPT, config: Part) -> dict[str, Any]:
        biases = {"attention_bias": config.bias or config.qkv_bias, "mlp_bias": config.bias}
        return super().entries(gpt, config) | biases


class Arcee(Llama):
    """Llama with a feed-forward network without gate."""

    name, model_type, feed_forward = "ArceeForCausalLM", "arcee", "FeedForward"


class Mistral(Llama):
    """Llama with the same window in all layers."""

    name, model_type, free = "MistralForCausalLM", "mistral", ("windows",)
    windowed = True

    def entries(self, gpt: GPT, config: Part) -> dict[str, Any]:
        windows = {layer.layer_window for layer in gpt.attentions}
        if len(windows) > 1 or config.bias or config.qkv_bias:
            raise Unfit("windows" if len(windows) > 1 else "bias")
        return super().entries(gpt, config) | {"sliding_window": windows.pop()}


class Qwen2(Llama):
    """Llama with biases of queries, keys and values only, and perhaps windows in some layers."""

    name, model_type, windowed = "Qwen2ForCausalLM", "qwen2", True


class Qwen3(Llama):
    """Llama with normalized queries and keys, and perhaps windows in some layers."""

    windowed = True
    name, model_type, qk_norm = "Qwen3ForCausalLM", "qwen3", True
    names = Llama.names | table(
        "attention.q_norm=self_attn.q_norm attention.k_norm=self_attn.k_norm"
    )


class NanoChat(Qwen3):
    """Squared ReLU and soft-capped logits. It can only be imported: it normalizes queries and keys
    without gains, so ours become ones. It differs in three ways that become other weights:

    - It normalizes each embedding before the first block. We store the normalized ones (V, C).
    - It rotates queries and keys by the negative angle, as if the halves of each head were swapped.
    - It normalizes queries and keys after the rotation, which does not change their lengths.
    """

    name, model_type, feed_forward = "NanoChatForCausalLM", "nanochat", "FeedForward"
    windowed = False
    names = table(
        "embedding=model.embed_tokens head=lm_head "
        "attention.qkv=self_attn.q_proj,self_attn.k_proj,self_attn.v_proj "
        "attention.out_proj=self_attn.o_proj feed_forward.up_proj=mlp.fc1 "
        "feed_forward.down_proj=mlp.fc2"
    )

    def read(self, config: Any, names: set[str]) -> Part:
        model = super().read(config, names)
        model.logit_cap = config.final_logit_softcapping
        if model.tied_head:
            problem = "config.json: tie_word_embeddings=True: NanoChat normalizes its embeddings"
            raise UserError(f"{problem}, which the output head cannot share; set it to false")
        return model

    def arrange(self, ours: str, weight: Tensor, gpt: GPT, *, to_ours: bool) -> Tensor:
        if ours == "embedding.weight" and to_ours:
            mean_square = weight.square().mean(dim=-1, keepdim=True)
            return weight * torch.rsqrt(mean_square + HEAD_NORM_EPS)
        if "qkv" not in ours:
            return weight
        layer = gpt.attentions[0]
        halves = weight.unflatten(0, (-1, 2, layer.head_dim // 2))
        rotated, values = halves.tensor_split([layer.heads + layer.kv_heads])
        return torch.cat([rotated.flip(1), values]).flatten(0, 2)


CLASSES: tuple[HuggingFaceClass, ...] = (GPT2(), GPTNeoX(), Mpt(), Llama(), Arcee(), Mistral())
CLASSES += (Qwen2(), Qwen3(), NanoChat(), GPTNeo())
