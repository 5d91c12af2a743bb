"""The laws of exported folders: transformers opens them in a process without headscope, and a
folder that is not equal to our model never gets its name.

The environment variable TRANSFORMERS_PYTHON names the Python of another environment, with another
version of transformers. Then every choice in conf/model is opened with it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from conversion.models import CHOICES, saved
from refusals import refused
from running import ROOT

from headscope import trained
from headscope.config.parts import Part
from headscope.conversion import export, reload
from headscope.conversion.classes import GPTNeoX
from headscope.conversion.convert import export_model, import_model
from headscope.conversion.export import check_greedy, write_model, write_tokenizer
from headscope.conversion.imported import imported, write_checkpoint
from headscope.conversion.model_card import escaped, model_card
from headscope.conversion.proof import NotEqual, compare, logits, probe
from headscope.data.tokenizer import CharTokenizer
from headscope.files import write_summary

transformers = pytest.importorskip("transformers")

OWN = "model/attention=additive model/position=relative"
"""A model that only our own class can express."""

PYTHON = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
SOME = [
    OWN,
    "model.document_mask=true model.ngrams=3 model.ngram_buckets=31 model.tied_head=false",
    "model/position=sinusoidal model/attention=stacked_heads model.bias=true",
    "model/position=head_bias model/feed_forward=swiglu model.logit_cap=15",
]
FOLDERS = CHOICES if "TRANSFORMERS_PYTHON" in os.environ else SOME

SEVERAL = """
import importlib.util, sys, torch
from pathlib import Path

spec = importlib.util.spec_from_file_location("reload_folder", sys.argv[1])
reload = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reload)
for folder in map(Path, sys.argv[2:]):
    request = torch.load(folder / "request.pt", weights_only=True)
    results = reload.answer(folder, request)
    model = reload.transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    model.save_pretrained(folder / "again")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "again" / name).write_bytes((folder / name).read_bytes())
    again = reload.answer(folder / "again", request)
    assert again["generated"] == results["generated"]
    assert not again["problems"]
    assert again["logits"].equal(results["logits"])
    torch.save(results, folder / "results.pt")
"""
"""Opens several folders, and saves and opens each again."""


@pytest.mark.slow
def test_a_process_without_headscope_opens_exported_folders(tmp_path):
    exported = {}
    for number, words in enumerate(FOLDERS):
        tokenizer = CharTokenizer("abc é\n") if number % 2 else None
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        loaded = saved(tmp_path / f"run{number}", words, tokenizer)
        write_model(loaded, folder, None)
        write_tokenizer(loaded, folder)
        torch.save(export.request_for(loaded, own_class=True), folder / "request.pt")
        exported[folder] = loaded
    modules = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [PYTHON, "-P", "-c", SEVERAL, str(reload.__file__), *map(str, exported)]
    ended = subprocess.run(command, env=os.environ | modules, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for folder, loaded in exported.items():
        request = torch.load(folder / "request.pt", weights_only=True)
        results = torch.load(folder / "results.pt", weights_only=True)
        sentence, _ = export.check(loaded, request, results)
        assert "HeadscopeForCausalLM of transformers" in sentence
        assert re.search(r"differ by at most (0\.0e\+00|\S+e-0[6-9]) ", sentence)
        for name in ("modeling_headscope.py", "headscope_nn.py"):
            assert all((place / name).exists() for place in (folder, folder / "again"))


PIPELINE = """
import sys
from transformers import pipeline

for folder in sys.argv[1:]:
    write = pipeline("text-generation", model=folder, trust_remote_code=True, eos_token_id=-1)
    for prompt, options in ((" ", {}), ("a b", {}), ("a b", {"max_new_tokens": 2})):
        [row] = write(prompt, return_tensors=True, **options)
        print(len(row["generated_token_ids"]))
    try:
        write("a b a b a")
    except ValueError as error:
        print(error)
"""
"""Prints how many tokens each text has, and what is said about a prompt without room for more."""


@pytest.mark.slow
def test_without_a_number_of_tokens_a_pipeline_fills_the_context(tmp_path):
    """Its default is 256 further tokens."""
    tokenizer, folders = CharTokenizer("ab "), []
    for name, words in (("own", OWN), ("gpt2", "model=gpt2"), ("neox", "")):
        loaded = saved(tmp_path / "run" / name, words, tokenizer)
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        write_model(loaded, folders[-1], export.proof.find_class(loaded.model, loaded.config.model))
        write_tokenizer(loaded, folders[-1])
    modules = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [PYTHON, "-P", "-c", PIPELINE, *map(str, folders)]
    ended = subprocess.run(command, env=os.environ | modules, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert [line for line in lines if line.isdigit()] == ["8", "8", "5"] * 3
    assert len([line for line in lines if "9" in line and "8" in line]) == 3


@pytest.mark.slow
def test_the_script_writes_a_folder_and_says_how_to_load_it(script, tmp_path):
    saved(tmp_path / "run" / "checkpoints", OWN)
    said = script("convert", "checkpoint=run", "to=huggingface", "output=out")
    assert said.code == 0, said.err
    assert re.search(r"HeadscopeForCausalLM of transformers \S+ gave the same greedy", said.out)
    assert 'AutoModelForCausalLM.from_pretrained("out", trust_remote_code=True)' in said.out
    card = Path("out/README.md").read_text(encoding="utf-8")
    assert 'from_pretrained("path/to/this/folder", trust_remote_code=True)' in card
    assert "logits that differ by at most" in card
    assert json.loads(Path("out/config.json").read_text())["model_type"] == "headscope"
    assert {path.name for path in Path().iterdir()} == {"run", "out"}
    again = script("convert", "checkpoint=run", "to=huggingface", "output=out")
    assert again.code == 1
    assert "output=out already exists" in again.err


def test_the_tokenizer_fills_up_a_batch_and_knows_the_context_length(tmp_path):
    loaded = saved(tmp_path, "")
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


def test_differences_are_found(tmp_path):
    loaded = saved(tmp_path, OWN)
    tokens, positions = probe(257, 8, 256)
    ours = logits(loaded.model, tokens, positions)
    assert compare(ours, ours + 9e-5) == pytest.approx(9e-5, rel=0.01)
    for wrong in (ours + 2e-4, ours.roll(1, dims=0), ours * torch.nan, ours[1:]):
        with pytest.raises(NotEqual, match="logits"):
            compare(ours, wrong)
    prompt = tokens[0, :4].tolist()
    greedy = prompt
    for _ in range(3):
        greedy = [*greedy, int(loaded.model.next_logits(torch.tensor([greedy])).argmax())]
    check_greedy(loaded, prompt, greedy, 3)
    for wrong, count in (([*greedy[:-1], (greedy[-1] + 1) % 257], 3), (greedy, 4), (greedy[1:], 2)):
        with pytest.raises(NotEqual, match="greedy"):
            check_greedy(loaded, prompt, wrong, count)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_export_leaves_no_process_and_the_next_one_cleans_up(tmp_path, number):
    loaded = saved(tmp_path / "run" / "checkpoints", OWN)
    words = ["checkpoint=run", "to=huggingface", "output=out"]
    command = [sys.executable, str(ROOT / "scripts" / "convert.py"), *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        children: list[psutil.Process] = []
        while not children or not list(tmp_path.glob(".out.*/.proof")):
            assert process.poll() is None
            children = psutil.Process(process.pid).children()
            time.sleep(0.02)
        process.send_signal(number)
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert (len(gone), alive) == (1, [])
    assert process.returncode == -number
    assert [path.name for path in tmp_path.glob(".out.*")]
    (tmp_path / ".output.1.part").mkdir()  # that of another name
    export_model(loaded, "huggingface", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out", ".output.1.part"}


def test_what_is_missing_is_said_in_one_line(tmp_path, monkeypatch):
    loaded = saved(tmp_path, OWN)
    for package, to in (("gguf", "gguf"), ("transformers", "huggingface")):
        monkeypatch.setitem(sys.modules, package, None)
        with refused(f"pip install 'headscope[{to}]'"):
            export_model(loaded, to, tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with refused("source=", "needs the package transformers"):
        import_model(str(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
    for text in (None, Path("input.txt")):
        folder = tmp_path / str(text)
        write_checkpoint(folder, imported(tmp_path, *parts, name="in", text=text, step=7))
        loaded = trained.load(folder / "checkpoints" / "best.safetensors")
        card = model_card(loaded, load="code", checked="It is equal.")
        for words in ("imported into headscope", "How it was trained is unknown"):
            assert words in card
        for words in ("trained with headscope", "optimizer"):
            assert words not in card
