"""The laws of our models in TransformerLens: its hooks see our attention weights, and changing them
changes the output.

transformer_lens may be in another environment, in which headscope is installed too. The environment
variable HEADSCOPE_TRANSFORMER_LENS_PYTHON names its Python.
"""

import json
import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest
import torch
from conversion.models import GROUPED, QWEN3, SWIGLU, saved
from running import ROOT

from headscope.conversion.export import OWN_CLASS, write_model, write_tokenizer
from headscope.conversion.proof import find_class

pytestmark = pytest.mark.slow

THEIRS = [
    "model=gpt2",
    "model/norm=layer model/position=rotary model.qkv_bias=true",
    f"{SWIGLU} {GROUPED}",
    QWEN3,
    "model/norm=layer model/position=alibi",
]
"""A model for each class of transformers that TransformerLens has an adapter for."""

OWN = [
    "model=modern",
    "model/position=rotary model.position.interleaved=true model.qkv_bias=true",
    "model/position=alibi model/feed_forward=swiglu",
    "model/position=sinusoidal model/norm=rms model.norm.gain=false",
    "model/attention=grouped_query model/position=relative model.document_mask=true",
    "model/attention=additive model/position=learned model.logit_cap=15",
    "model/attention=stacked_heads model/position=head_bias model.attention.qk_norm=true",
    "model.ngrams=3 model.ngram_buckets=31 model.head_dim=6 model.bias=true",
    "model/feed_forward=none model/norm=none",
]
"""Models that are exported with our own class."""

CLIENT = ROOT / "tests" / "transformer_lens_client.py"
TEXT = "We the "


def test_the_entry_point_names_the_adapter():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    adapters = project["entry-points"]["transformer_lens.architectures"]
    module, _, name = adapters[OWN_CLASS].partition(":")
    source = ROOT.joinpath("src", *module.split(".")).with_suffix(".py")
    assert f"class {name}(" in source.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What TransformerLens computes: {words of a model: results of the client}."""
    python = os.environ.get("HEADSCOPE_TRANSFORMER_LENS_PYTHON")
    if not python and not find_spec("transformer_lens"):
        pytest.skip("needs TransformerLens 4.3: set HEADSCOPE_TRANSFORMER_LENS_PYTHON")
    root = tmp_path_factory.mktemp("lens")
    folders = {words: root / str(index) for index, words in enumerate([*THEIRS, *OWN])}
    for words, folder in folders.items():
        prepare(folder, words, own=words in OWN)
    command = [python or sys.executable, "-P", CLIENT, *folders.values()]
    paths = {"HF_MODULES_CACHE": str(root / "modules"), "PYTHONPATH": str(ROOT / "src")}
    environment = os.environ | paths | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    return {words: said[str(folder)] for words, folder in folders.items()}


def prepare(folder, words, *, own):
    """Writes a model, the exported model and what it computes to `folder`."""
    loaded = saved(folder / "run", words)
    (folder / "run" / "best.safetensors").rename(folder / "run.safetensors")
    (folder / "model").mkdir()
    found = None if own else find_class(loaded.model, loaded.config.model)
    write_model(loaded, folder / "model", found)
    write_tokenizer(loaded, folder / "model")
    reading = loaded.read(TEXT)
    tokens = reading.tokens[None]
    with torch.no_grad():
        logits = loaded.model(tokens)
        layer = loaded.model.attentions[0]
        layer.out_proj.weight[:, : layer.head_dim] = 0
        without_head_0 = loaded.model(tokens)
    ours = {"own": own, "text": TEXT, "tokens": tokens, "logits": logits}
    ours |= {"weights": reading.attention, "scores": reading.scores}
    torch.save({**ours, "without_head_0": without_head_0}, folder / "ours.pt")


@pytest.mark.parametrize("words", [*THEIRS, *OWN])
def test_it_computes_what_we_compute_and_its_hooks_see_and_change_our_own_class(results, words):
    found = results[words]
    assert found["folder"]["weights"] < 1e-5
    assert found["folder"]["logits"] < 1e-4
    if words in OWN:
        assert not found["warnings"]
        assert found["folder"]["scores"] < 1e-4
        differences = [*found["checkpoint"].values(), *found["edited"].values()]
        assert all(difference < 1e-4 for difference in differences)
        hooks = {"hook_q", "hook_k", "hook_v", "hook_z", "hook_attn_scores", "hook_pattern"}
        assert {f"blocks.0.attn.{name}" for name in hooks} <= {*found["hooks"]}
