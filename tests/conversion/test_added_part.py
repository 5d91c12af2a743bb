"""An attention that a user added, as CONTRIBUTING.md says, is unknown to other tools: our own class
exports it, and the other formats refuse it in one line that names it."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from conversion.models import saved
from refusals import refused
from running import ROOT

from headscope.conversion.convert import export_model
from headscope.conversion.proof import find_class
from headscope.data.tokenizer import bpe
from headscope.nn import MultiHeadAttention

pytest.importorskip("transformers")
pytest.importorskip("gguf")

SOURCE = '''"""Attention to the last `window` tokens."""

import torch

from headscope.nn.attention import MultiHeadAttention
from headscope.nn.masks import combine_masks


class SlidingWindow(MultiHeadAttention):
    def __init__(self, *, window: int, **options):
        super().__init__(**options)
        self.window = window

    def attend(self, q, k, v, *, mask, **options):
        position = torch.arange(k.size(2), device=k.device)
        near = position[k.size(2) - q.size(2) :, None] - position < self.window
        return super().attend(q, k, v, mask=combine_masks(near, mask), **options)
'''
EXPORT = "from headscope.nn.sliding_window import SlidingWindow\n"
ADDED = [
    ("nn/__init__.py", "from headscope.nn.cache import", EXPORT),
    ("nn/__init__.py", '    "StackedHeads",\n', '    "SlidingWindow",\n'),
    ("__init__.py", "AdditiveAttention scaled_dot_product", "SlidingWindow "),
]
"""Lines that are added: to which file, before what."""

YAML = """_target_: headscope.SlidingWindow
scale: null
qk_norm: false
out_proj: true
window: 16
"""


@pytest.mark.slow
def test_a_sliding_window(tmp_path):
    for name in ("src", "conf", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = tmp_path / "src" / "headscope"
    (package / "nn" / "sliding_window.py").write_text(SOURCE)
    (tmp_path / "conf" / "model" / "attention" / "sliding_window.yaml").write_text(YAML)
    for file, before, added in ADDED:
        text = (package / file).read_text("utf-8")
        assert text.count(before) == 1
        (package / file).write_text(text.replace(before, added + before), "utf-8")

    def run(script, *words):
        command = [sys.executable, f"scripts/{script}.py", *words]
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
        options = {"capture_output": True, "text": True, "check": False}
        return subprocess.run(command, cwd=tmp_path, env=environment, **options)

    (tmp_path / "a.txt").write_text("The people of the United States, in order to form.\n" * 200)
    words = ["model=gpt2", "model/attention=sliding_window", "model.layers=2", "model.embed_dim=32"]
    words += ["data.path=a.txt", "tokenizer.vocab_size=280", "trainer.max_steps=3", "name=run"]
    words += ["callbacks=plain", "~logger", "hydra.run.dir=run", "trainer.accelerator=cpu"]
    said = run("train", *words)
    assert said.returncode == 0, said.stderr
    said = run("convert", "checkpoint=run", "to=huggingface", "output=out")
    assert said.returncode == 0, said.stderr
    assert re.search(r"HeadscopeForCausalLM of .* differ by at most (0|\S+e-0[5-9])", said.stdout)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model"]["attention"]["window"] == 16
    for to, tool in (("gguf", "llama.cpp"), ("nanogpt", "nanoGPT")):
        said = run("convert", "checkpoint=run", f"to={to}", f"output={to}")
        assert (said.returncode, said.stderr.count("\n")) == (1, 1)
        for word in (tool, f"to={to}", "model/attention=sliding_window"):
            assert word in said.stderr
        assert not (tmp_path / to).exists()


def test_an_attention_that_was_changed_in_place_is_noticed(tmp_path, monkeypatch):
    """Its name is that of an attention that other tools have. Only the logits differ."""
    words = "model=gpt2 model.block_size=32 model/activation=gelu_tanh"
    loaded = saved(tmp_path, words, bpe(["We the people of the United States"], vocab_size=260))
    assert find_class(loaded.model, loaded.config.model).name == "GPT2LMHeadModel"
    attend = MultiHeadAttention.attend

    def windowed(self, q, k, v, *, mask, **options):
        near = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(-15)
        return attend(self, q, k, v, mask=near if mask is None else near & mask, **options)

    monkeypatch.setattr(MultiHeadAttention, "attend", windowed)
    assert find_class(loaded.model, loaded.config.model) is None
    for to in ("gguf", "nanogpt"):
        with refused(f"to={to}: "):
            export_model(loaded, to, tmp_path / "out")
