"""Folders from strangers: refused in one line, without running code and without much memory."""

import json
import os
import pickle
import resource
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import edit, foreign_model, write_folder
from headscope.conversion.huggingface.folder import load_folder
from running import Script
from safetensors.torch import load_file, save_file

from headscope.conversion.convert import import_model
from headscope.errors import UserError

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return write_folder(folder, foreign_model("GPT2LMHeadModel"))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A valid folder, to be damaged."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in whole.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def refused(folder: Path, *words: str) -> None:
    tracemalloc.start()
    with pytest.raises(UserError) as caught:
        load_folder(folder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    for word in (str(folder), *words):
        assert word in message
    assert peak < 2**25


class Attack:
    """A pickle that creates a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("attacked",)


def test_a_pickle_is_not_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Attack()))
    refused(folder, "pytorch_model.bin", "save_pretrained")
    assert not (folder / "attacked").exists()


def test_a_link_that_leads_to_itself(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(WEIGHTS)
    refused(folder, WEIGHTS, "link")


def test_code_in_the_folder_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "modeling.py").write_text("import os; os.mkdir('attacked')")
    auto_map = {"AutoConfig": "modeling.C", "AutoModelForCausalLM": "modeling.M"}
    edit(folder / "config.json", auto_map=auto_map)
    load_folder(folder)
    edit(folder / "config.json", auto_map=auto_map, model_type="own")
    refused(folder, "model_type=own", "not run")
    assert not (folder / "attacked").exists()


def header(**entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def entry(shape: list[Any], *offsets: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


FILES = {
    "empty": b"",
    "huge header": struct.pack("<Q", 2**40) + b"{}",
    "negative header": b"\xff" * 8 + b"{}",
    "not JSON": struct.pack("<Q", 2) + b"{]",
    "not UTF-8": struct.pack("<Q", 4) + b'{"\xff"',
    "nested": struct.pack("<Q", 2 * 10**5) + b"[" * 10**5 + b"]" * 10**5,
    "a list": struct.pack("<Q", 2) + b"[]",
    "overlap": header(a=entry([2], 0, 8), b=entry([2], 4, 12)) + bytes(12),
    "gap": header(a=entry([1], 0, 4), b=entry([1], 8, 12)) + bytes(12),
    "more bytes": header(a=entry([1], 0, 4)) + bytes(8),
    "fewer bytes": header(a=entry([4], 0, 16)) + bytes(8),
    "other size": header(a=entry([3], 0, 8)) + bytes(8),
    "huge shape": header(a=entry([2**40, 2**40], 0, 8)) + bytes(8),
    "negative shape": header(a=entry([-1, -2], 0, 8)) + bytes(8),
    "shape of text": header(a=entry(["2"], 0, 8)) + bytes(8),
    "shape of true": header(a=entry([True], 0, 4)) + bytes(4),
    "no offsets": header(a={"dtype": "F32", "shape": [1]}) + bytes(4),
    "type": header(a=entry([1], 0, 4, dtype="F999")) + bytes(4),
    "entry": header(a=7),
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_damaged_safetensors(folder: Path, content: bytes) -> None:
    (folder / WEIGHTS).write_bytes(content)
    refused(folder, WEIGHTS, "safetensors")


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)


def test_wrong_weights(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    norm, embedding = "transformer.ln_f.weight", "transformer.wte.weight"
    cases: list[tuple[Callable[[dict[str, torch.Tensor]], object], str]] = [
        (lambda weights: weights.pop(norm), "missing"),
        (lambda weights: weights.update(strange=torch.ones(2)), "'strange'"),
        (lambda weights: weights.update({norm: torch.ones(17)}), "(17,)"),
        (lambda weights: weights.update({norm: torch.ones(())}), "()"),
        (lambda weights: weights.update({norm: torch.full((16,), torch.nan)}), "NaN"),
        (lambda weights: weights[embedding][5, 5].fill_(torch.inf), "infinite"),
        (lambda weights: weights.update({norm: torch.ones(16, dtype=torch.int8)}), "int8"),
        (lambda weights: weights.update({"ln_f.weight": torch.ones(16)}), "twice"),
        (lambda weights: weights.update({"lm_head.weight": torch.ones(264, 16)}), "tied"),
        (lambda weights: weights.update({"lm_head.weight": torch.ones(())}), "tied"),
    ]
    for change, word in cases:
        (folder / WEIGHTS).write_bytes(whole)
        changed(folder, change)
        refused(folder, word)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 10**9),
        ("vocab_size", "many"),
        ("vocab_size", True),
        ("vocab_size", None),
        ("n_embd", 10**9),
        ("n_embd", -16),
        ("n_layer", 10**9),
        ("n_layer", 9999),
        ("n_layer", 1.5),
        ("n_head", 3),
        ("n_head", 0),
        ("n_head", [2]),
        ("n_positions", 10**9),
        ("n_inner", 10**9),
        ("layer_norm_epsilon", -1),
        ("layer_norm_epsilon", 10**400),
        ("layer_norm_epsilon", "1e-5"),
        ("activation_function", "silu"),
        ("activation_function", ["gelu"]),
        ("scale_attn_by_inverse_layer_idx", True),
        ("scale_attn_weights", "no"),
        ("add_cross_attention", True),
        ("tie_word_embeddings", 1),
        ("quantization_config", {"bits": 4}),
        ("model_type", "bert"),
        ("model_type", ["gpt2"]),
        ("model_type", None),
    ],
)
def test_settings(folder: Path, key: str, value: Any) -> None:
    edit(folder / "config.json", **{key: value})
    refused(folder)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("GPTNeoXForCausalLM", {"use_parallel_residual": True}),
        ("GPTNeoXForCausalLM", {"rope_parameters": {"partial_rotary_factor": 0.25}}),
        ("GPTNeoXForCausalLM", {"rope_parameters": None, "rotary_pct": None}),
        ("GPTNeoXForCausalLM", {"attention_bias": False}),
        ("LlamaForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}),
        ("LlamaForCausalLM", {"rope_parameters": [1]}),
        ("LlamaForCausalLM", {"attention_bias": True}),
        ("LlamaForCausalLM", {"hidden_act": "gelu"}),
        ("LlamaForCausalLM", {"num_key_value_heads": 3}),
        ("Qwen3ForCausalLM", {"use_sliding_window": True}),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("Qwen3ForCausalLM", {"rms_norm_eps": 1e-5}),
        ("MptForCausalLM", {"attn_config": {"clip_qkv": 8}}),
        ("MptForCausalLM", {"attn_config": {"alibi": False}}),
        ("MptForCausalLM", {"logit_scale": 0.5}),
        ("NanoChatForCausalLM", {"attention_bias": True}),
        ("NanoChatForCausalLM", {"final_logit_softcapping": -1}),
    ],
)
def test_settings_that_we_cannot_express(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    write_folder(tmp_path, foreign_model(name))
    load_folder(tmp_path)
    edit(tmp_path / "config.json", **settings)
    refused(tmp_path)


def test_files_outside_the_folder(folder: Path) -> None:
    outside = folder.parent / WEIGHTS
    (folder / WEIGHTS).rename(outside)
    (folder / WEIGHTS).symlink_to(outside)
    refused(folder, "outside")
    (folder / WEIGHTS).unlink()
    index = folder / (WEIGHTS + ".index.json")
    for name in (f"../{WEIGHTS}", str(outside), "config.json", ".bin", "a/b.safetensors", "\n"):
        index.write_text(json.dumps({"weight_map": {"transformer.wte.weight": name}}))
        refused(folder, index.name, "not a file of weights")
    index.write_text(json.dumps({"weight_map": {"transformer.wte.weight": "a.safetensors"}}))
    refused(folder, "missing")
    for content in ("[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', "{"):
        index.write_text(content)
        refused(folder)
    index.unlink()
    os.mkfifo(folder / WEIGHTS)
    refused(folder, "not a regular file")
    (folder / WEIGHTS).unlink()
    refused(folder, "no model.safetensors")


def test_a_tensor_that_the_index_promises(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    index = folder / (WEIGHTS + ".index.json")
    index.write_text(json.dumps({"weight_map": {"transformer.more": "a.safetensors"}}))
    refused(folder, "no tensor 'transformer.more'")


def test_a_large_config(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(10**8)
    refused(folder, "100,000,000")
    (folder / "config.json").write_text("[" * 10**5)
    refused(folder, "nested")
    (folder / "config.json").write_text('{"vocab_size": NaN}')
    refused(folder, "NaN")
    (folder / "config.json").unlink()
    refused(folder, "config.json")


def test_nothing_is_left_of_a_failed_conversion(script: Script, folder: Path) -> None:
    changed(folder, lambda weights: weights.update(strange=torch.ones(2)))
    said = script("convert", f"source={folder}", "output=outputs/new")
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert "strange" in said.err
    assert not Path("outputs").exists()


def test_no_space(folder: Path, tmp_path: Path) -> None:
    """One line with the size, and nothing is left."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UserError, match=r"could not be written: .*it needs at least [\d,]+"):
            import_model(str(folder), tmp_path / "out" / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert not [path for path in tmp_path.rglob("*") if "new" in path.name]
