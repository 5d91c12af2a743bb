"""The laws of Hugging Face folders: whatever is in them, our logits and attention weights are those
of transformers, or the folder is refused in one line. No code in them is run."""

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from composing import training_config
from foreign_models import ROWS, SMALL, assert_same, edit, foreign_model, transformers, write_folder
from refusals import Attack, refused
from safetensors.torch import load_file, save_file

import headscope
from headscope.conversion.folder import folder_of, load_folder
from headscope.errors import UserError

GPT2, NEOX, MPT = "GPT2LMHeadModel", "GPTNeoXForCausalLM", "MptForCausalLM"
LLAMA, ARCEE, QWEN3 = "LlamaForCausalLM", "ArceeForCausalLM", "Qwen3ForCausalLM"
NANOCHAT, MISTRAL, QWEN2 = "NanoChatForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"
NEO = "GPTNeoForCausalLM"
GROUPED = {"num_key_value_heads": 2}
BIASES = {"attention_bias": True, "mlp_bias": True}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
WINDOW = {"use_sliding_window": True, "max_window_layers": 0, "layer_types": None}

Cases = list[tuple[str, dict[str, Any]]]
MODELS: Cases = [
    *((name, {"tie_word_embeddings": tied}) for name in SMALL for tied in (True, False)),
    (GPT2, {"activation_function": "gelu", "n_inner": 40}),
    (GPT2, {"activation_function": "relu2", "n_embd": 24}),
    (NEOX, {"hidden_act": "gelu_new", "num_attention_heads": 4, "rotary_pct": 0.5}),
    (NEOX, {"use_parallel_residual": False, "rotary_pct": 1.0}),
    (NEO, {"intermediate_size": 40, "activation_function": "gelu", "num_heads": 2}),
    (MISTRAL, {"sliding_window": None, "head_dim": 4}),
    (MISTRAL, {"sliding_window": 12, "rope_theta": 1e5}),
    (QWEN2, {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    (MPT, {"n_heads": 5, "d_model": 20, "attn_config": {"softmax_scale": 0.3}}),
    (LLAMA, GROUPED | {"head_dim": 6, "rope_theta": 300.0, "rms_norm_eps": 0.01}),
    (LLAMA, BIASES | {"num_key_value_heads": 1}),
    (ARCEE, BIASES),
    (ARCEE, GROUPED | {"hidden_act": "gelu"}),
    (QWEN3, GROUPED | {"head_dim": 12}),
    (NANOCHAT, GROUPED | {"final_logit_softcapping": 4.0, "rope_theta": 300.0}),
]
"""Models that transformers makes and saves."""

EQUAL: Cases = [
    # transformers ignores these entries, or they have another meaning that we read
    (MPT, {"attn_config": {"alibi_bias_max": 4}, "expansion_ratio": 2}),
    (GPT2, {"scale_attn_weights": False, "layer_norm_epsilon": 0.5, "n_head": 4}),
    (NEOX, {"rope_parameters": None, "rotary_emb_base": 700, "rotary_pct": 1.0}),
    (NEOX, {"use_parallel_residual": False}),
    (NEOX, {"rotary_pct": 0.5, "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}}),
    (QWEN3, {**WINDOW, "sliding_window": 11}),
    (NEO, {"window_size": 7}),
    (NEO, {"attention_layers": ["local", "global", "global"]}),
    (LLAMA, {"model_type": "mistral", "sliding_window": 3}),
    (LLAMA, {"rope_parameters": None, "rope_theta": 700.0}),
    (LLAMA, {"sliding_window": 3, "attention_sinks": True, "attn_logit_softcapping": 5.0}),
    (NANOCHAT, {"final_logit_softcapping": None}),
]
"""Changes of config.json after which both still compute the same function."""

REFUSED: Cases = [
    # positions: scaled, or on a part of a head
    (LLAMA, {"rope_parameters": LINEAR, "rope_scaling": LINEAR}),
    (NEOX, {"rope_parameters": LINEAR, "rope_scaling": LINEAR}),
    # the scale of scores, caps and clips
    (GPT2, {"scale_attn_by_inverse_layer_idx": True}),
    (MPT, {"attn_config": {"clip_qkv": 2.0, "softmax_scale": 0.5}}),
    # the structure of a block
    (NEOX, {"attention_bias": False}),
    (GPT2, {"add_cross_attention": True}),
    *((LLAMA, {key: True}) for key in BIASES),
    # activation functions
    *((GPT2, {"activation_function": name}) for name in ("silu", "quick_gelu", ["gelu"])),
    # norms and the output head
    (QWEN3, {"rms_norm_eps": 1e-3}),
    (GPT2, {"tie_word_embeddings": False}),
    # sizes that do not fit the weights, and values of other types
    *((LLAMA, {key: 2}) for key in ("num_attention_heads", "num_key_value_heads")),
    *((GPT2, {key: 3}) for key in ("n_layer", "n_positions", "vocab_size", "model_type")),
    *((GPT2, {"n_embd": -16}), (GPT2, {"n_head": [2]}), (GPT2, {"layer_norm_epsilon": "1e-5"})),
    # other files, other types of weights, other code
    (GPT2, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}),
    (GPT2, {"transformers_weights": "other.safetensors"}),
]
"""Changes of config.json after which headscope is not the same function, or the file is wrong."""

EITHER: Cases = [
    *((name, {"is_causal": False}) for name in (GPT2, LLAMA)),
    *((MPT, {"attn_config": each}) for each in ({"alibi": False}, {"qk_ln": True})),
    (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    (LLAMA, {"rope_parameters": {"rope_type": "default"}, "rope_theta": 7.0}),
    (GPT2, {"tie_word_embeddings": None, "scale_attn_weights": 0}),
]
"""Changes whose meaning depends on the version of transformers."""

TIED_NANOCHAT = (NANOCHAT, {"tie_word_embeddings": True})
CASES = [
    *((*case, {}, "refused" if case == TIED_NANOCHAT else "equal") for case in MODELS),
    *((name, {}, changes, "equal") for name, changes in EQUAL),
    *((name, {}, changes, "refused") for name, changes in REFUSED),
    *((name, {}, changes, "refused or equal") for name, changes in EITHER),
]


@pytest.mark.parametrize(("name", "settings", "changes", "expected"), CASES, ids=str)
def test_it_computes_the_same_or_is_refused(name, settings, changes, expected, tmp_path):
    write_folder(tmp_path, foreign_model(name, **settings))
    if "attn_config" in changes:
        changes = {"attn_config": {"model_type": "", **changes["attn_config"]}}
    edit(tmp_path / "config.json", keep_null=True, **changes)
    try:
        loaded, refusal = headscope.load(tmp_path), f"{tmp_path}"
    except UserError as error:
        loaded, refusal = None, str(error)
    assert ("equal" if loaded else "refused") in expected, refusal
    assert refusal.startswith(str(tmp_path))
    assert "\n" not in refusal
    if loaded is None:
        return
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    )
    assert_same(loaded, theirs.eval())
    model, shared = loaded.config.model, settings.get("num_key_value_heads") == 1
    assert loaded.model.vocab_size == loaded.tokenizer.vocab_size == ROWS
    assert model.tied_head is settings.get("tie_word_embeddings", model.tied_head)
    assert (model.attention["_target_"] == "headscope.MultiQuery") is shared


def test_the_message_names_what_was_not_read(tmp_path):
    write_folder(tmp_path, foreign_model(LLAMA))
    edit(tmp_path / "config.json", rope_parameters=LINEAR, rope_scaling=LINEAR)
    with refused("this LlamaForCausalLM: logits differ", "rope_"):
        load_folder(tmp_path)
    # The feed-forward networks have biases, and the output projections have none.
    write_folder(tmp_path, foreign_model(NEOX, attention_bias=False))
    with refused("headscope has no parameter like '", "bias'"):
        load_folder(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with refused("merge_and_unload"):
        load_folder(tmp_path)


def test_what_the_weights_of_the_folder_cannot_show_is_refused(tmp_path):
    """No weight reaches the clip. The window hides the first tokens only after 2,100 tokens."""
    theirs = foreign_model(MPT)
    for weight in theirs.parameters():
        weight.data *= 0.05
    write_folder(tmp_path / "clip", theirs)
    load_folder(tmp_path / "clip")
    edit(tmp_path / "clip" / "config.json", attn_config={"model_type": "", "clip_qkv": 6.0})
    with refused("attn_config.clip_qkv=6.0: headscope does not clip"):
        load_folder(tmp_path / "clip")
    write_folder(tmp_path / "window", foreign_model(QWEN3, max_position_embeddings=4096))
    edit(tmp_path / "window" / "config.json", **WINDOW, sliding_window=2100)
    assert load_folder(tmp_path / "window").model.block_size == 2048  # masks need the square of it
    assert load_folder(tmp_path / "window").config.model.windows is None
    loaded = load_folder(tmp_path / "window", block_size=2200)
    assert loaded.config.model.windows == [2100, 2100]


# --- the files ---

WEIGHTS = "model.safetensors"
NORM, EMBEDDING = "transformer.ln_f.weight", "transformer.wte.weight"
CHANGES = [
    ({NORM: None}, f"it has no parameter {NORM!r}"),
    ({"strange": torch.ones(2)}, "no parameter like 'transformer.strange'"),
    ({EMBEDDING: torch.ones(4, 16)}, "wte.weight"),
    ({NORM: torch.tensor([torch.nan] * 16)}, "in our norm.weight"),
    ({EMBEDDING: torch.ones(264, 16).fill_diagonal_(torch.inf)}, "in our embedding.weight"),
]


@pytest.fixture
def theirs():
    return foreign_model(GPT2)


@pytest.fixture
def folder(tmp_path, monkeypatch, theirs):
    """A valid folder, to be changed."""
    monkeypatch.chdir(tmp_path)
    return write_folder(tmp_path, theirs)


def write_weights(folder, weights):
    kept = {name: each for name, each in weights.items() if each is not None}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


def test_forms_of_files(folder, theirs):
    weights = load_file(folder / WEIGHTS)
    old = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 12, 12), "h.1.attn.masked_bias": -torch.ones(1)}
    write_weights(folder, old | masks)
    assert_same(headscope.load(folder), theirs)
    head = {"lm_head.weight": weights["transformer.wte.weight"].clone()}  # config.json ties it
    write_weights(folder, weights | head)
    assert_same(headscope.load(folder), theirs)
    write_folder(folder / "shards", theirs, max_shard_size="4KB")
    assert len(list((folder / "shards").glob("model-*.safetensors"))) > 2
    assert_same(headscope.load(folder / "shards"), theirs)
    write_weights(folder, {name: weight.bfloat16() for name, weight in weights.items()})
    assert_same(headscope.load(folder), theirs.bfloat16().float())


def test_a_folder_is_proven_once_for_its_files(folder, theirs, capsys, monkeypatch):
    """Later, it opens without transformers, until a file, the context or our code changes."""
    monkeypatch.setenv("HEADSCOPE_CACHE", str(folder / "cache"))  # other tests have these files
    said = f"Comparing {folder} with transformers, once for these files\n"
    assert load_folder(folder).tokenizer.encode("To be").tolist() == [*b"To be"]
    assert said in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "transformers", None)  # cannot be imported
        again = load_folder(folder)
    assert (capsys.readouterr().err, again.model.block_size) == ("", 12)
    assert_same(again, theirs)
    load_folder(folder, block_size=8)
    assert said in capsys.readouterr().err
    weights = {name: 2 * weight for name, weight in load_file(folder / WEIGHTS).items()}
    torch.save(weights, folder / "pytorch_model.bin")  # one of the old kind, and another model
    (folder / WEIGHTS).unlink()
    assert not torch.equal(load_folder(folder).logits("To be"), again.logits("To be"))
    assert said in capsys.readouterr().err
    write_weights(folder, weights)

    def wrong(file):
        return {name: weight.roll(1) for name, weight in load_file(file).items()}

    monkeypatch.setattr("headscope.conversion.folder.load_file", wrong)
    with refused("logits differ by", "rounding, or wrong weights"):
        load_folder(folder)


def test_wrong_weights(folder):
    whole, weights = (folder / WEIGHTS).read_bytes(), load_file(folder / WEIGHTS)
    for change, word in CHANGES:
        write_weights(folder, weights | change)
        with refused(folder, word):
            load_folder(folder)
    for content in (b"", whole[:100], whole[:-8]):
        (folder / WEIGHTS).write_bytes(content)
        with refused(folder):
            load_folder(folder)


def test_code_in_the_folder_is_not_run(folder):
    (folder / "own.py").write_text("import os; os.mkdir('attacked')")
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.T", "own.T"]})
    edit(folder / "config.json", auto_map={"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"})
    names = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
    edit(folder / "config.json", **dict.fromkeys(names, "nobody/kernels"))  # would be downloaded
    load_folder(folder)
    (folder / WEIGHTS).unlink()
    for name, word in (("pytorch_model.bin", "cannot open"), (WEIGHTS, "SafetensorError")):
        (folder / name).write_bytes(pickle.dumps(Attack()))
        with refused(folder, word):
            load_folder(folder)
    edit(folder / "config.json", model_type="own")
    with refused("model_type=own", "not run"):
        load_folder(folder)
    for content in ("[1]", "{", '{"vocab_size": NaN}'):
        (folder / "config.json").write_text(content)
        with refused(folder, "config.json"):
            load_folder(folder)
    assert not (folder / "attacked").exists()


def test_python(folder, theirs):
    """load() gives the same object for a run and for a folder. The settings of training are those
    of conf/."""
    loaded = headscope.load(folder)
    assert loaded.config.optimizer == training_config().optimizer
    ids = list(b"To be")
    assert torch.equal(loaded.logits(ids), loaded.logits("To be"))
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": 256, "pad_token_id": 256}
    generated = theirs.generate(torch.tensor([ids]), **options)[0].tolist()
    assert loaded.generate("To be", max_new_tokens=6) == loaded.tokenizer.decode(generated)


def test_a_shorter_context(folder, theirs):
    assert_same(load_folder(folder, block_size=5), theirs, length=5)
    for size in (13, 0):
        with refused(f"block_size={size} must be from 1 to 12"):
            load_folder(folder, block_size=size)


# --- the command ---


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_not_drawn")
def test_all_scripts_open_an_imported_model(script):
    def run(*words):
        return script(*words).succeeded().out

    theirs = foreign_model(LLAMA, num_key_value_heads=2)
    write_folder(Path("llama"), theirs)
    run("convert", "source=llama", "output=outputs/llama")
    loaded = headscope.load("outputs/llama")
    assert_same(loaded, theirs)
    Path("my.txt").write_text("To be, or not to be: that is the question.\n" * 9, "utf-8")
    said = run("sample", "checkpoint=outputs/llama", "prompt=To be", "max_new_tokens=4")
    assert said.startswith("To be")
    said = run("evaluate", "checkpoint=outputs/llama", "data.path=my.txt")
    assert json.loads(said)["loss_nats_per_token"] > 0
    run("analyze", "checkpoint=outputs/llama", "text=To be or not")
    words = ["init_from=outputs/llama", "experiment=finetune", "data.path=my.txt"]
    words += ["trainer.max_steps=2", "trainer.batch_size=2", "callbacks=plain"]
    run("train", *words, "model.dropout=0.1", "hydra.run.dir=outputs/tuned")
    tuned = headscope.load("outputs/tuned")
    assert tuned.config.model.dropout == 0.1
    assert tuned.tokenizer.state() == loaded.tokenizer.state()
    new, old = (each.model.embedding.weight for each in (tuned, loaded))
    assert 0 < (new - old).abs().max() < 1e-3
    for refused_words, advice in (
        (["evaluate", "checkpoint=outputs/llama"], "data.path="),
        (["train", "resume=outputs/llama"], "init_from=outputs/llama"),
        (["train", *words, "model.embed_dim=32"], "another model"),
    ):
        script(*refused_words).refused(advice)


def test_what_the_command_refuses(script, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    write_folder(Path("folder"), foreign_model(GPT2))
    for words, advice in (
        (["source=a.pt", "checkpoint=run"], ["checkpoint=run", "leave it out"]),
        (["to=gguf", "text=a.txt"], ["text=a.txt", "leave it out"]),
        (["to=huggingface", "block_size=8"], ["block_size=8", "leave it out"]),
        (["source=folder", "text=missing.txt"], ["text=missing.txt"]),
        *(([f"source={name}"], [f"source={name}"]) for name in ("nobody/nothing", "nothing")),
    ):
        said = script("convert", *words, "output=out").refused(*advice)
        assert (said.err.count("\n"), Path("out").exists()) == (1, False)


def test_the_name_of_a_model_on_the_hub(folder, tmp_path, monkeypatch):
    """Without a network, the files in the hub's cache are used. Links lead to the files there."""
    model = tmp_path / "models--someone--small"
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in [file for file in folder.iterdir() if file.is_file()]:
        (model / "blobs").mkdir(exist_ok=True)
        shutil.move(file, model / "blobs")
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(snapshot.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert folder_of("someone/small") == snapshot
    assert load_folder(folder_of("someone/small")).model.block_size == 12
