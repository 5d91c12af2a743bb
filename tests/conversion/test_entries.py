"""Each entry of config.json that changes what a class of transformers computes is read, or the
folder is refused. The models are small and random, and their scores are large. The table in
docs/ecosystem.md says the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import ROWS, SMALL, foreign_model, transformers, write_folder

import headscope
from headscope.conversion.classes import CLASSES
from headscope.conversion.folder import our_config, prove_architecture
from headscope.errors import UserError

DOCS = Path(__file__).parents[2] / "docs" / "ecosystem.md"

ROPE: dict[str, Any] = {"rope_theta": 10000.0, "original_max_position_embeddings": 6, "factor": 2.0}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ENTRIES: dict[str, list[Any]] = {
    "activation_function": ["relu", "gelu", "gelu_new"],
    "alibi": [False],
    "alibi_bias_max": [4],
    "attention_bias": [True, False],
    "attention_layers": [["local", "global", "global"]],
    "clip_qkv": [1.0],
    "expansion_ratio": [2],
    "final_logit_softcapping": [None, 3.0],
    "head_dim": [2],
    "hidden_act": ["relu", "gelu", "relu2", "gelu_new"],
    "layer_norm_eps": [0.5],
    "layer_norm_epsilon": [0.5],
    "layer_types": [["sliding_attention", "full_attention"]],
    "logit_scale": [0.5],
    "mlp_bias": [True],
    "n_head": [1, 4],
    "n_heads": [1, 4],
    "num_attention_heads": [1, 8],
    "num_heads": [2],
    "num_hidden_layers": [1],
    "num_key_value_heads": [1, 4],
    "num_layers": [1],
    "partial_rotary_factor": [0.5],
    "qk_ln": [True],
    "rms_norm_eps": [0.5],
    "rope_scaling": [ROPE | {"rope_type": kind} for kind in ("linear", "dynamic", "yarn")]
    + [ROPE | LLAMA3],
    "rope_theta": [300.0],
    "rotary_pct": [0.5, 1.0],
    "scale_attn_by_inverse_layer_idx": [True],
    "scale_attn_weights": [False],
    "sliding_window": [3, None],
    "softmax_scale": [0.3],
    "tie_word_embeddings": [True],
    "use_parallel_residual": [False],
    "use_sliding_window": [True],
    "window_size": [2],
}
"""Entries of config.json and of `attn_config`, with other values than those of the models."""


def changed_configs(raw: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """`entry=value`, and the content of config.json with this value, for all ENTRIES."""
    inner = ("alibi", "alibi_bias_max", "clip_qkv", "qk_ln", "softmax_scale")
    rope = raw.get("rope_parameters")
    found = []
    for name, value in [(name, value) for name, values in ENTRIES.items() for value in values]:
        new = {name: value}
        if name in inner:
            new = {"attn_config": {**raw.get("attn_config", {}), **new, "model_type": ""}}
        if name in ("partial_rotary_factor", "rope_theta") and rope:
            new["rope_parameters"] = rope | new
        if name == "rope_scaling" and rope:
            new["rope_parameters"] = rope | value
        text = value["rope_type"] if isinstance(value, dict) else json.dumps(value).strip('"')
        found.append((f"{name}={text}", raw | new))
    return found


@torch.no_grad()
def logits_of_transformers(name: str, folder: Path, tokens: torch.Tensor) -> Any:
    """Its logits, or None if it refuses the folder, or if the folder lacks some of its weights."""
    try:
        model, problems = getattr(transformers, name).from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
        return None if any(map(problems.get, problems)) else model(tokens, use_cache=False).logits
    except Exception:
        return None


@torch.no_grad()
def effects(name: str, folder: Path) -> dict[str, str]:
    """What happens with each value that changes the function: `read`, or `refused`."""
    theirs = foreign_model(name)
    for parameter in theirs.parameters():
        if parameter.dim() > 1:
            parameter *= 2
    write_folder(folder, theirs)
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    tokens = torch.randint(ROWS, (1, 12), generator=torch.Generator().manual_seed(1))
    before, found = theirs(tokens, use_cache=False).logits, {}
    for change, content in changed_configs(raw):
        (folder / "config.json").write_text(json.dumps(content), "utf-8")
        expected = logits_of_transformers(name, folder, tokens)
        if expected is None:
            continue
        try:
            ours, outcome = headscope.load(folder).model(tokens), "read"
            atol = 1e-4 * max(1.0, expected.abs().max().item() / 10)
            torch.testing.assert_close(ours, expected, atol=atol, rtol=0)
        except UserError:
            outcome = "refused"
        if not torch.allclose(expected, before, atol=1e-3):
            found[change] = outcome
    return found


def listed(name: str) -> dict[str, str]:
    """The same as docs/ecosystem.md says."""
    [row] = re.findall(rf"\| `{name}` \|([^|\n]*)\|([^|\n]*)\|\n", DOCS.read_text("utf-8"))
    return {
        entry: outcome
        for outcome, cell in zip(("read", "refused"), row, strict=True)
        for entry in re.findall("`([^`]+)`", cell)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_an_entry_that_changes_the_function_is_read_or_refused(name, tmp_path):
    found, said = effects(name, tmp_path), listed(name)
    if transformers.__version__.startswith("4."):  # there, a few other entries have an effect
        found = {change: outcome for change, outcome in found.items() if change in said}
        said = {change: outcome for change, outcome in said.items() if change in found}
    assert found == said
    assert len(found) > 4


@pytest.mark.parametrize("name", SMALL)
def test_the_proof_of_an_architecture_is_exact_over_a_long_context(name):
    theirs = next(each for each in CLASSES if each.name == name)
    context = {theirs.keys["block_size"]: 600}
    windows = {key: 100 for key in ("sliding_window", "window_size") if key in SMALL[name]}
    config = foreign_model(name, **context, **windows).config
    difference = prove_architecture(Path("here"), theirs, config, our_config(theirs, config, None))
    assert difference < 1e-11
