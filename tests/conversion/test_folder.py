"""The laws of Hugging Face folders: they give the logits and attention weights of transformers."""

import json
import shutil
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from composing import training_config
from foreign_models import ROWS, SMALL, assert_same, edit, foreign_model, write_folder
from refusals import refused
from safetensors.torch import load_file, save_file

import headscope
from benchmarks.runner import in_fresh_process, process_mib
from headscope.conversion.folder import folder_of, load_folder

GROUPED = {"num_key_value_heads": 2}
BIASES = {"attention_bias": True, "mlp_bias": True}
MODELS = [
    *((name, {"tie_word_embeddings": tied}) for name in SMALL for tied in (True, False)),
    ("GPT2LMHeadModel", {"activation_function": "gelu", "n_inner": 40}),
    ("GPT2LMHeadModel", {"activation_function": "relu2", "n_embd": 24}),
    ("GPTNeoXForCausalLM", {"hidden_act": "gelu_new", "num_attention_heads": 2}),
    ("MptForCausalLM", {"n_heads": 5, "d_model": 20, "attn_config": {"softmax_scale": 0.3}}),
    ("LlamaForCausalLM", GROUPED | {"head_dim": 6, "rope_theta": 300.0, "rms_norm_eps": 0.01}),
    ("LlamaForCausalLM", BIASES | {"num_key_value_heads": 1}),
    ("ArceeForCausalLM", BIASES),
    ("ArceeForCausalLM", GROUPED | {"hidden_act": "gelu"}),
    ("Qwen3ForCausalLM", GROUPED | {"head_dim": 12}),
    ("NanoChatForCausalLM", GROUPED | {"final_logit_softcapping": 4.0, "rope_theta": 300.0}),
]


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=str)
def test_every_class_tied_and_untied(name, settings, tmp_path):
    theirs = foreign_model(name, **settings)
    write_folder(tmp_path, theirs)
    if (name, settings) == ("NanoChatForCausalLM", {"tie_word_embeddings": True}):
        with refused("tie_word_embeddings"):
            load_folder(tmp_path)
        return
    loaded = headscope.load(tmp_path)
    assert_same(loaded, theirs)
    assert loaded.model.vocab_size == loaded.tokenizer.vocab_size == ROWS
    model, shared = loaded.config.model, settings.get("num_key_value_heads") == 1
    assert model.tied_head is settings.get("tie_word_embeddings", model.tied_head)
    assert (model.attention["_target_"] == "headscope.MultiQuery") is shared


def test_forms_of_files(tmp_path):
    theirs = foreign_model("GPT2LMHeadModel")
    whole = write_folder(tmp_path / "whole", theirs)
    write_folder(tmp_path / "shards", theirs, max_shard_size="4KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert_same(headscope.load(tmp_path / "shards"), theirs)

    def with_weights(name, weights):
        """The model in a copy of the folder with these weights."""
        folder = shutil.copytree(whole, tmp_path / name)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return headscope.load(folder)

    weights = load_file(whole / "model.safetensors")
    old = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 12, 12), "h.1.attn.masked_bias": -torch.ones(1)}
    assert_same(with_weights("old", old | masks), theirs)
    for dtype in (torch.float16, torch.bfloat16):
        half = {name: weight.to(dtype) for name, weight in weights.items()}
        loaded = with_weights(str(dtype), half)
        assert loaded.model.embedding.weight.dtype == torch.float32
        assert_same(loaded, deepcopy(theirs).to(dtype).float())

    (whole / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), whole / "pytorch_model.bin")
    with refused("whole: transformers cannot open", "safetensors"):
        headscope.load(whole)


def load_and_measure(folder):
    """The MiB by which loading raises the peak of this process, and those of the weights."""
    from transformers import GPT2LMHeadModel  # noqa: F401  # its code is not what is measured

    before = process_mib("VmHWM")
    loaded = headscope.load(folder)
    after = process_mib("VmHWM")
    return after - before, sum(each.nbytes for each in loaded.model.parameters()) / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_loading_gpt2_needs_less_than_3_5_times_its_weights(tmp_path):
    """Both models exist during the proof."""
    sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    theirs = foreign_model("GPT2LMHeadModel", vocab_size=50257, **sizes)
    for parameter in theirs.parameters():
        parameter.data.fill_(0.01)
    write_folder(tmp_path, theirs)
    added, of_weights = in_fresh_process(load_and_measure, tmp_path)
    assert of_weights == pytest.approx(474.7, abs=0.1)
    assert of_weights <= added < 3.5 * of_weights


def test_a_shorter_context(tmp_path):
    theirs = foreign_model("GPT2LMHeadModel")
    write_folder(tmp_path, theirs)
    loaded = load_folder(tmp_path, block_size=5)
    assert loaded.model.block_size == loaded.config.model.block_size == 5
    assert_same(loaded, theirs, length=5)
    for size in (13, 0, -1):
        with refused(f"block_size={size} must be from 1 to 12"):
            load_folder(tmp_path, block_size=size)
    write_folder(tmp_path / "llama", foreign_model("LlamaForCausalLM"))
    edit(tmp_path / "llama" / "config.json", max_position_embeddings=131072)
    assert load_folder(tmp_path / "llama").model.block_size == 2048  # masks need the square of it
    assert load_folder(tmp_path / "llama", block_size=3000).model.block_size == 3000


def test_python(tmp_path):
    """load() gives the same object for a run and for a folder, with names as in transformers. The
    configuration is that of finetuning."""
    theirs = foreign_model("GPT2LMHeadModel")
    loaded = headscope.load(write_folder(tmp_path, theirs))
    found = loaded.config.kept()
    own = {key: found[key] for key in ("name", "model", "data", "tokenizer")}
    expected = training_config("experiment=finetune").kept() | {"callbacks": {}} | own
    expected["trainer"]["max_steps"] = 0  # nothing is trained yet
    assert found == expected

    ids = list(b"To be")
    assert torch.equal(loaded.logits(ids), loaded.logits("To be"))
    logits = theirs(torch.tensor([ids])).logits[0].detach()
    torch.testing.assert_close(loaded.logits(ids), logits, atol=1e-4, rtol=0)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": 256, "pad_token_id": 256}
    generated = theirs.generate(torch.tensor([ids]), **options)[0].tolist()
    assert loaded.generate(ids, max_new_tokens=6) == generated
    assert loaded.generate("To be", max_new_tokens=6) == loaded.tokenizer.decode(generated)
    options = {"max_new_tokens": 6, "do_sample": True, "top_k": 5, "top_p": 0.9}
    one, same, other = (loaded.generate("To be", seed=seed, **options) for seed in (1, 1, 2))
    assert one == same != other
    with refused("top_k=0"):
        loaded.generate("To be", do_sample=True, top_k=0)
    with refused("empty"):
        loaded.logits("")


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_not_drawn")
def test_all_scripts_open_an_imported_model(script):
    theirs = foreign_model("LlamaForCausalLM", num_key_value_heads=2)
    write_folder(Path("llama"), theirs)
    said = script("convert", "source=llama", "output=outputs/llama")
    assert said.code == 0, said.err
    loaded = headscope.load("outputs/llama")
    assert_same(loaded, theirs)

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
    new, old = (each.model.embedding.weight for each in (tuned, loaded))
    assert 0 < (new - old).abs().max() < 1e-3

    said = script("train", *words, *quick, "model.embed_dim=32")
    assert said.code == 1
    assert "another model" in said.err


def test_a_key_without_effect_is_refused(script):
    write_folder(Path("folder"), foreign_model("GPT2LMHeadModel"))
    for words in (
        ["source=a.pt", "checkpoint=run"],
        ["to=gguf", "text=a.txt"],
        ["to=huggingface", "block_size=8"],
    ):
        said = script("convert", *words, "output=out")
        assert (said.code, Path("out").exists()) == (1, False)
        assert all(word in said.err for word in (words[1], "leave it out"))
    said = script("convert", "source=folder", "text=missing.txt", "output=out")
    assert (said.code, Path("out").exists()) == (1, False)
    assert "text=missing.txt" in said.err


def test_no_network(script, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing", "nothing"):
        said = script("convert", f"source={name}", "output=outputs/new")
        assert (said.code, said.err.count("\n")) == (1, 1)
        assert f"source={name}" in said.err
    assert not Path("outputs").exists()


def test_the_name_of_a_model_on_the_hub(tmp_path, monkeypatch):
    """Without a network, the files in the hub's cache are used. Links lead to the files there."""
    model = tmp_path / "models--someone--small"
    whole = write_folder(model / "blobs", foreign_model("GPT2LMHeadModel"))
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in whole.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(snapshot.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert folder_of("someone/small") == snapshot
    assert load_folder(folder_of("someone/small")).model.block_size == 12
