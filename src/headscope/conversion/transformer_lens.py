"""Opens models in TransformerLens: our own class of transformers, and checkpoints directly.

TransformerLens finds `HeadscopeAdapter` by the entry point in pyproject.toml. Nothing else in
headscope imports this module, because it needs the package transformer_lens (4.3 or newer).

Shapes: B batch, T queries, S keys, C embed_dim, H heads, K kv heads, D head_dim.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
import transformer_lens.model_bridge.generalized_components as bridges
from torch import Tensor
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import AutoTokenizer

from headscope.conversion import modeling_headscope as own
from headscope.conversion.export import OWN_CLASS, write_tokenizer
from headscope.conversion.proof import require_nothing_held
from headscope.nn import Position
from headscope.nn.dot_product import one_per_query_head
from headscope.nn.masks import combine_masks
from headscope.trained import TrainedModel

POSITION_TYPES = {"Rotary": "rotary", "Alibi": "alibi", "Relative": "relative_positional_bias"}
"""TransformerLens's names of position encodings that do not change the embeddings."""


def to_transformer_lens(loaded: TrainedModel) -> TransformerBridge:
    """The model of a checkpoint with the hooks of TransformerLens. No folder needs to be exported,
    and every model of headscope fits. The weights are copied."""
    require_nothing_held(loaded.model)
    config = own.HeadscopeConfig(
        vocab_size=loaded.tokenizer.vocab_size,
        end_of_text=loaded.model.end_of_text,
        model=loaded.config.model,
    )
    model = own.HeadscopeForCausalLM(config).to(loaded.model.device).eval()
    model.model.load_state_dict(loaded.model.state_dict())
    with TemporaryDirectory() as folder:
        write_tokenizer(loaded, Path(folder))
        return build_bridge_from_module(
            model,
            OWN_CLASS,
            hf_config=config,
            tokenizer=AutoTokenizer.from_pretrained(folder),
            model_name=loaded.path.parent.name,
        )


class HeadscopeAdapter(ArchitectureAdapter):
    """Names the parts of a `HeadscopeForCausalLM` as TransformerLens does. The weights stay as they
    are: `enable_compatibility_mode`, which folds norms into other weights, is not supported."""

    supports_compatibility_mode = False
    supports_hf_output_attentions = False  # `HookedAttention` computes the weights

    def prepare_model(self, model: Any) -> None:
        """Reads sizes and parts of a `HeadscopeForCausalLM`, before hooks are added."""
        gpt, cfg = model.model, self.cfg
        layer, network = gpt.attentions[0], gpt.blocks[0].feed_forward
        position = type(gpt.position).__name__
        cfg.default_prepend_bos = False
        cfg.d_head = layer.head_dim
        cfg.attn_only = network is None
        cfg.d_mlp = 0 if network is None else network.up_proj.out_features
        cfg.gated_mlp = hasattr(network, "gate_proj")
        cfg.eps = getattr(gpt.norm, "eps", 0.0)
        cfg.uses_rms_norm = cfg.final_rms = not isinstance(gpt.norm, torch.nn.LayerNorm)
        cfg.normalization_type = "RMS" if cfg.uses_rms_norm else "LN"
        cfg.positional_embedding_type = POSITION_TYPES.get(position, "standard")
        if layer.kv_heads != layer.heads:
            cfg.n_key_value_heads = layer.kv_heads

        def norm(name: str) -> Any:
            if isinstance(gpt.norm, torch.nn.Identity):
                return GeneralizedComponent(name, cfg)
            if gpt.norm.weight is None:
                return bridges.RMSNormPreBridge(name, cfg)
            return bridges.NormalizationBridge(name, cfg, use_native_layernorm_autograd=True)

        block = {
            "ln1": norm("attention_norm"),
            "attn": HookedAttention("attention", cfg, {"o": bridges.LinearBridge("out_proj")}),
        }
        if network is not None:
            mlp = self._gated_mlp if cfg.gated_mlp else self._ungated_mlp
            block |= {"ln2": norm("feed_forward_norm"), "mlp": mlp("feed_forward")}
        cfg.parallel_attn_mlp = type(gpt.blocks[0]).__name__ == "ParallelBlock"
        both = bridges.ParallelBlockBridge if cfg.parallel_attn_mlp else bridges.BlockBridge
        self.component_mapping = {
            "embed": bridges.EmbeddingBridge("model.embedding"),
            "blocks": (AttentionOnly if network is None else both)("model.blocks", cfg, block),
            "ln_final": norm("model.norm"),
            "unembed": bridges.UnembeddingBridge("model.head"),
        }


class AttentionOnly(bridges.BlockBridge):
    """A block without a feed-forward network, and without the hooks of one."""

    hook_aliases = {  # noqa: RUF012
        name: hook
        for name, hook in bridges.BlockBridge.hook_aliases.items()
        if not str(hook).startswith(("ln2.", "mlp."))
    }


class HookedAttention(bridges.AttentionBridge):
    """The hooks of an attention layer of headscope. Changes to all of them change the output.

    - `hook_q` (B, T, H, D), `hook_k` and `hook_v` (B, T, K, D): the first two after `qk_norm`.
    - `hook_rot_q`, `hook_rot_k`: queries and keys after the rotation, with rotary positions.
    - `hook_attn_scores` (B, H, T, S): the scaled scores with the bias of the position encoding,
      -inf where a query may not look.
    - `hook_pattern` (B, H, T, S): the attention weights.
    - `hook_z` (B, T, H, D): the weighted sums of the values, the input of `out_proj`.
    """

    hook_aliases = {"hook_z": "o.hook_in"}  # noqa: RUF012

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()

    def forward(
        self, query: Tensor, *, position: Position, past: Any, mask: Tensor | None
    ) -> Tensor:
        """Computes what a `MultiHeadAttention` computes, step by step. `query` is (B, T, C)."""
        layer = self.original_component
        query = self.hook_in(query)
        q, k, v = layer.project(query, query, query)
        q, k, v = per_head(self.hook_q, q), per_head(self.hook_k, k), per_head(self.hook_v, v)
        q, k = position.rotate(q, k, 0 if past is None else past.length)
        if hasattr(self, "hook_rot_q"):
            q, k = self.hook_rot_q(q), self.hook_rot_k(k)
        if past is not None:
            k, v = past.extend(k, v)
        bias = position.bias(q.size(2), k.size(2))
        scores = layer.attend(q, k, v, mask=mask, bias=bias, dropout=0.0, explicit=True).scores
        visible = combine_masks(layer.causal_rows(q.size(2), k.size(2)), mask)
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        weights = self.hook_pattern(self.hook_attn_scores(scores).softmax(dim=-1))
        weights = F.dropout(weights, layer.dropout, training=layer.training)
        z = weights @ one_per_query_head(v, layer.heads).to(weights.dtype)
        return self.hook_out(self.o(z.to(v.dtype).transpose(1, 2).flatten(2)))

    # The names of TransformerLens: weights (H or K, C, D), and biases (H or K, D), if any.
    W_Q = property(lambda self: self.original_component.projections()[0].mT)
    W_K = property(lambda self: self.original_component.projections()[1].mT)
    W_V = property(lambda self: self.original_component.projections()[2].mT)
    b_Q = property(lambda self: self.original_component.projections("bias")[0])  # noqa: N815
    b_K = property(lambda self: self.original_component.projections("bias")[1])  # noqa: N815
    b_V = property(lambda self: self.original_component.projections("bias")[2])  # noqa: N815


def per_head(hook: HookPoint, x: Tensor) -> Tensor:
    """Calls `hook` with x (B, H, T, D) in TransformerLens's order of axes, (B, T, H, D)."""
    return hook(x.transpose(1, 2)).transpose(1, 2)


# boot_transformers of TransformerLens 4.3 knows only this table, not entry points.
SUPPORTED_ARCHITECTURES.setdefault(OWN_CLASS, HeadscopeAdapter)
