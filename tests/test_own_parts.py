"""The laws of parts= and of conf/ in the current folder, with the examples of docs/own_parts.md."""

import builtins
import gc
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from headscope.config.model import ATTENTIONS, POSITIONS
from headscope.config.text import CORPORA
from many_processes import TINY, end, start
from refusals import refused
from running import ROOT, Script, summary

import headscope
from headscope.config import own_parts

PAGE = (ROOT / "docs" / "own_parts.md").read_text("utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
FILES = ["my_parts", "my_position", "my_text"]
WINDOW = ["parts=my_parts.py", "model/attention=window", "model.attention.window=3"]
TRAIN = [*TINY, "data=repeats", "data.characters=2000", "trainer.max_steps=2", "~logger"]
REGISTRIES = [own_parts.EXECUTED, ATTENTIONS, POSITIONS, CORPORA]
BEFORE = [dict(registry) for registry in REGISTRIES]


def forget() -> None:
    """As in a new process, no own parts are registered."""
    for registry, entries in zip(REGISTRIES, BEFORE, strict=True):
        registry.clear()
        registry.update(entries)
    for name in (*FILES, "broken"):
        sys.modules.pop(name, None)
    gc.collect()  # a schema is known as long as it exists


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The current folder has the files of the page."""
    monkeypatch.chdir(tmp_path)
    for file, source in zip(FILES, PYTHON, strict=True):
        Path(f"{file}.py").write_text(source)
    names = ["experiment/mine", "model/mine", "model/attention/window", "model/position/recency"]
    names.append("data/sums")
    for text, name in zip(YAML, names, strict=True):
        file = Path("conf", f"{name}.yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    yield
    forget()


def test_own_choices_are_found_in_the_current_folder_and_where_the_user_says(script: Script):
    assert "  heads: 8" in script("train", "--cfg", "job", "experiment=mine").out
    assert "model.embed_dim=256 " in script("train", "--help", "experiment=mine").out
    assert "  layers: 2\n" in script("train", "--cfg", "job", "model=mine").out
    shutil.move("conf", "other")
    assert "there is no experiment/mine" in script("train", "experiment=mine").err
    searched = f"hydra.searchpath=[file://{Path('other').absolute()}]"
    flags = (["--config-dir", "other"], ["--config-dir=other"], ["--config-d", "other"])
    for words in (*flags, ["-cd", "other"], [searched]):
        assert "  heads: 8" in script("train", "--cfg", "job", *words, "experiment=mine").out
    shutil.copytree("other", "conf")
    Path("conf/experiment/mine.yaml").rename("conf/experiment/induction.yaml")
    said = script("train", "experiment=induction")
    assert "experiment=induction: rename " in said.err

    # A conf/ from a stranger changes nothing unless one of its choices is named.
    Path("conf/train.yaml").write_text("seed: 7\n")
    said = script("train", "--cfg", "job")
    assert "\nseed: 1\n" in said.out
    assert said.err == ""
    Path("conf/hydra/launcher").mkdir(parents=True)
    Path("conf/hydra/launcher/basic.yaml").write_text(
        "defaults: [/evil@_global_, _self_]\n"
        "_target_: hydra._internal.core_plugins.basic_launcher.BasicLauncher\n"
    )
    target = "headscope.config.own_parts.load_parts"
    Path("conf/evil.yaml").write_text(
        f"hydra: {{callbacks: {{evil: {{_target_: {target}, path: my_parts.py}}}}}}\n"
    )
    said = script("evaluate", "checkpoint=nothing")
    assert said.code == 1
    assert "conf/ is not read" in said.err
    assert "--config-dir=conf" in said.err
    assert "my_parts" not in sys.modules


def test_an_own_attention_is_used_everywhere_and_never_imported_from_a_checkpoint(script: Script):
    run = "outputs/run"
    said = script("train", *TRAIN, *WINDOW, f"hydra.run.dir={run}")
    assert said.code == 0, said.err
    words = f"checkpoint={run}/checkpoints/best.safetensors parts=my_parts.py"
    assert re.search(f"sample.py'? {words}", said.out)
    weights = headscope.load(run).attention(list(range(10))).weights
    distance = torch.arange(10)[:, None] - torch.arange(10)
    assert ((weights > 0) == ((distance >= 0) & (distance < 3))).all()

    forget()
    more = ["trainer.max_steps=3"]
    for command, *words in (
        ["sample", f"checkpoint={run}"],
        ["evaluate", f"checkpoint={run}"],
        ["analyze", f"checkpoint={run}"],
        ["train", f"resume={run}", *more],
        ["train", *TRAIN, f"init_from={run}"],
        ["convert", f"checkpoint={run}", "to=huggingface", "output=out"],
    ):
        refusal = script(command, *words)
        assert refusal.code == 1
        assert "was trained with parts=my_parts.py: name this file" in refusal.err, command
        assert refusal.err.count("\n") == 1
        assert "my_parts" not in sys.modules
    with refused("parts=my_parts.py"):
        headscope.load(run)
    Path("elsewhere").mkdir()
    shutil.move("my_parts.py", "elsewhere")
    parts = "parts=elsewhere/my_parts.py"
    assert script("sample", f"checkpoint={run}", parts, "max_new_tokens=3").code == 0
    forget()
    assert torch.equal(
        headscope.load(run, parts="elsewhere/my_parts.py").attention(list(range(10))).weights,
        weights,
    )
    forget()
    assert script("train", f"resume={run}", parts, *more).code == 0
    assert summary(run)["steps"] == 3
    assert script("train", *TRAIN, f"init_from={run}", parts).code == 0
    refusal = script("convert", f"checkpoint={run}", parts, "to=huggingface", "output=out")
    assert refusal.code == 1
    assert "my_parts.SlidingWindow" in refusal.err
    assert not Path("out").exists()


@pytest.mark.usefixtures("pictures_not_drawn")
def test_an_own_position_is_analyzed(script: Script):
    own = ["parts=my_position.py", "model/position=recency"]
    assert script("train", *TRAIN, *own, "hydra.run.dir=outputs/run").code == 0
    said = script("analyze", own[0], "checkpoint=outputs/run", "text=1 22 333 4444")
    assert said.code == 0, said.err


def test_an_own_text_and_parts_of_an_own_experiment(script: Script):
    Path("conf/experiment/sums.yaml").write_text(
        "# @package _global_\nparts: my_text.py\ndefaults: [{override /data: sums}]\n"
    )
    words = [word for word in TRAIN if not word.startswith("data")]
    for chosen in (["experiment=sums"], ["parts=my_text.py", "data=sums"]):
        said = script("train", *words, *chosen, "data.lines=500", "hydra.run.dir=outputs/run")
        assert said.code == 0, said.err
        assert "text        sums-" in said.out
        forget()
        shutil.rmtree("outputs/run")


BROKEN = {
    "x = 1\n(": ["broken.py, line 2", "SyntaxError"],
    "def f():\n    1 / 0\n\n\nf()\n": ["broken.py, line 2", "ZeroDivisionError"],
    "import headscope\nheadscope.register('norm', 'x', print)": ["line 2", "'norm'", "attention"],
}


@pytest.mark.parametrize("source", BROKEN)
def test_a_mistake_in_a_file_of_parts_is_told_with_its_line(source: str, script: Script):
    Path("broken.py").write_text(source)
    said = script("train", *TRAIN, "parts=broken.py")
    assert said.code == 1
    assert said.err.startswith("Error: parts=broken.py: ")
    assert said.err.count("\n") == 1
    for word in BROKEN[source]:
        assert word in said.err
    assert not Path("outputs").exists()


def test_a_file_of_parts_has_a_name_of_its_own_and_is_read_again_after_a_change(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for name in ("torch.py", "__main__.py", "torch.nn.py", "my-parts.py"):
        Path(name).write_text("raise SystemExit")
    for name in ("absent.py", "conf", "torch.py", "__main__.py", "torch.nn.py", "my-parts.py"):
        with refused(f"parts={name}"):
            own_parts.load_parts(name)
    file = Path("broken.py")
    for value in ("1", "2", "2"):
        file.write_text(
            f"import builtins\nbuiltins.seen = [*getattr(builtins, 'seen', []), {value}]"
        )
        os.utime(file, ns=(int(value), int(value)))
        own_parts.load_parts("broken.py")
    assert vars(builtins).pop("seen") == [1, 2]
    module = sys.modules["broken"]
    file.write_text("import sys\nsys.exit(3)")
    with refused("parts=broken.py", "SystemExit"):
        own_parts.load_parts("broken.py")
    assert sys.modules["broken"] is module


def test_a_file_of_parts_imports_its_neighbours_and_may_not_replace_a_choice():
    Path("lib").mkdir()
    Path("lib/neighbour.py").write_text("value = 3\n")
    Path("lib/broken.py").write_text("from neighbour import value\n")
    before = [*sys.path]
    own_parts.load_parts("lib/broken.py")
    assert sys.path == before
    assert sys.modules.pop("neighbour").value == 3
    with refused("multi_head", "headscope has a choice of this name"):
        headscope.register("attention", "multi_head", headscope.MultiHeadAttention)


def test_an_error_in_own_code_is_no_bug_of_headscope(script: Script):
    Path("my_parts.py").write_text(PYTHON[0].replace("mask=combine_masks", "mask=undefined"))
    said = script("train", *TRAIN, *WINDOW)
    assert said.code == 1
    assert "NameError" in said.err
    assert "bug in headscope" not in said.err
    assert re.search(r"The error comes from \S+my_parts.py, line \d+\.$", said.err.strip())


@pytest.mark.slow
def test_own_parts_in_a_parallel_sweep_and_with_several_processes(script: Script):
    words = [word for word in TRAIN if "hydra" not in word]
    command = [sys.executable, "-m", "headscope", "train", "trainer.devices=2", *words, *WINDOW]
    said = end(start([*command, "trainer.accelerator=cpu", "hydra.run.dir=outputs/two"]))
    assert said.code == 0, said.err
    assert summary("outputs/two")["devices"] == 2
    sweep = ["-m", "hydra/launcher=joblib", "model.attention.window=2,3"]
    said = script("train", *sweep, *words, *WINDOW[:2])
    assert said.code == 0, said.err + said.out
    assert said.out.count("finished, loss") == 2
