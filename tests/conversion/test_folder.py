"""The laws of Hugging Face folders: they give the logits and attention weights of transformers."""

import json
import shutil
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from composing import training_config
from foreign_models import ROWS, SMALL, assert_same, edit, foreign_model, write_folder
from running import Script
from safetensors.torch import load_file, save_file

import headscope
from headscope.config.model import MultiQueryConfig
from headscope.conversion.folder import folder_of, load_folder
from headscope.errors import UserError

SHAPES = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
}
OTHER = {
    "gpt2, gelu": ("GPT2LMHeadModel", {"activation_function": "gelu", "n_inner": 40}),
    "gpt2, no scale": ("GPT2LMHeadModel", {"scale_attn_weights": False, "n_head": 4}),
    "gpt2, relu2": ("GPT2LMHeadModel", {"activation_function": "relu2", "n_embd": 24}),
    "neox": (
        "GPTNeoXForCausalLM",
        {"hidden_act": "gelu_new", "rotary_emb_base": 500, "num_attention_heads": 2},
    ),
    "mpt": ("MptForCausalLM", {"n_heads": 6, "attn_config": {"softmax_scale": 0.3}}),
    "mpt, 5 heads": ("MptForCausalLM", {"n_heads": 5, "d_model": 20}),
    "llama, grouped": (
        "LlamaForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 6, "rope_theta": 300.0, "rms_norm_eps": 0.01},
    ),
    "llama, biases": (
        "LlamaForCausalLM",
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
    ),
    "arcee, biases": ("ArceeForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "arcee, gelu": ("ArceeForCausalLM", {"hidden_act": "gelu", "num_key_value_heads": 2}),
    "qwen3, grouped": ("Qwen3ForCausalLM", {"num_key_value_heads": 2, "head_dim": 12}),
    "nanochat, grouped": (
        "NanoChatForCausalLM",
        {"num_key_value_heads": 2, "final_logit_softcapping": 4.0, "rope_theta": 300.0},
    ),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_class_tied_and_untied(name: str, shape: str, tmp_path: Path) -> None:
    theirs = foreign_model(name, **SHAPES[shape])
    write_folder(tmp_path, theirs)
    if (name, shape) == ("NanoChatForCausalLM", "tied"):
        with pytest.raises(UserError, match="tie_word_embeddings"):
            load_folder(tmp_path)
        return
    loaded = headscope.load(tmp_path)
    assert_same(loaded, theirs)
    assert loaded.model.vocab_size == loaded.tokenizer.vocab_size == ROWS
    assert loaded.config.model.tied_head is (shape == "tied")


@pytest.mark.parametrize("other", OTHER)
def test_other_shapes_and_settings(other: str, tmp_path: Path) -> None:
    name, settings = OTHER[other]
    theirs = foreign_model(name, **settings)
    loaded = headscope.load(write_folder(tmp_path, theirs))
    assert_same(loaded, theirs)
    if settings.get("num_key_value_heads") == 1:
        assert isinstance(loaded.config.model.attention, MultiQueryConfig)


def test_forms_of_files(tmp_path: Path) -> None:
    """Shards, pickles, names without a prefix, old buffers, half precision."""
    theirs = foreign_model("GPT2LMHeadModel")
    whole = write_folder(tmp_path / "whole", theirs)
    write_folder(tmp_path / "shards", theirs, max_shard_size="4KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert_same(headscope.load(tmp_path / "shards"), theirs)

    weights = load_file(whole / "model.safetensors")
    old = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    old |= {
        "h.0.attn.bias": torch.ones(1, 1, 12, 12).tril(),
        "h.1.attn.masked_bias": -torch.ones(1),
    }
    copied(whole, tmp_path / "old", without="model.safetensors")
    save_file(old, tmp_path / "old" / "model.safetensors", metadata={"format": "pt"})
    assert_same(headscope.load(tmp_path / "old"), theirs)

    copied(whole, tmp_path / "pickle", without="model.safetensors")
    torch.save(theirs.state_dict(), tmp_path / "pickle" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pickle: transformers cannot open.*safetensors"):
        headscope.load(tmp_path / "pickle")

    for dtype in (torch.float16, torch.bfloat16):
        half = {name: weight.to(dtype) for name, weight in weights.items()}
        copied(whole, tmp_path / str(dtype), without="model.safetensors")
        save_file(half, tmp_path / str(dtype) / "model.safetensors", metadata={"format": "pt"})
        loaded = headscope.load(tmp_path / str(dtype))
        assert loaded.model.embedding.weight.dtype == torch.float32
        assert_same(loaded, deepcopy(theirs).to(dtype).float())

    # The hub's cache has links to the files themselves.
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b"
    shutil.copytree(whole, blobs)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    headscope.load(snapshot)


def copied(source: Path, target: Path, *, without: str) -> Path:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(without))
    return target


def test_a_shorter_context(tmp_path: Path) -> None:
    theirs = foreign_model("GPT2LMHeadModel")
    write_folder(tmp_path, theirs)
    loaded = load_folder(tmp_path, block_size=5)
    assert loaded.model.block_size == loaded.config.model.block_size == 5
    assert_same(loaded, theirs, length=5)
    for size in (13, 0, -1):
        with pytest.raises(UserError, match=f"block_size={size} must be from 1 to 12"):
            load_folder(tmp_path, block_size=size)


def test_the_configuration_is_that_of_finetuning(tmp_path: Path) -> None:
    loaded = load_folder(write_folder(tmp_path / "gpt", foreign_model("GPT2LMHeadModel")))
    expected = asdict(training_config("experiment=finetune"))
    found = asdict(loaded.config)
    expected["trainer"]["max_steps"] = 0  # nothing is trained yet
    own = ("name", "model", "data", "tokenizer")
    assert {key: found[key] for key in found if key not in own} == {
        key: expected[key] for key in expected if key not in own
    }


def test_python(tmp_path: Path) -> None:
    """load() gives the same object for a run and for a folder, with names as in transformers."""
    theirs = foreign_model("GPT2LMHeadModel")
    loaded = headscope.load(write_folder(tmp_path, theirs))
    ids = list(b"To be")
    assert torch.equal(loaded.logits(ids), loaded.logits("To be"))
    torch.testing.assert_close(
        loaded.logits(ids), theirs(torch.tensor([ids])).logits[0].detach(), atol=1e-4, rtol=0
    )
    generated = theirs.generate(
        torch.tensor([ids]), max_new_tokens=6, do_sample=False, eos_token_id=256, pad_token_id=256
    )
    assert loaded.generate(ids, max_new_tokens=6) == generated[0].tolist()
    text = loaded.generate("To be", max_new_tokens=6)
    assert text == loaded.tokenizer.decode(generated[0].tolist())
    sampled = [
        loaded.generate("To be", max_new_tokens=6, do_sample=True, top_k=5, top_p=0.9, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]
    with pytest.raises(UserError, match="top_k=0"):
        loaded.generate("To be", do_sample=True, top_k=0)
    with pytest.raises(UserError, match="empty"):
        loaded.logits("")


@pytest.mark.slow
def test_all_scripts_open_an_imported_model(
    script: Script, tmp_path: Path, pictures_not_drawn: None
) -> None:
    theirs = foreign_model("LlamaForCausalLM", num_key_value_heads=2)
    write_folder(Path("llama"), theirs)
    said = script("convert", "source=llama", "output=outputs/llama")
    assert said.code == 0, said.err
    assert "parameters, 2 layers with 4 heads" in said.out
    assert [path.name for path in Path("outputs").iterdir()] == ["llama"]
    loaded = headscope.load("outputs/llama")
    assert_same(loaded, theirs)
    assert type(loaded) is type(headscope.load("llama"))

    said = script("sample", "checkpoint=outputs/llama", "prompt=To be", "max_new_tokens=4")
    assert said.out.startswith("To be"), said.err
    Path("my.txt").write_text("To be, or not to be: that is the question.\n" * 9, "utf-8")
    said = script("evaluate", "checkpoint=outputs/llama", "data.path=my.txt")
    assert json.loads(said.out)["loss_nats_per_token"] > 0, said.err
    said = script("analyze", "checkpoint=outputs/llama", "text=To be or not")
    assert said.code == 0, said.err
    for name in ("evaluate", "analyze"):
        said = script(name, "checkpoint=outputs/llama")
        assert said.code == 1
        assert "unknown" in said.err
        assert "data.path=" in said.err
        assert said.err.count("\n") <= 2  # it says what it reads
    said = script("train", "resume=outputs/llama")
    assert "init_from=outputs/llama" in said.err

    words = ["init_from=outputs/llama", "experiment=finetune", "data.path=my.txt"]
    quick = ["trainer.max_steps=2", "trainer.batch_size=2", "callbacks=plain", "model.dropout=0.1"]
    said = script("train", *words, *quick, "hydra.run.dir=outputs/tuned")
    assert said.code == 0, said.err
    tuned = headscope.load("outputs/tuned")
    assert tuned.config.model.dropout == 0.1
    assert tuned.config.model.feed_forward == loaded.config.model.feed_forward
    assert tuned.tokenizer.state() == loaded.tokenizer.state()
    difference = max(
        (new - old).abs().max().item()
        for new, old in zip(tuned.model.parameters(), loaded.model.parameters(), strict=True)
    )
    assert 0 < difference < 1e-3

    said = script("train", *words, *quick, "model.embed_dim=32")
    assert said.code == 1
    assert "another shape" in said.err


@pytest.mark.parametrize(
    "words",
    [
        ["source=a.pt", "checkpoint=run"],
        ["to=gguf", "text=a.txt"],
        ["to=huggingface", "block_size=8"],
        ["source=folder", "text=a.txt"],
    ],
)
def test_a_key_without_effect_is_refused(script: Script, words: list[str]) -> None:
    write_folder(Path("folder"), foreign_model("GPT2LMHeadModel"))
    said = script("convert", *words, "output=out")
    assert said.code == 1
    assert words[1] in said.err
    assert "leave it out" in said.err
    assert not Path("out").exists()


def test_no_network(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing", "nothing"):
        said = script("convert", f"source={name}", "output=outputs/new")
        assert said.code == 1
        assert f"source={name}" in said.err
        assert said.err.count("\n") == 1
    assert not Path("outputs").exists()


def test_a_rotary_model_is_as_long_as_masks_allow(tmp_path: Path) -> None:
    theirs = foreign_model("LlamaForCausalLM")
    write_folder(tmp_path, theirs)
    edit(tmp_path / "config.json", max_position_embeddings=131072)
    assert load_folder(tmp_path).model.block_size == 2048
    assert load_folder(tmp_path, block_size=3000).model.block_size == 3000


def test_the_name_of_a_model_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network, the files in the hub's cache are used. Links lead to the files there."""
    revision = "0" * 40
    model = tmp_path / "models--someone--small"
    whole = write_folder(model / "blobs", foreign_model("GPT2LMHeadModel"))
    snapshot = model / "snapshots" / revision
    snapshot.mkdir(parents=True)
    for file in whole.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert folder_of("someone/small") == snapshot
    assert load_folder(folder_of("someone/small")).model.block_size == 12
