"""The law of config.json: whatever it says, our logits are those of transformers, or the folder is
refused in one line. Among the settings are some that transformers reads without being asked."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import ROWS, edit, foreign_model, transformers, write_folder
from headscope.conversion.huggingface.folder import load_folder
from safetensors.torch import load_file, save_file

from headscope.errors import UserError

GPT2, NEOX, MPT = "GPT2LMHeadModel", "GPTNeoXForCausalLM", "MptForCausalLM"
LLAMA, QWEN3, NANOCHAT = "LlamaForCausalLM", "Qwen3ForCausalLM", "NanoChatForCausalLM"
PLAIN = {"rope_type": "default"}

version_5 = pytest.mark.skipif(
    transformers.__version__ < "5", reason="version 4 of transformers reads this differently"
)

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"is_causal": False}, "is_causal") for name in (GPT2, NEOX, MPT, LLAMA, NANOCHAT)),
    (GPT2, {"num_attention_heads": 4}, "n_head=2 and num_attention_heads=4"),
    (MPT, {"num_attention_heads": 4}, "n_heads=3 and num_attention_heads=4"),
    (GPT2, {"per_layer_config": {"1": {"activation_function": "relu"}}}, "per_layer_config"),
    (GPT2, {"transformers_weights": "other.safetensors"}, "transformers_weights"),
    (NEOX, {"head_dim": 2}, "head_dim"),
    (NEOX, {"rotary_pct": 0.25}, "partial_rotary_factor"),
    (NEOX, {"rotary_emb_base": 700}, "rope_theta"),
    (LLAMA, {"rope_theta": 700.0}, "rope_theta=700"),
    (LLAMA, {"rope_scaling": PLAIN | {"rope_theta": 900.0}}, "rope_theta=900"),
    (QWEN3, {"rope_parameters": {"full_attention": PLAIN}}, "full_attention"),
    (QWEN3, {"sliding_window": 3, "use_sliding_window": True}, "use_sliding_window"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_what_would_give_other_logits_is_refused(
    name: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, foreign_model(name))
    # As version 5 of transformers writes it. Version 4 writes other entries.
    part = {"partial_rotary_factor": 1.0} if name == NEOX else {}
    rope = {} if name in (GPT2, MPT) else PLAIN | {"rope_theta": 300.0} | part
    old = dict.fromkeys(("rope_theta", "rope_scaling", "rotary_emb_base", "rotary_pct"))
    edit(tmp_path / "config.json", rope_parameters=rope, **old)
    load_folder(tmp_path)
    edit(tmp_path / "config.json", **changes)
    with pytest.raises(UserError, match=words) as caught:
        load_folder(tmp_path)
    assert "\n" not in str(caught.value)


SAME = [
    (GPT2, {"n_head": None, "num_attention_heads": 4, "n_layer": None, "num_hidden_layers": 2}),
    (GPT2, {"num_attention_heads": 2, "tie_word_embeddings": None}),
    (GPT2, {"reorder_and_upcast_attn": True}),
    (MPT, {"n_heads": None, "num_attention_heads": 4, "attn_config": {"softmax_scale": 2.0}}),
    (NEOX, {"rope_parameters": None, "rotary_pct": 1.0, "rotary_emb_base": 700}),
    *(
        pytest.param(
            LLAMA,
            {"rope_parameters": None, "rope_theta": 700.0, "rope_scaling": scaling},
            marks=version_5,
        )
        for scaling in ({}, {"type": "default"})
    ),
    (LLAMA, {"head_dim": None, "num_key_value_heads": None, "sliding_window": 3}),
]


@pytest.mark.parametrize(("name", "changes"), SAME)
def test_what_is_read_gives_the_logits_of_transformers(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    write_folder(tmp_path, foreign_model(name))
    edit(tmp_path / "config.json", **changes)
    assert_logits_of_transformers(tmp_path)


@torch.no_grad()
def assert_logits_of_transformers(folder: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = torch.randint(ROWS, (1, 12), generator=torch.Generator().manual_seed(1))
    ours = load_folder(folder).model(tokens)
    torch.testing.assert_close(ours, theirs(tokens).logits, atol=1e-4, rtol=0)


def test_null_is_no_answer_to_whether_the_head_is_tied(tmp_path: Path) -> None:
    """Version 5 refuses it, and version 4 takes it as false."""
    write_folder(tmp_path, foreign_model(GPT2))
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": None}))
    with pytest.raises(UserError, match="tie_word_embeddings=None must be true or false"):
        load_folder(tmp_path)


def test_an_adapter(tmp_path: Path) -> None:
    write_folder(tmp_path, foreign_model(LLAMA))
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UserError, match="merge_and_unload"):
        load_folder(tmp_path)


@version_5
def test_all_tensors_of_all_files_count(tmp_path: Path) -> None:
    """transformers reads what is in the files, whatever the index says."""
    write_folder(tmp_path / "shards", foreign_model(GPT2), max_shard_size="4KB")
    index = tmp_path / "shards" / "model.safetensors.index.json"
    places = json.loads(index.read_text("utf-8"))["weight_map"]
    shard = tmp_path / "shards" / places["transformer.ln_f.weight"]
    shutil.copytree(tmp_path / "shards", tmp_path / "unlisted")
    left = {name: place for name, place in places.items() if name != "transformer.ln_f.weight"}
    edit(tmp_path / "unlisted" / index.name, weight_map=left)
    assert_logits_of_transformers(tmp_path / "unlisted")

    other = next(name for name in places if places[name] != shard.name)
    more = load_file(shard) | {other: torch.ones(2)}
    save_file(more, shard, metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"'{other}' is in .* and in another file"):
        load_folder(tmp_path / "shards")
