"""The law of config.json: whatever it says, our logits are those of transformers, or the folder is
refused in one line."""

from typing import Any

import pytest
import torch
from foreign_models import ROWS, edit, foreign_model, transformers, write_folder
from refusals import refused

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
    *((LLAMA, {key: True}) for key in ("attention_bias", "mlp_bias")),
    # activation functions
    *((GPT2, {"activation_function": name}) for name in ("silu", "quick_gelu", ["gelu"])),
    (LLAMA, {"hidden_act": "gelu"}),
    (NANOCHAT, {"hidden_act": "silu"}),
    # norms and the output head
    (QWEN3, {"rms_norm_eps": 1e-3}),
    (NANOCHAT, {"tie_word_embeddings": True}),
    (GPT2, {"tie_word_embeddings": False}),
    # sizes that do not fit the weights
    *((LLAMA, {key: 2}) for key in ("num_attention_heads", "num_key_value_heads")),
    *((GPT2, {"n_layer": layers}) for layers in (1, 3)),
    (GPT2, {"n_positions": 20}),
    # values that do not fit, or are of other types
    *((GPT2, {"vocab_size": size}) for size in (10, "many")),
    *((GPT2, {"model_type": name}) for name in (["gpt2"], None)),
    (GPT2, {"n_embd": -16}),
    (GPT2, {"n_head": [2]}),
    (GPT2, {"layer_norm_epsilon": "1e-5"}),
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
    *((name, {"is_causal": False}) for name in (GPT2, LLAMA)),
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

EXPECTED = {"refused": REFUSED, "equal": EQUAL, "refused or equal": EITHER}


def changed(name, changes, folder):
    write_folder(folder, foreign_model(name))
    load_folder(folder)  # it can be read before the change
    if "attn_config" in changes:
        changes = {"attn_config": {"model_type": "", **changes["attn_config"]}}
    edit(folder / "config.json", keep_null=True, **changes)
    return folder


@torch.no_grad()
def outcome(folder):
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


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [(*case, expected) for expected, cases in EXPECTED.items() for case in cases],
    ids=str,
)
def test_logits_are_those_of_transformers_or_the_folder_is_refused(
    name, changes, expected, tmp_path
):
    assert outcome(changed(name, changes, tmp_path)) in expected


def test_the_message_names_what_was_not_read(tmp_path):
    folder = changed(NEOX, {"use_parallel_residual": True}, tmp_path)
    with refused("this GPTNeoXForCausalLM: logits differ", "use_parallel_residual=true"):
        load_folder(folder)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with refused("merge_and_unload"):
        load_folder(folder)


def test_a_clip_that_no_weight_reaches_is_refused(tmp_path):
    """The folder's own weights cannot show it. Large random weights do."""
    theirs = foreign_model(MPT)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight *= 0.05
    write_folder(tmp_path, theirs)
    load_folder(tmp_path)
    edit(tmp_path / "config.json", attn_config={"model_type": "", "clip_qkv": 6.0})
    with refused("attn_config.clip_qkv=6.0: headscope does not clip"):
        load_folder(tmp_path)


def test_a_longer_context_is_compared_to_its_end(tmp_path):
    """The window hides the first tokens only after 2,100 tokens."""
    write_folder(tmp_path, foreign_model(QWEN3, max_position_embeddings=4096))
    edit(tmp_path / "config.json", **WINDOW, sliding_window=2100)
    load_folder(tmp_path)
    with refused("logits differ", "sliding_window=2100"):
        load_folder(tmp_path, block_size=2200)


def test_the_names_of_all_parameters_must_match(tmp_path):
    """Its feed-forward networks have biases, and its output projections have none."""
    write_folder(tmp_path, foreign_model(NEOX, attention_bias=False))
    with refused("headscope has no parameter like '", "bias'"):
        load_folder(tmp_path)


def test_no_kernel_is_downloaded(tmp_path):
    """transformers would download the code that config.json names here."""
    names = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
    folder = changed(GPT2, dict.fromkeys(names, "nobody/kernels"), tmp_path)
    assert load_folder(folder).model.block_size == 12
