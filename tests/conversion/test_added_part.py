"""An attention that a user added, as CONTRIBUTING.md says, is unknown to other tools: our own class
exports it, and the other formats refuse it in one line that names it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conversion.models import saved
from running import ROOT

from headscope.conversion.convert import export_model
from headscope.conversion.proof import find_class
from headscope.data.tokenizer import bpe
from headscope.errors import UserError
from headscope.nn import MultiHeadAttention

pytest.importorskip("transformers")
pytest.importorskip("gguf")

SOURCE = '''
"""Attention to the last `window` tokens."""

from typing import Any

import torch
from torch import Tensor

from headscope.nn.attention import MultiHeadAttention
from headscope.nn.dot_product import HeadOutputs
from headscope.nn.masks import combine_masks


class SlidingWindow(MultiHeadAttention):
    """Multi-head attention in which each query sees at most the last `window` tokens."""

    def __init__(self, *, window: int, **options: Any) -> None:
        super().__init__(**options)
        self.window = window

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **options: Any
    ) -> HeadOutputs:
        position = torch.arange(k.size(2), device=k.device)
        near = position[k.size(2) - q.size(2) :, None] - position < self.window
        return super().attend(q, k, v, mask=combine_masks(near, mask), **options)
'''
PART = '    "sliding_window": part(AttentionConfig, "headscope.nn.SlidingWindow", window=int),\n'
YAML = """_target_: headscope.nn.SlidingWindow
scale: null
qk_norm: false
out_proj: true
window: 16
"""


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert text.count(old) == 1, (file, old)
    file.write_text(text.replace(old, new), "utf-8")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the attention `sliding_window`."""
    folder = tmp_path_factory.mktemp("changed")
    for name in ("src", "conf", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = folder / "src" / "headscope"
    (package / "nn" / "sliding_window.py").write_text(SOURCE.strip() + "\n")
    exports, line = package / "nn" / "__init__.py", "from headscope.nn.cache import Cache, Past"
    replace(exports, line, f"from headscope.nn.sliding_window import SlidingWindow\n{line}")
    replace(exports, '    "StackedHeads",\n', '    "SlidingWindow",\n    "StackedHeads",\n')
    model = package / "config" / "model.py"
    entry = '    "additive": '
    replace(model, entry, f"{PART}{entry}")
    (folder / "conf" / "model" / "attention" / "sliding_window.yaml").write_text(YAML)
    return folder


def run(folder: Path, work: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, folder / "scripts" / f"{script}.py", *words],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_sliding_window(changed: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The people of the United States, in order to form.\n" * 200)
    words = ["model=gpt2", "model/attention=sliding_window", "model.layers=2", "model.embed_dim=32"]
    words += ["data.path=a.txt", "tokenizer.vocab_size=280", "trainer.max_steps=3", "name=run"]
    words += ["callbacks=plain", "~logger", "hydra.run.dir=run", "trainer.accelerator=cpu"]
    said = run(changed, tmp_path, "train", *words)
    assert said.returncode == 0, said.stderr
    said = run(changed, tmp_path, "convert", "checkpoint=run", "to=huggingface", "output=out")
    assert said.returncode == 0, said.stderr
    assert re.search(r"HeadscopeForCausalLM of .* differ by at most (0|\S+e-0[5-9])", said.stdout)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model"]["attention"]["window"] == 16
    for to, said_of in (("gguf", "llama.cpp"), ("nanogpt", "nanoGPT")):
        said = run(changed, tmp_path, "convert", "checkpoint=run", f"to={to}", f"output={to}")
        assert said.returncode == 1
        assert said.stderr.count("\n") == 1
        assert said_of in said.stderr
        assert f"to={to}" in said.stderr
        assert "model/attention=sliding_window" in said.stderr
        assert not (tmp_path / to).exists()


def test_an_attention_that_was_changed_in_place_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is that of an attention that other tools have. Only the logits differ."""
    loaded = saved(tmp_path, "model=gpt2 model.block_size=32 model/activation=gelu_tanh", TOKENIZER)
    found = find_class(loaded.model, loaded.config.model)
    assert found is not None
    assert found.name == "GPT2LMHeadModel"
    attend = MultiHeadAttention.attend

    def windowed(self: Any, q: Any, k: Any, v: Any, *, mask: Any, **options: Any) -> Any:
        near = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(-15)
        return attend(self, q, k, v, mask=near if mask is None else near & mask, **options)

    monkeypatch.setattr(MultiHeadAttention, "attend", windowed)
    assert find_class(loaded.model, loaded.config.model) is None
    for to in ("gguf", "nanogpt"):
        with pytest.raises(UserError, match=f"to={to}: "):
            export_model(loaded, to, tmp_path / "out")


TOKENIZER = bpe(
    ["The people of the United States, in order to form a more perfect Union"], vocab_size=260
)
