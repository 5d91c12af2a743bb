"""The laws of nanoGPT's checkpoints, in and out.

The tests with nanoGPT itself need its files: set NANOGPT to the folder of a checkout.
"""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from foreign_models import foreign_model
from refusals import Attack, refused

from headscope import trained
from headscope.conversion.convert import FORMATS, import_model
from headscope.conversion.nanogpt import read_nanogpt
from headscope.trained import checkpoint

TEXT = "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind\n" * 20
ALPHABET = "".join(sorted(set(TEXT)))
VOCABULARY = len(ALPHABET)
LINEAR = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def nanogpt_content(*, bias=False, vocab_size=VOCABULARY, prefix=""):
    """What nanoGPT's train.py saves, and the model: GPT-2 of transformers, with exact GELU, whose
    linear layers are transposed."""
    sizes = {"vocab_size": vocab_size, "n_head": 4, "n_positions": 16}
    model = foreign_model("GPT2LMHeadModel", activation_function="gelu", **sizes)
    weights = {}
    for name, weight in model.state_dict().items():
        if bias or not name.endswith(".bias"):
            weights[f"{prefix}{name}"] = weight.T if name.endswith(LINEAR) else weight
        else:
            weight.zero_()
    args = {"n_layer": 2, "n_head": 4, "n_embd": 16, "block_size": 16, "dropout": 0.1}
    return {
        "model": weights,
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 1e-3}]},
        "model_args": {**args, "bias": bias, "vocab_size": vocab_size},
        "iter_num": 20,
        "best_val_loss": torch.tensor(3.0),
        "config": {"dataset": "shakespeare_char", "compile": True},
    }, model


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("input.txt").write_text(TEXT)
    return tmp_path / "input.txt"


def loaded_from(source, text=None):
    run = source.with_name("run")
    import_model(str(source), run, text=text)
    return trained.load(checkpoint.find(str(run)))


@pytest.mark.parametrize(
    ("vocab_size", "bias", "prefix"),
    [(VOCABULARY, True, ""), (50257, False, "_orig_mod."), (50304, True, "")],
)
@torch.no_grad()
def test_a_model_comes_in_with_its_tokens(tmp_path, text, vocab_size, bias, prefix):
    saved, model = nanogpt_content(bias=bias, vocab_size=vocab_size, prefix=prefix)
    saved["model"] |= {f"{prefix}transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)}
    torch.save(saved, "ckpt.pt")
    given = text if vocab_size == VOCABULARY else None
    to_be = [ALPHABET.index(character) for character in "To be"] if given else [2514, 307]
    loaded = loaded_from(tmp_path / "ckpt.pt", given)
    tokens = torch.randint(vocab_size, (2, 16))
    torch.testing.assert_close(loaded.model(tokens), model(tokens).logits, atol=1e-5, rtol=0)
    assert (loaded.step, loaded.tokenizer.end_of_text) == (20, None if given else 50256)
    assert loaded.model.vocab_size == loaded.tokenizer.vocab_size == vocab_size
    assert loaded.tokenizer.encode("To be").tolist() == to_be
    assert read_nanogpt(Path("ckpt.pt"), given, block_size=4).model.block_size == 4


def changed(**changes):
    saved, _ = nanogpt_content()
    return saved | {key: saved[key] | change for key, change in changes.items()}


WTE, HEAD = "transformer.wte.weight", "lm_head.weight"
REFUSED = {
    "no model": (changed() | {"model": 3}, "damaged"),
    "code": (changed() | {"config": Attack()}, "not a checkpoint"),
    "a weight twice": (changed(model={f"_orig_mod.{HEAD}": torch.ones(1)}), "twice"),
    "a size": (changed(model_args={"n_layer": -1}), "layers=-1"),
    "a vocabulary": (changed(model_args={"vocab_size": 77}), "shape"),
    "untied": (changed(model={HEAD: torch.zeros(VOCABULARY, 16)}), "ties them"),
    "diverged": (changed(model={WTE: torch.full((VOCABULARY, 16), torch.nan)}), "finite"),
    "no tensor": (changed(model={WTE: 3}), "not a tensor of finite"),
}


@pytest.mark.parametrize(("saved", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_of_nanogpt_is_refused_and_not_run(tmp_path, text, saved, reason):
    torch.save(saved, "ckpt.pt")
    with refused(reason):
        import_model("ckpt.pt", tmp_path / "run", text=text)
    assert {file.name for file in tmp_path.iterdir()} == {"ckpt.pt", "input.txt"}


def test_files_that_do_not_fit_each_other_are_refused_and_a_pickle_is_not_run(text):
    torch.save(changed(), "ckpt.pt")
    Path("pickle.pt").write_bytes(pickle.dumps(Attack()))
    Path("other.txt").write_text(TEXT + "é")
    for name, given, size, word in (
        ("ckpt.pt", text, 17, "block_size=17"),
        ("ckpt.pt", Path("other.txt"), None, "characters, not"),
        ("ckpt.pt", None, None, "give text="),
        ("pickle.pt", text, None, "not a checkpoint"),
    ):
        with refused(word):
            read_nanogpt(Path(name), given, block_size=size)
    assert not Path("attacked").exists()


# --- with nanoGPT itself ---


@pytest.fixture
def nanogpt(tmp_path):
    """A copy of nanoGPT's files."""
    if not os.environ.get("NANOGPT"):
        pytest.skip("needs nanoGPT: set NANOGPT to the folder of a checkout")
    ignored = shutil.ignore_patterns(".git", "assets")
    return shutil.copytree(os.environ["NANOGPT"], tmp_path / "nanogpt", ignore=ignored)


def run(folder, *words):
    subprocess.run([sys.executable, *words], cwd=folder, check=True)


THEIRS = """
import torch
from model import GPT, GPTConfig
saved = torch.load("out/ckpt.pt", weights_only=True)
model = GPT(GPTConfig(**saved["model_args"])).eval()
model.load_state_dict(saved["model"])
tokens = torch.load("tokens.pt")
torch.save(model(tokens, tokens)[0].detach(), "logits.pt")
"""


def test_a_model_that_nanogpt_trained_has_nanogpts_logits_also_when_exported(nanogpt, text):
    data = nanogpt / "data" / "shakespeare_char"
    shutil.copy(text, data / "input.txt")
    run(nanogpt, str(data / "prepare.py"))
    words = "--n_layer=2 --n_head=2 --n_embd=16 --block_size=32 --batch_size=4 --max_iters=20 "
    words += "--eval_interval=20 --eval_iters=1 --bias=True --device=cpu --compile=False "
    words += "--always_save_checkpoint=True --gradient_accumulation_steps=1"
    run(nanogpt, "train.py", "--dataset=shakespeare_char", *words.split())
    loaded = loaded_from(nanogpt / "out" / "ckpt.pt", text)
    shutil.rmtree(nanogpt / "out")
    FORMATS["nanogpt"](loaded, nanogpt / "out")
    tokens = torch.randint(VOCABULARY, (3, 8))
    torch.save(tokens, nanogpt / "tokens.pt")
    run(nanogpt, "-c", THEIRS)
    expected = torch.load(nanogpt / "logits.pt")
    torch.testing.assert_close(loaded.model(tokens), expected, atol=1e-4, rtol=0)


def test_the_script_converts_in_and_out(script, text):
    torch.save(changed(), "ckpt.pt")
    for words, expected in (
        (["source=ckpt.pt", f"text={text}", "output=outputs/nanogpt"], "Imported: "),
        (["checkpoint=outputs/nanogpt", "to=nanogpt", "output=again"], "logits differ by at most"),
    ):
        said = script("convert", *words).succeeded()
        assert expected in said.out
    meta = pickle.loads(Path("again", "meta.pkl").read_bytes())
    assert meta["itos"] == dict(enumerate(ALPHABET))
    assert meta["stoi"] == {character: token for token, character in enumerate(ALPHABET)}
