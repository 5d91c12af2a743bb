"""The laws of folders for transformers, which opens them in a process without headscope.

The environment variable TRANSFORMERS_PYTHON names the Python of another environment, with another
version of transformers. Then every choice in conf/model is opened with it.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from conversion.models import CHOICES, OWN, saved

from headscope import trained
from headscope.config.parts import Part
from headscope.conversion import export
from headscope.conversion.classes import GPTNeoX
from headscope.conversion.convert import export_model
from headscope.conversion.export import write_model, write_tokenizer
from headscope.conversion.imported import imported, write_checkpoint
from headscope.conversion.model_card import escaped, model_card
from headscope.conversion.proof import find_class
from headscope.data.tokenizer import CharTokenizer
from headscope.files import write_summary

transformers = pytest.importorskip("transformers")

PYTHON = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
SOME = [
    OWN,
    "model.document_mask=true model.ngrams=3 model.ngram_buckets=31 model.tied_head=false",
    "model/position=sinusoidal model/attention=stacked_heads model.bias=true",
    "model/position=head_bias model/feed_forward=swiglu model.logit_cap=15",
]
FOLDERS = CHOICES if "TRANSFORMERS_PYTHON" in os.environ else SOME


@pytest.mark.slow
@pytest.mark.parametrize("words", FOLDERS)
def test_the_command_writes_a_folder_and_says_how_to_load_it(words, script, monkeypatch):
    """Also a model that another class could express."""
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.setattr(export.proof, "find_class", lambda *_: None)
    tokenizer = CharTokenizer("abc é\n") if "bias" in words else None
    saved(Path("run/checkpoints"), words, tokenizer)
    said = script("convert", "checkpoint=run", "to=huggingface", "output=out")
    assert said.code == 0, said.err
    differ = r"differ by at most (0\.0e\+00|\S+e-0[6-9]) "
    assert re.search(f"HeadscopeForCausalLM of transformers .* same greedy .* {differ}", said.out)
    assert 'AutoModelForCausalLM.from_pretrained("out", trust_remote_code=True)' in said.out
    card = Path("out/README.md").read_text(encoding="utf-8")
    assert 'from_pretrained("path/to/this/folder", trust_remote_code=True)' in card
    assert re.search(differ, card)
    assert {path.name for path in Path().iterdir()} == {"run", "out"}


def test_the_tokenizer_fills_up_a_batch_and_a_text_fills_the_context(tmp_path):
    """Without `max_length`, a pipeline would write 256 further tokens."""
    loaded = saved(tmp_path, "")
    write_model(loaded, tmp_path, find_class(loaded.model, loaded.config.model))
    assert transformers.GenerationConfig.from_pretrained(tmp_path).max_length == 8
    write_tokenizer(loaded, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, padding_side="left")
    assert tokenizer.model_max_length == loaded.model.block_size == 8
    batch = tokenizer(["a", "abc", "many letters"], padding=True, truncation=True)
    end = loaded.tokenizer.end_of_text
    assert batch["input_ids"][0] == [end] * 7 + [ord("a")]
    assert batch["attention_mask"][1] == [0] * 5 + [1] * 3


@pytest.mark.slow
def test_a_class_that_is_not_equal_with_these_weights_is_not_used(tmp_path, monkeypatch):
    loaded = saved(tmp_path / "run", "model/position=rotary")
    monkeypatch.setattr(GPTNeoX, "fixed", GPTNeoX.fixed | {"layer_norm_eps": 0.5})
    monkeypatch.setattr(export.proof, "find_class", lambda *_: GPTNeoX())
    said = export_model(loaded, "huggingface", tmp_path / "out")
    assert "HeadscopeForCausalLM of transformers" in said[0]
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


HOSTILE = "x\n---\n# <script>alert(1)</script> [a](http://x.y) `b` | c | **d** \x1b[2J www.x.y"


def test_the_model_card_shows_text_from_a_checkpoint_as_text(tmp_path):
    run = tmp_path / "run"
    began = "/home/me/outputs/gpt2/checkpoints/best.safetensors"
    loaded = saved(run / "checkpoints", OWN, name=HOSTILE, init_from=began)
    template = f"{HOSTILE}\n```\n{HOSTILE}"
    loaded.config.data = Part(
        _target_="headscope.TextFiles", path=f"/home/someone/{HOSTILE}", template=template
    )
    metrics = dict.fromkeys(("val_loss", "val_bits_per_byte", "train_seconds", "steps"), 1)
    write_summary(run, metrics | {"tokens": 12345, "device": HOSTILE})
    (run / "analysis").mkdir()
    heads = [(0, 0, "previous"), (0, 1, HOSTILE), (HOSTILE, 1, "x")]
    rows = [*(dict(zip(("layer", "head", "type"), head, strict=True)) for head in heads), HOSTILE]
    (run / "analysis" / "heads.json").write_text(json.dumps({"heads": rows}))
    card = model_card(loaded, load="code", checked="It is equal.")
    header, text = card.split("\n# ", maxsplit=1)
    before, configuration, after = re.split(r"```json\n(.*?)\n```\n", text, flags=re.DOTALL)
    assert json.loads(configuration)["data"]["template"] == template
    assert json.loads(configuration)["init_from"] == "gpt2"
    assert all(character in "\n" or " " <= character <= "~" for character in configuration)
    assert "/home" not in text
    text = before + after
    assert "x" not in header.replace("text-generation", "").replace("headscope", "")
    assert "| tokens | 12,345 |" in text
    assert "| previous | L0H0 |" in text
    for markup in ("<script", "\x1b", "\n---", "\n# ", "http://", "www.x"):
        assert markup not in text
    assert not re.search(r"(?<!\\)[\[\]*]", text.replace("```python\ncode\n```", ""))
    assert re.search(r"\\`b\\` \\\| c \\\| \\\*\\\*d\\\*\\\*", text)
    assert len(escaped(HOSTILE * 1000)) < 2000


def test_the_model_card_of_an_imported_model_claims_no_training(tmp_path):
    ours = saved(tmp_path, "model=gpt2")
    parts = (ours.model, ours.config.model, ours.tokenizer)
    write_checkpoint(tmp_path / "in", imported(tmp_path, *parts, name="in", text=None, step=7))
    loaded = trained.load(tmp_path / "in" / "checkpoints" / "best.safetensors")
    card = model_card(loaded, load="code", checked="It is equal.")
    assert "How it was trained is unknown" in card
    assert "optimizer" not in card
