"""The law of config.json: whatever it says, our logits are those of transformers, or the folder is
refused in one line."""

from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import ROWS, edit, foreign_model, transformers, write_folder

from headscope.conversion.folder import load_folder
from headscope.errors import UserError

GPT2, NEOX, MPT = "GPT2LMHeadModel", "GPTNeoXForCausalLM", "MptForCausalLM"
LLAMA, ARCEE, QWEN3 = "LlamaForCausalLM", "ArceeForCausalLM", "Qwen3ForCausalLM"
NANOCHAT = "NanoChatForCausalLM"
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
WINDOW = {"use_sliding_window": True, "max_window_layers": 0, "layer_types": None}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}

REFUSED: list[tuple[str, dict[str, Any]]] = [
    # positions: scaled, or on a part of a head
    (LLAMA, {"rope_parameters": LINEAR, "rope_scaling": LINEAR}),
    (NANOCHAT, {"rope_parameters": YARN}),
    (NEOX, {"rotary_pct": 0.25, "rope_parameters": None}),
    (NEOX, {"rotary_pct": 0.5, "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}}),
    # windows
    (QWEN3, {**WINDOW, "sliding_window": 11}),
    (QWEN3, {**WINDOW, "sliding_window": 3, "max_window_layers": 1}),
    # the scale of scores, caps and clips
    (GPT2, {"scale_attn_by_inverse_layer_idx": True}),
    (MPT, {"attn_config": {"clip_qkv": 2.0, "softmax_scale": 0.5}}),
    # the structure of a block
    (NEOX, {"use_parallel_residual": True}),
    (NEOX, {"attention_bias": False}),
    (GPT2, {"add_cross_attention": True}),
    (LLAMA, {"attention_bias": True}),
    (LLAMA, {"mlp_bias": True}),
    # activation functions
    (GPT2, {"activation_function": "silu"}),
    (GPT2, {"activation_function": "quick_gelu"}),
    (LLAMA, {"hidden_act": "gelu"}),
    (NANOCHAT, {"hidden_act": "silu"}),
    # norms and the output head
    (QWEN3, {"rms_norm_eps": 1e-3}),
    (NANOCHAT, {"tie_word_embeddings": True}),
    (GPT2, {"tie_word_embeddings": False}),
    # sizes that do not fit the weights
    (LLAMA, {"num_attention_heads": 2}),
    (LLAMA, {"num_key_value_heads": 2}),
    (GPT2, {"n_positions": 20}),
    (GPT2, {"n_layer": 3}),
    (GPT2, {"n_layer": 1}),
    (GPT2, {"vocab_size": 10}),
    # values of other types
    (GPT2, {"vocab_size": "many"}),
    (GPT2, {"n_embd": -16}),
    (GPT2, {"n_head": [2]}),
    (GPT2, {"layer_norm_epsilon": "1e-5"}),
    (GPT2, {"activation_function": ["gelu"]}),
    (GPT2, {"model_type": ["gpt2"]}),
    (GPT2, {"model_type": None}),
    # other files, other types of weights, other code
    (GPT2, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}),
    (GPT2, {"transformers_weights": "other.safetensors"}),
    (LLAMA, {"model_type": "mistral", "sliding_window": 3}),
]
"""Changes of config.json after which headscope is not the same function, or the file is wrong."""

EQUAL: list[tuple[str, dict[str, Any]]] = [
    # transformers ignores these entries, or they have another meaning that we read
    (MPT, {"attn_config": {"alibi_bias_max": 4}, "expansion_ratio": 2}),
    (GPT2, {"reorder_and_upcast_attn": True}),
    (GPT2, {"scale_attn_weights": False}),
    (GPT2, {"layer_norm_epsilon": 0.5, "n_head": 4}),
    (NEOX, {"rope_parameters": None, "rotary_emb_base": 700, "rotary_pct": 1.0}),
    (NEOX, {"hidden_act": "gelu_fast"}),
    (MPT, {"logit_scale": 0.5, "no_bias": False, "norm_type": "rmsnorm"}),
    (LLAMA, {"rope_parameters": None, "rope_theta": 700.0}),
    (LLAMA, {"sliding_window": 3, "attention_sinks": True, "attn_logit_softcapping": 5.0}),
    (QWEN3, {"use_sliding_window": False, "sliding_window": 3}),
    (NANOCHAT, {"final_logit_softcapping": None}),
]
"""Changes of config.json after which both still compute the same function."""

EITHER: list[tuple[str, dict[str, Any]]] = [
    (GPT2, {"is_causal": False}),
    (LLAMA, {"is_causal": False}),
    (MPT, {"attn_config": {"alibi": False}}),
    (MPT, {"attn_config": {"qk_ln": True, "prefix_lm": True}}),
    (GPT2, {"per_layer_config": {"1": {"activation_function": "relu"}}}),
    (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    (LLAMA, {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 7.0}}}),
    (LLAMA, {"rope_parameters": {"rope_type": "default"}, "rope_theta": 7.0}),
    (LLAMA, {"partial_rotary_factor": 0.5}),
    (LLAMA, {"tie_word_embeddings": True}),
    (GPT2, {"tie_word_embeddings": None, "scale_attn_weights": 0}),
]
"""Changes whose meaning depends on the version of transformers."""

CHANGES = [
    *((name, changes, "refused") for name, changes in REFUSED),
    *((name, changes, "equal") for name, changes in EQUAL),
    *((name, changes, "refused or equal") for name, changes in EITHER),
]


def changed(name: str, changes: dict[str, Any], folder: Path) -> Path:
    write_folder(folder, foreign_model(name))
    load_folder(folder)  # it can be read before the change
    content = dict(changes)
    if isinstance(content.get("attn_config"), dict):
        content["attn_config"] = {"model_type": "", **content["attn_config"]}
    edit(folder / "config.json", keep_null=True, **content)
    return folder


@torch.no_grad()
def outcome(folder: Path) -> str:
    """Raises AssertionError if our logits are others than those of transformers."""
    try:
        loaded = load_folder(folder)
    except UserError as error:
        one_line = str(error).startswith(str(folder)) and "\n" not in str(error)
        return "refused" if one_line else repr(error)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    tokens = torch.randint(ROWS, (2, 12), generator=torch.Generator().manual_seed(1))
    expected = theirs(tokens).logits
    scale = max(1.0, expected.abs().max().item() / 10)
    torch.testing.assert_close(loaded.model(tokens), expected, atol=1e-4 * scale, rtol=0)
    return "equal"


@pytest.mark.parametrize(("name", "changes", "expected"), CHANGES, ids=str)
def test_logits_are_those_of_transformers_or_the_folder_is_refused(
    name: str, changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert outcome(changed(name, changes, tmp_path)) in expected


def test_the_message_names_what_was_not_read(tmp_path: Path) -> None:
    folder = changed(NEOX, {"use_parallel_residual": True}, tmp_path)
    words = r"this GPTNeoXForCausalLM: logits differ.*use_parallel_residual=true"
    with pytest.raises(UserError, match=words):
        load_folder(folder)


def test_an_adapter(tmp_path: Path) -> None:
    write_folder(tmp_path, foreign_model(LLAMA))
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UserError, match="merge_and_unload"):
        load_folder(tmp_path)


def test_a_clip_that_no_weight_reaches_is_refused(tmp_path: Path) -> None:
    """The folder's own weights cannot show it. Large random weights do."""
    theirs = foreign_model(MPT)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight *= 0.05
    write_folder(tmp_path, theirs)
    load_folder(tmp_path)
    edit(tmp_path / "config.json", attn_config={"model_type": "", "clip_qkv": 6.0})
    with pytest.raises(UserError, match=r"attn_config\.clip_qkv=6\.0: headscope does not clip"):
        load_folder(tmp_path)


def test_a_longer_context_is_compared_to_its_end(tmp_path: Path) -> None:
    """The window hides the first tokens only after 2,100 tokens."""
    write_folder(tmp_path, foreign_model(QWEN3, max_position_embeddings=4096))
    edit(tmp_path / "config.json", **WINDOW, sliding_window=2100)
    load_folder(tmp_path)
    with pytest.raises(UserError, match=r"logits differ.*sliding_window=2100"):
        load_folder(tmp_path, block_size=2200)


def test_the_names_of_all_parameters_must_match(tmp_path: Path) -> None:
    """Its feed-forward networks have biases, and its output projections have none."""
    write_folder(tmp_path, foreign_model(NEOX, attention_bias=False))
    with pytest.raises(UserError, match=r"headscope has no parameter like '.*bias'"):
        load_folder(tmp_path)


def test_no_kernel_is_downloaded(tmp_path: Path) -> None:
    """transformers would download the code that config.json names here."""
    names = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
    folder = changed(GPT2, dict.fromkeys(names, "nobody/kernels"), tmp_path)
    assert load_folder(folder).model.block_size == 12
