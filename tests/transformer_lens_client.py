"""Opens models in TransformerLens and compares them with what headscope computed.

tests/conversion/test_transformer_lens.py runs this file with the Python of an environment that has
transformer_lens. Arguments: folders, each with `model` (an exported model), `run.safetensors` (the
same model as a checkpoint) and `ours.pt`. Prints the results as JSON.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from transformer_lens.model_bridge import TransformerBridge

import headscope
from headscope.conversion.transformer_lens import to_transformer_lens


def compared(bridge: TransformerBridge, ours: dict) -> dict:
    """The largest differences from our attention weights, attention scores and logits."""
    tokens = ours["tokens"]
    logits, cache = bridge.run_with_cache(tokens)
    visible = torch.ones(tokens.size(1), tokens.size(1)).tril().bool()
    patterns = torch.stack([cache["pattern", layer][0] for layer in range(bridge.cfg.n_layers)])
    scores = torch.stack([cache["attn_scores", layer][0] for layer in range(bridge.cfg.n_layers)])
    return {
        "weights": difference(patterns, ours["weights"]),
        "scores": difference(scores[..., visible], ours["scores"][..., visible]),
        "logits": difference(logits, ours["logits"]),
    }


def edited(bridge: TransformerBridge, ours: dict) -> dict:
    """The largest differences from our logits without head 0 of layer 0. Two hooks remove the
    head: hook_pattern its weights (B, H, T, S), and hook_z its outputs (B, T, H, D)."""
    found = {}
    for name, axis in (("hook_pattern", 1), ("hook_z", 2)):

        def zero_head_0(values, hook, axis=axis):
            values.select(axis, 0).zero_()
            return values

        hooks = [(f"blocks.0.attn.{name}", zero_head_0)]
        logits = bridge.run_with_hooks(ours["tokens"], fwd_hooks=hooks)
        found[name] = difference(logits, ours["without_head_0"])
    return found


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape, (a.shape, b.shape)
    return (a - b).abs().max().item()


def opened(folder: Path) -> dict:
    """The results of one folder."""
    ours = torch.load(folder / "ours.pt", weights_only=True)
    results = {}
    with warnings.catch_warnings(record=True) as caught:
        bridge = TransformerBridge.boot_transformers(
            str(folder / "model"), device="cpu", trust_remote_code=ours["own"]
        )
        results["folder"] = compared(bridge, ours)
        if ours["own"]:
            results["edited"] = edited(bridge, ours)
            results["hooks"] = list(bridge.run_with_cache(ours["tokens"])[1])
            direct = to_transformer_lens(headscope.load(folder / "run.safetensors"))
            results["checkpoint"] = compared(direct, ours)
    results["warnings"] = [str(warning.message) for warning in caught]
    return results


if __name__ == "__main__":
    results = {folder: opened(Path(folder)) for folder in sys.argv[1:]}
    print(json.dumps(results))
