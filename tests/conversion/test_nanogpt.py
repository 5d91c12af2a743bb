"""The laws of nanoGPT's checkpoints, in and out.

The tests with nanoGPT itself need its files: set NANOGPT to the folder of a checkout.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checkpoint_files import configuration, content, save
from running import Script
from torch import nn

from headscope import checkpoint
from headscope.conversion import nanogpt as nanogpt_module
from headscope.conversion.convert import export_model, import_model
from headscope.conversion.nanogpt import read_nanogpt
from headscope.conversion.proof import NotEqual, converted
from headscope.data import tokenizer as tokenizers
from headscope.errors import UserError
from headscope.generation.texts import generate_text

TEXT = "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind\n" * 20
ALPHABET = "".join(sorted(set(TEXT)))
OURS = ["model=gpt2", "model/activation=gelu", "model.heads=2", "model.dropout=0.1"]


class Block(nn.Module):
    """A block as nanoGPT's README and the GPT-2 paper describe it, in evaluation mode."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = (nn.LayerNorm(width, bias=bias) for _ in range(2))
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.attn.c_proj = nn.Linear(width, width, bias=bias)
        self.mlp.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.mlp.c_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attn.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn.c_proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    """nanoGPT's model from its published equations, with the names of its parameters."""

    def __init__(self, *, vocab_size: int, bias: bool, width=16, layers=2, heads=4) -> None:
        super().__init__()
        self.transformer = nn.Module()
        self.transformer.wte = nn.Embedding(vocab_size, width)
        self.transformer.wpe = nn.Embedding(16, width)
        self.transformer.h = nn.ModuleList(Block(width, heads, bias) for _ in range(layers))
        self.transformer.ln_f = nn.LayerNorm(width, bias=bias)
        self.lm_head = nn.Linear(width, vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        parts = self.transformer
        x = parts.wte(tokens) + parts.wpe(torch.arange(tokens.size(1)))
        for block in parts.h:
            x = block(x)
        return self.lm_head(parts.ln_f(x))


def filled(model: Any) -> Any:
    """The model with random weights, also for biases and gains."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


def nanogpt_content(*, bias: bool, vocab_size: int, prefix: str = "") -> tuple[dict, NanoGPT]:
    """What nanoGPT's train.py saves, and the model that it is of."""
    model = filled(NanoGPT(vocab_size=vocab_size, bias=bias))
    args = {"n_layer": 2, "n_head": 4, "n_embd": 16, "block_size": 16, "dropout": 0.1}
    return {
        "model": {f"{prefix}{name}": weight for name, weight in model.state_dict().items()},
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 1e-3}]},
        "model_args": {**args, "bias": bias, "vocab_size": vocab_size},
        "iter_num": 20,
        "best_val_loss": torch.tensor(3.0),
        "config": {"dataset": "shakespeare_char", "compile": True},
    }, model


@pytest.fixture
def text(tmp_path) -> Path:
    (tmp_path / "input.txt").write_text(TEXT)
    return tmp_path / "input.txt"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_a_model_of_characters_comes_in(tmp_path, text, bias, prefix):
    saved, model = nanogpt_content(bias=bias, vocab_size=len(ALPHABET), prefix=prefix)
    saved["model"] |= {f"{prefix}transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)}
    torch.save(saved, tmp_path / "ckpt.pt")
    import_model(str(tmp_path / "ckpt.pt"), tmp_path / "run", text=text)
    loaded = checkpoint.load(checkpoint.find(str(tmp_path / "run")))
    tokens = torch.randint(len(ALPHABET), (2, 16))
    assert torch.equal(loaded.model(tokens), model(tokens))  # a difference of 0.0
    assert (loaded.step, loaded.tokenizer.end_of_text) == (20, None)
    assert loaded.tokenizer.vocab_size == len(ALPHABET)
    assert loaded.tokenizer.encode("To be").tolist() == [ALPHABET.index(c) for c in "To be"]
    assert loaded.attention("To be").labels == ["T", "o", "·", "b", "e"]
    short = read_nanogpt(tmp_path / "ckpt.pt", text, block_size=4)
    assert short.model.block_size == short.config.model.block_size == 4


@pytest.mark.parametrize("vocab_size", [50257, 50304])
def test_gpt2s_tokens_come_in_with_all_rows(tmp_path, vocab_size):
    saved, model = nanogpt_content(bias=False, vocab_size=vocab_size)
    torch.save(saved, tmp_path / "ckpt.pt")
    import_model(str(tmp_path / "ckpt.pt"), tmp_path / "run")
    loaded = checkpoint.load(checkpoint.find(str(tmp_path / "run")))
    tokens = torch.tensor([loaded.tokenizer.encode_prompt("To be, or not to be")])
    assert torch.equal(loaded.model(tokens), model(tokens))
    assert loaded.model.vocab_size == loaded.tokenizer.vocab_size == vocab_size
    assert loaded.tokenizer.end_of_text == 50256
    "".join(generate_text(loaded.model, loaded.tokenizer, "", seed=1, max_new_tokens=20))


def changed(**changes) -> dict:
    saved, _ = nanogpt_content(bias=False, vocab_size=len(ALPHABET))
    for key, value in changes.items():
        if isinstance(value, dict):
            saved[key] |= value
        else:
            saved[key] = value
    return saved


WTE, HEAD = "transformer.wte.weight", "lm_head.weight"
REFUSED = {
    "no model": (changed(model=3), "damaged"),
    "no step": (changed(iter_num="x"), "damaged"),
    "a weight twice": (changed(model={f"_orig_mod.{HEAD}": torch.ones(1)}), "twice"),
    "a size": (changed(model_args={"n_layer": -1}), "layers=-1|n_layer=-1"),
    "no size": (changed(model_args={"n_embd": None}), "embed_dim=null"),
    "many layers": (changed(model_args={"n_layer": 2**30}), "layers=1073741824"),
    "a wide model": (changed(model_args={"n_embd": 2**20}), "shape|embed_dim"),
    "a long context": (changed(model_args={"block_size": 2**30}), "block_size"),
    "heads": (changed(model_args={"n_head": 3}), "heads"),
    "a vocabulary": (changed(model_args={"vocab_size": 77}), "shape"),
    "bias": (changed(model_args={"bias": True}), "missing"),
    "unknown weight": (changed(model={"other": torch.zeros(1)}), "other"),
    "untied": (changed(model={HEAD: torch.zeros(len(ALPHABET), 16)}), "ties them"),
    "diverged": (changed(model={WTE: torch.full((len(ALPHABET), 16), torch.nan)}), "finite"),
    "integers": (changed(model={WTE: torch.zeros(len(ALPHABET), 16).long()}), "finite numbers"),
    "sparse": (changed(model={WTE: torch.zeros(3, 4).to_sparse()}), "finite numbers"),
    "no data": (changed(model={WTE: torch.zeros(3, 4, device="meta")}), "finite numbers"),
    "no tensor": (changed(model={WTE: 3}), "not a tensor of finite"),
    "a bias": (changed(model_args={"bias": 1}), "bias=1"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_of_nanogpt_is_refused_in_one_line(tmp_path, text, kind):
    saved, reason = REFUSED[kind]
    torch.save(saved, tmp_path / "ckpt.pt")
    with pytest.raises(UserError, match=reason) as error:
        import_model(str(tmp_path / "ckpt.pt"), tmp_path / "run", text=text)
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


class Evil:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_code_in_a_checkpoint_is_not_run(tmp_path, text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(changed() | {"config": Evil()}, "ckpt.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("ckpt.pt", "pickle.pt"):
        with pytest.raises(UserError, match="not a checkpoint"):
            import_model(name, tmp_path / "run", text=text)
    assert not (tmp_path / "executed").exists()


def test_a_text_with_other_characters_is_refused(tmp_path, text):
    torch.save(changed(), tmp_path / "ckpt.pt")
    text.write_text(TEXT + "é")
    with pytest.raises(UserError, match=r"text=.*different characters.*tokens"):
        read_nanogpt(tmp_path / "ckpt.pt", text)
    with pytest.raises(UserError, match="give text="):
        read_nanogpt(tmp_path / "ckpt.pt", None)
    text.write_text(TEXT)
    with pytest.raises(UserError, match="block_size=17"):
        read_nanogpt(tmp_path / "ckpt.pt", text, block_size=17)


def saved_run(path: Path, *overrides: str, name: str = "char") -> checkpoint.Checkpoint:
    made = getattr(tokenizers, name)([TEXT])
    written, model = content(configuration(*OURS, *overrides), made)
    filled(model)
    save(written, path)
    return checkpoint.load(path)


@pytest.mark.parametrize("biases", [(False, False), (True, True), (True, False), (False, True)])
def test_what_goes_out_comes_in_again(tmp_path, biases):
    words = [f"model.bias={biases[0]}", f"model.qkv_bias={biases[1]}"]
    loaded = saved_run(tmp_path / "a.safetensors", *words, name="gpt2")
    export_model(loaded, "nanogpt", tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["ckpt.pt"]
    import_model(str(tmp_path / "out" / "ckpt.pt"), tmp_path / "run")
    again = checkpoint.load(checkpoint.find(str(tmp_path / "run")))
    tokens = torch.randint(50257, (2, 8))
    torch.testing.assert_close(again.model(tokens), loaded.model(tokens), atol=1e-5, rtol=0)
    assert again.tokenizer.state() == loaded.tokenizer.state()


def test_the_characters_of_every_token_are_written(tmp_path):
    loaded = saved_run(tmp_path / "a.safetensors")
    export_model(loaded, "nanogpt", tmp_path / "out")
    meta = pickle.loads((tmp_path / "out" / "meta.pkl").read_bytes())
    assert meta["vocab_size"] == loaded.model.vocab_size == len(meta["itos"])
    assert [meta["stoi"][c] for c in TEXT] == loaded.tokenizer.encode(TEXT).tolist()
    assert "".join(meta["itos"][token] for token in loaded.tokenizer.encode(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("model/position=rotary", "position=rotary"),
        ("model/norm=rms", "norm=rms"),
        ("model/activation=gelu_tanh", "activation=gelu_tanh"),
        ("model/feed_forward=swiglu", "feed_forward=swiglu"),
        ("model.tied_head=false", ""),
        ("model.ngrams=2", "model.ngrams"),
        ("model.logit_cap=15", "model.logit_cap"),
        ("model.norm.eps=1e-6", ""),
        ("model.ff_dim=24", ""),
        ("model.head_dim=6", "model.head_dim"),
        ("model/attention=multi_query", "attention=multi_query"),
        ("model.attention.qk_norm=true", "qk_norm"),
        ("model.document_mask=true", "document_mask"),
    ],
)
def test_a_model_that_nanogpt_cannot_express_is_refused_with_its_parts(tmp_path, words, part):
    loaded = saved_run(tmp_path / "a.safetensors", words)
    with pytest.raises(UserError, match=r"nanoGPT cannot express this model \(.*\)") as error:
        export_model(loaded, "nanogpt", tmp_path / "out")
    assert part in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize(
    "words",
    [
        "model/position=sinusoidal model/attention=stacked_heads model.scale_embedding=false",
        "model/position=none model.attention.scale=0.9 model.attention.out_proj=false",
    ],
)
def test_the_same_function_with_other_weights_goes_out(tmp_path, words):
    loaded = saved_run(tmp_path / "a.safetensors", *words.split(), name="gpt2")
    export_model(loaded, "nanogpt", tmp_path / "out")
    import_model(str(tmp_path / "out" / "ckpt.pt"), tmp_path / "run")
    again = checkpoint.load(checkpoint.find(str(tmp_path / "run")))
    tokens = torch.randint(50257, (2, 8))
    torch.testing.assert_close(again.model(tokens), loaded.model(tokens), atol=1e-4, rtol=0)


def test_another_tokenizer_is_refused(tmp_path):
    with pytest.raises(UserError, match="its tokenizer is byte"):
        export_model(
            saved_run(tmp_path / "a.safetensors", name="byte"), "nanogpt", tmp_path / "out"
        )


def test_an_export_that_differs_is_removed(tmp_path, monkeypatch):
    loaded = saved_run(tmp_path / "a.safetensors", "model.bias=true")

    def damaged(theirs, gpt, config):
        entries, model = converted(theirs, gpt, config)
        with torch.no_grad():
            model.blocks[1].feed_forward.up_proj.bias += 0.1
        return entries, model

    monkeypatch.setattr(nanogpt_module, "converted", damaged)
    with pytest.raises(NotEqual):
        export_model(loaded, "nanogpt", tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


# --- with nanoGPT itself ---


@pytest.fixture
def nanogpt() -> Path:
    if not os.environ.get("NANOGPT"):
        pytest.skip("needs nanoGPT: set NANOGPT to the folder of a checkout")
    return Path(os.environ["NANOGPT"]).absolute()


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def copied(nanogpt: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in nanogpt.glob("*.py"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("name", ["char", "gpt2"])
def test_nanogpts_sample_script_continues_a_text_as_we_do(tmp_path, nanogpt, name):
    folder = copied(nanogpt, tmp_path / "nanogpt")
    loaded = saved_run(tmp_path / "a.safetensors", "model.block_size=32", name=name)
    export_model(loaded, "nanogpt", tmp_path / "out")
    if name == "char":
        (folder / "data" / "out").mkdir(parents=True)
        (tmp_path / "out" / "meta.pkl").rename(folder / "data" / "out" / "meta.pkl")
    else:  # sample.py asks tiktoken for GPT-2's tokens, which would need a network
        made = "import tiktoken\nfrom headscope.data.tokenizer import gpt2\n"
        made += "tiktoken.get_encoding = lambda name: gpt2([]).encoding\n"
        (folder / "sample.py").write_text(made + (folder / "sample.py").read_text())
    words = ["--start=To be", "--num_samples=1", "--max_new_tokens=20", "--top_k=1"]
    said = run(folder, "sample.py", f"--out_dir={tmp_path / 'out'}", "--device=cpu", *words)
    ours = "".join(
        generate_text(loaded.model, loaded.tokenizer, "To be", seed=1, max_new_tokens=20, top_k=1)
    )
    assert f"To be{ours}" in said


def test_a_model_that_nanogpt_trained_has_nanogpts_logits(tmp_path, nanogpt, text):
    folder = copied(nanogpt, tmp_path / "nanogpt")
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    (data / "input.txt").write_text(TEXT)
    prepare = nanogpt / "data" / "shakespeare_char" / "prepare.py"
    (data / "prepare.py").write_bytes(prepare.read_bytes())
    run(folder, str(data / "prepare.py"))
    sizes = ["--n_layer=2", "--n_head=2", "--n_embd=16", "--block_size=8", "--batch_size=4"]
    steps = ["--max_iters=20", "--eval_interval=20", "--eval_iters=1", "--bias=True"]
    plain = ["--device=cpu", "--compile=False", "--always_save_checkpoint=True"]
    plain += ["--dataset=shakespeare_char", "--gradient_accumulation_steps=1"]
    run(folder, "train.py", *plain, *sizes, *steps)
    import_model(str(folder / "out" / "ckpt.pt"), tmp_path / "run", text=text)
    loaded = checkpoint.load(checkpoint.find(str(tmp_path / "run")))
    tokens = torch.randint(len(ALPHABET), (3, 8))
    torch.save(tokens, tmp_path / "tokens.pt")
    theirs = """
import sys, torch
from model import GPT, GPTConfig
saved = torch.load("out/ckpt.pt", weights_only=True)
model = GPT(GPTConfig(**saved["model_args"])).eval()
model.load_state_dict(saved["model"])
tokens = torch.load(sys.argv[1] + "/tokens.pt")
torch.save(model(tokens, tokens)[0].detach(), sys.argv[1] + "/logits.pt")
"""
    run(folder, "-c", theirs, str(tmp_path))
    expected = torch.load(tmp_path / "logits.pt")
    torch.testing.assert_close(loaded.model(tokens), expected, atol=1e-4, rtol=0)


def test_the_script_converts_in_and_out(script: Script, text, tmp_path):
    torch.save(changed(), "ckpt.pt")
    said = script("convert", "source=ckpt.pt", f"text={text}", "output=outputs/nanogpt")
    assert said.code == 0, said.err
    assert said.out.startswith("Imported: ")
    assert "sample.py checkpoint=outputs/nanogpt" in said.out
    said = script("convert", "checkpoint=outputs/nanogpt", "to=nanogpt", "output=again")
    assert said.code == 0, said.err
    assert "logits differ by at most" in said.out
    sampled = script("sample", "checkpoint=outputs/nanogpt", "max_new_tokens=5", "device=cpu")
    assert sampled.code == 0, sampled.err
    said = script("convert", "source=ckpt.pt", "output=outputs/other")
    assert said.code == 1
    assert said.err.startswith("Error: ckpt.pt has")
