"""The laws of own parts and of conf/ in the current folder, with the examples of the page
docs/own_parts.md."""

import csv
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import assert_same_weights, configuration, content, save
from many_processes import TINY, end, start
from refusals import refused
from running import ROOT, Said, Script, events, snapshot_headers, summary
from viewer_data import Elements

import headscope
from headscope.config import own_parts
from headscope.config.own_parts import load_parts
from headscope.config.parts import OWN_FOLDERS, Part, build_part
from headscope.data.encode import encode_batches
from headscope.nn.capture import capture
from headscope.show.explore.models import Models

PAGE = (ROOT / "docs" / "own_parts.md").read_text("utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
FILES = ["attention", "position", "norm", "training", "schedule", "tokenizer", "text", "metrics"]
FILES = [f"my_{name}" for name in FILES]
CHOICES = ["experiment/mine", "model/mine", "model/attention/window", "model/position/recency"]
CHOICES += ["optimizer/sign", "schedule/sqrt", "tokenizer/words", "data/sums"]
TRAIN = [*TINY, "data=repeats", "trainer.max_steps=2", "~logger", "data.characters=2000"]
WINDOW = ["model/attention=window", "model.attention.window=3"]
RUN = "hydra.run.dir=outputs/run"


PATH = [*sys.path]


def forget() -> None:
    """As in a new process, the person has named nothing."""
    own_parts.COMPOSED.clear()
    own_parts.MODULES.clear()
    OWN_FOLDERS.clear()
    sys.path[:] = PATH
    for name in (*FILES, "broken", "neighbour"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The current folder has the files of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget()  # other tests name parts, too
    write_files()
    yield
    forget()


def write_files() -> None:
    for file, source in zip(FILES, PYTHON, strict=True):
        Path(f"{file}.py").write_text(source)
    for text, name in zip(YAML, CHOICES, strict=True):
        file = Path("conf", f"{name}.yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_own_choices_are_found_in_the_current_folder_and_where_the_user_says(script: Script):
    assert "  heads: 8" in script("train", "--cfg", "job", "experiment=mine").out
    assert "model.embed_dim=256 " in script("train", "--help", "experiment=mine").out
    shutil.move("conf", "other")
    assert "there is no experiment/mine" in script("train", "experiment=mine").err
    searched = f"hydra.searchpath=[file://{Path('other').absolute()}]"
    for words in (["--config-d", "other"], ["-cd", "other"], [searched]):
        assert "  heads: 8" in script("train", "--cfg", "job", *words, "experiment=mine").out
        assert "model.embed_dim=256 " in script("train", "--help", *words, "experiment=mine").out
    Path("other/experiment/mine.yaml").rename("other/experiment/induction.yaml")
    shutil.move("other", "conf")
    assert "experiment=induction: rename " in script("train", "experiment=induction").err


def test_a_conf_folder_acts_only_if_one_of_its_choices_is_named(script: Script):
    Path("conf/train.yaml").write_text("seed: 7\n")
    said = script("train", "--cfg", "job")
    assert "\nseed: 1\n" in said.out
    assert said.err == ""
    Path("conf/hydra/launcher").mkdir(parents=True)
    Path("conf/hydra/job_logging").mkdir()
    run = "_target_: hydra._internal.core_plugins.basic_launcher.BasicLauncher\n"
    evil = "{_target_: my_evil.Callback}"
    Path("my_evil.py").write_text("open('touched', 'w')")
    for name in ("launcher/basic", "launcher/mine", "job_logging/default"):
        Path(f"conf/hydra/{name}.yaml").write_text(
            f"# @package hydra\ncallbacks: {{evil: {evil}}}\n{name.split('/')[0]}:\n  {run}"
        )
    script("evaluate", "checkpoint=nothing").refused("Error: checkpoint=nothing does not exist")
    assert "evil" not in script("train", "--cfg", "hydra").out
    assert not Path("touched").exists()
    Path("conf/experiment/mine.yaml").write_text(
        "# @package _global_\ndefaults: [{override /hydra/launcher: mine}]\n"
    )
    assert "my_evil.Callback" in script("train", "--cfg", "hydra", "experiment=mine").out


def test_an_own_attention_is_used_everywhere_and_never_imported_from_a_checkpoint(script: Script):
    run, file = "outputs/run", "parts=my_attention.py"
    said = script("train", *TRAIN, *WINDOW, RUN).succeeded()
    assert re.search(f"sample.py'? checkpoint={run}/checkpoints/best.safetensors {file}", said.out)
    weights = headscope.load(run).read(range(10)).attention  # named in this process
    distance = torch.arange(10)[:, None] - torch.arange(10)
    assert ((weights > 0) == ((distance >= 0) & (distance < 3))).all()

    forget()
    more = ["trainer.max_steps=3"]
    for command, *words in (
        ["sample", f"checkpoint={run}"],
        ["analyze", f"checkpoint={run}"],
        ["train", *TRAIN, f"init_from={run}"],
        ["convert", f"checkpoint={run}", "to=huggingface", "output=out"],
        ["train", f"resume={run}", *more],
    ):
        target = "model.attention._target_=my_attention.SlidingWindow"
        script(command, *words).refused(target, f"add {file}")
        assert "my_attention" not in sys.modules
    with refused(file):
        headscope.load(run)
    Path("elsewhere").mkdir()
    shutil.move("my_attention.py", "elsewhere")
    elsewhere = "parts=elsewhere/my_attention.py"
    assert script("sample", f"checkpoint={run}", elsewhere, "max_new_tokens=3").code == 0
    forget()
    given = headscope.load(run, parts=["elsewhere/my_attention.py"])
    assert torch.equal(given.read(range(10)).attention, weights)
    forget()
    said = script("train", f"resume={run}", elsewhere, *more).succeeded()
    assert elsewhere in said.out
    assert summary(run)["steps"] == 3
    forget()
    with refused(file):  # although the checkpoint now says where it is
        headscope.load(run)
    assert "my_attention" not in sys.modules
    assert script("train", *TRAIN, f"init_from={run}", elsewhere).code == 0
    refusal = script("convert", f"checkpoint={run}", elsewhere, "to=huggingface", "output=out")
    refusal.refused("my_attention.SlidingWindow")
    assert not Path("out").exists()


PARTS = {
    "my_attention": "model/attention=window",
    "my_position": "model/position=recency",
    "my_norm": "model/norm=layer model.norm._target_=torch.nn.LayerNorm",
    "my_training": "optimizer=sign",
    "my_schedule": "schedule=sqrt",
    "my_tokenizer": "tokenizer=words tokenizer.most=40",
    "my_text": "data=sums data.lines=500",
    "my_metrics": "+callbacks.heads.metrics.newline._target_=my_metrics.newline",
}
TO_OPEN = ("my_attention", "my_position", "my_norm", "my_tokenizer")


@pytest.mark.usefixtures("pictures_not_drawn")
def test_all_parts_train_together_and_are_loaded_and_resumed(script: Script):
    tiny = [word for word in TRAIN if not word.startswith(("tokenizer", "data."))]
    words = " ".join(PARTS.values()).split()
    said = script("train", *tiny, *words, RUN).succeeded()
    named = {file: f"{file}.py" for file in FILES} | {"my_norm": "torch.nn"}
    [sampling] = re.findall(r"sample.py.*parts=\[(\S+)\]", said.out)
    to_open = [named[file] for file in TO_OPEN]
    assert {*sampling.split(",")} == {*to_open}
    before = headscope.load("outputs/run").logits([1, 2, 3])
    resume = ["resume=outputs/run", "trainer.max_steps=4"]
    for file in FILES:  # each must be named again
        forget()
        others = [name for each, name in named.items() if each != file]
        if file in TO_OPEN:
            with refused("outputs/run", f"parts={named[file]}"):
                headscope.load("outputs/run", parts=others)
        else:
            refusal = script("train", *resume, f"parts=[{','.join(others)}]")
            refusal.refused(f"parts={named[file]}")
    forget()
    assert torch.equal(headscope.load("outputs/run", parts=to_open).logits([1, 2, 3]), before)
    script("train", *resume, f"parts=[{','.join(named.values())}]").succeeded()
    assert summary("outputs/run")["steps"] == 4
    parts = f"parts=[{','.join(to_open)}]"
    script("analyze", parts, "checkpoint=outputs/run", "text=1 22 333 4444").succeeded()


@pytest.mark.slow
def test_a_resumed_run_of_an_own_optimizer_is_that_of_an_uninterrupted_one(script: Script):
    own = ["optimizer._target_=torch.optim.Adam", "~optimizer.matrix_lr", "~optimizer.momentum"]
    words = [*TRAIN, *own, "~optimizer.beta1", "~optimizer.beta2", "schedule=sqrt"]
    assert script("train", *words, "trainer.max_steps=6", "hydra.run.dir=whole").code == 0
    assert script("train", *words, "trainer.max_steps=3", "hydra.run.dir=part").code == 0
    parts = "parts=[torch.optim,my_schedule]"
    script("train", "resume=part", "trainer.max_steps=6", parts).succeeded()
    assert summary("part")["val_loss"] == summary("whole")["val_loss"]


ATTRIBUTES = [{}, {"vocab_size": "9"}, {"vocab_size": 9.0}, {"end_of_text": 99}, {"encode": 1}]
ATTRIBUTES += [{"vocab_size": 10**12}, {"end_of_text": -1}, {"token_bytes": "x"}]


@pytest.mark.parametrize("changed", ATTRIBUTES, ids=str)
def test_the_attributes_of_an_own_tokenizer_are_checked(changed: dict):
    load_parts("my_tokenizer.py")
    whole = {"words": list("abcdefg"), "vocab_size": 9, "end_of_text": 8}
    config = configuration()
    config["tokenizer"] = {"_target_": "my_tokenizer.Words", "most": 7}
    state = {"kind": "own", "attributes": whole | changed if changed else {}}
    save(content()[0] | {"config": config, "tokenizer": state}, "a.safetensors")
    problem = "no end-of-text token" if "end_of_text" in changed else "not a tokenizer that"
    with refused("a.safetensors", problem):
        headscope.load("a.safetensors")


def test_a_checkpoint_may_use_only_classes_of_its_group_that_the_module_defines(tmp_path: Path):
    Path("mine.py").write_text(
        "import os, torch\nimport headscope\nfrom my_position import Recency\n"
        "def own(weights, tokens): return weights[..., 0, 0]\n"
        "class Flat(headscope.Position): pass\nclass Other(torch.nn.Module): pass\n"
        "def wipe(**options): open('touched', 'w')\n"
    )
    load_parts("mine.py")
    for name in ("mine.Flat", "mine.Recency", "mine.Other", "mine.wipe", "mine.os.system"):
        config = configuration()
        config["model"]["position"] = {"_target_": name}
        save(content()[0] | {"config": config}, "a.safetensors")
        if name == "mine.Flat":
            assert type(headscope.load("a.safetensors").model.position).__name__ == "Flat"
        else:
            with refused(f"model.position._target_={name}", "add parts=mine"):
                headscope.load("a.safetensors")
    for name in ("own", "wipe", "Other"):
        assert (own_parts.not_allowed("metrics", f"mine.{name}") is None) == (name == "own")
    assert not Path("touched").exists()


MISTAKES = {
    "model.attention._target_=SlidingWindow": ["has no module", "my_parts.MyClass"],
    "model.attention._target_=my_absent.X": ["there is no module my_absent"],
    "model.attention._target_=my_attention.Sliding": ["Sliding in my_attention", "did you mean"],
    "model.attention._target_=torch.nn.Linear": ["must be a class of headscope.MultiHeadAttention"],
    "model.attention._target_=os.system": ["takes no embed_dim", "**options"],
    "+model.attention._partial_=false": ["model.attention._partial_=false cannot be changed"],
    "optimizer._target_=torch.optim.SGD": ["~optimizer.matrix_lr ~optimizer.beta1"],
    "optimizer._target_=torch.optim.SGD optimizer.lr=-1 ~optimizer.matrix_lr ~optimizer.beta1 "
    "~optimizer.beta2": ["optimizer._target_=torch.optim.SGD cannot", "learning rate: -1.0"],
    "data=sums ~data.lines": ["data.lines is missing: give it a value"],
    "callbacks.heads.metrics.x._target_=my_metrics.newline": ["add it with +callbacks.heads"],
    "+callbacks.heads.metrics.x._target_=torch.nn.Linear": ["a function of weights and tokens"],
    "+callbacks.heads.metrics.entropy._target_=my_metrics.newline": ["metrics.entropy", "name"],
    "+callbacks.heads.metrics.a-b._target_=my_metrics.newline": ["metrics.a-b", "letters"],
}
BROKEN = {
    "x = 1\n(": ["broken.py, line 2", "SyntaxError"],
    "def f():\n    1 / 0\n\n\nf()\n": ["broken.py, line 2", "ZeroDivisionError"],
    "import absent_package": ["broken.py, line 1", "absent_package"],
    "import sys\nsys.exit(3)": ["line 2", "SystemExit"],
}


def assert_one_line(script: Script, words: str, parts: list[str]) -> None:
    tiny = TRAIN[:-1] if "data=" in words else TRAIN
    said = script("train", *tiny, *words.split()).refused(*parts)
    assert said.err.count("\n") == 1, said.err
    assert "site-packages" not in said.err
    assert not list(Path("outputs").glob("*"))


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_told_in_one_line_and_leaves_nothing(words: str, script: Script):
    assert_one_line(script, words, MISTAKES[words])


@pytest.mark.parametrize("source", BROKEN)
def test_an_error_in_an_own_file_is_told_with_its_line(source: str, script: Script):
    Path("broken.py").write_text(source)
    for words in ("parts=broken.py", "model.norm._target_=broken.X"):
        assert_one_line(script, words, [*BROKEN[source], words.partition("=")[0]])


@pytest.mark.parametrize("file", [file for file in FILES if file != "my_metrics"])
def test_an_error_in_the_constructor_of_an_own_class_is_told_with_the_class(
    file: str, script: Script
):
    source = Path(f"{file}.py").read_text()
    broken = re.sub(r"(def __init__\(.*\):\n)", r"\1        int([])\n", source, count=1)
    Path(f"{file}.py").write_text(broken)
    line = broken[: broken.index("int([])")].count("\n") + 1
    words = PARTS[file] if file != "my_norm" else "model.norm._target_=my_norm.DynamicTanh"
    words += " ~model.norm.eps" * (file == "my_norm")
    assert_one_line(script, words, [f"_target_={file}.", "TypeError", f"{file}.py, line {line})"])


def test_an_error_of_our_code_does_not_look_like_one_of_an_own_part():
    load_parts(["my_tokenizer"])
    make = build_part(Part(_target_="my_tokenizer.Words", most=7), "tokenizer")
    broken: Any = None
    with pytest.raises(AttributeError):
        make(encode_batches(broken, broken, [broken], ahead=1))
    Path("broken.py").write_text("class Own:\n    def __init__(self):\n        int([])\n")
    watch = Part(_target_="headscope.HeadWatch", thresholds=Part(_target_="broken.Own"))
    with refused("callbacks.mine.thresholds._target_=broken.Own cannot be made"):
        build_part(watch, "callbacks", "callbacks.mine")


WIDTHS = ["width", "width, /", "*, width", "*, gain=1.0, embed_dim", "*, width, gain=1.0"]


@pytest.mark.parametrize("arguments", [*WIDTHS, "embed_dim, *, bias: bool"])
def test_a_norm_takes_the_width_by_any_name_in_any_way(arguments: str, script: Script):
    width = "width" if "width" in arguments else "embed_dim"
    Path("broken.py").write_text(
        f"class Norm(__import__('torch').nn.LayerNorm):\n"
        f"    def __init__(self, {arguments}):\n        super().__init__({width})\n"
    )
    words = ["model.norm._target_=broken.Norm", "~model.norm.eps", RUN]
    script("train", *TRAIN, *words).succeeded()
    assert headscope.load("outputs/run").model.norm.weight.shape == (16,)


def test_a_tokenizer_and_a_metric_may_take_what_they_get_by_name_only(script: Script):
    Path("my_tokenizer.py").write_text(PYTHON[5].replace("self, texts, *", "self, *, texts"))
    Path("my_metrics.py").write_text(PYTHON[7].replace("(weights", "(*, weights"))
    words = [*MEASURED, "tokenizer=words"]
    script("train", *[word for word in words if "tokenizer.vocab" not in word]).succeeded()
    assert "newline" in headscope.load("outputs/run").known_record().metrics


def test_a_file_of_parts_has_a_name_of_its_own_and_imports_its_neighbours(monkeypatch):
    for name in ("torch.py", "__main__.py", "torch.nn.py"):
        Path(name).write_text("raise SystemExit")
    for name in ("absent.py", "conf", "torch.py", "__main__.py", "torch.nn.py"):
        with refused(f"parts={name}"):
            load_parts(name)
        assert not own_parts.MODULES
    OWN_FOLDERS.clear()
    Path("lib").mkdir()
    Path("lib/neighbour.py").write_text("value = 3\n")
    Path("lib/broken.py").write_text("from neighbour import value\n")
    monkeypatch.setenv("HOME", str(Path.cwd()))
    load_parts("~/lib/broken.py")
    assert sys.modules["neighbour"].value == 3


def test_an_error_in_own_code_is_no_bug_of_headscope(script: Script):
    Path("my_attention.py").write_text(PYTHON[0].replace("mask=combine_masks", "mask=undefined"))
    Path("my_metrics.py").write_text("def newline(weights, tokens, token): return undefined")
    for file, words in (("my_attention", [*TRAIN, *WINDOW]), ("my_metrics", MEASURED)):
        said = script("train", *words)
        assert (said.code, "NameError" in said.err, "a bug in" in said.err) == (1, True, False)
        assert re.search(rf"The error comes from \S+{file}.py, line \d+\.$", said.err.strip())


NEWLINE = "+callbacks.heads.metrics.newline"
MEASURED = [*TINY[:-1], "data=repeats", "trainer.max_steps=4", "data.characters=20000", RUN]
MEASURED += ["callbacks.saving.keep_steps=[2]", "callbacks.samples.max_new_tokens=0"]
MEASURED += [f"{NEWLINE}._target_=my_metrics.newline", f"{NEWLINE}.token=49"]  # the digit 1


@pytest.mark.usefixtures("pictures_not_drawn")
def test_an_own_metric_is_everywhere_where_the_others_are(script: Script):
    """In the event file, heads.json, explore and the report."""
    script("train", *MEASURED).succeeded()
    assert "watch/newline/L1H0" in events("outputs/run").Tags()["scalars"]
    about = {"newline": "Weight on line breaks, from 0 to 1."}
    for header in snapshot_headers("outputs/run"):
        assert (header["descriptions"], header["ends"]["newline"]) == (about, [0, 1])
    forget()
    loaded = headscope.load("outputs/run")
    stored = loaded.known_record()
    windows, _ = loaded.windows_elsewhere(stored.windows)
    on_digit = capture(loaded.model, windows).attention * (windows == 49)[:, None, None]
    expected = on_digit.sum(-1).mean((1, 3))
    torch.testing.assert_close(stored.metrics["newline"], expected)
    shown = Models("outputs/run", None, "cpu").get("this").record
    assert (shown.descriptions, shown.uniform["newline"]) == (about, stored.uniform["newline"])
    words = ["analyze", "checkpoint=outputs/run", "checkpoints=[outputs/run]", "output_dir=report"]
    # The report shows what was measured. If the function is given again, it may be another one.
    for more, value in ([], expected[0, 0]), (["+metrics.newline._target_=my_metrics.newline"], 0):
        script(*words, *more).succeeded()
        assert ("my_metrics" in sys.modules) == bool(more)
        files = [Path(f"report/{name}.csv").read_text() for name in ("heads", "history")]
        [row, _] = [next(csv.DictReader(file.splitlines())) for file in files if "newline" in file]
        assert float(row["newline"]) == pytest.approx(float(value), abs=1e-6)
        page = Elements(Path("report/attention.html").read_text("utf-8")).data["runs"][0]
        assert page["history"]["descriptions"] == about


def rude(weights, tokens):
    torch.manual_seed(tokens.sum())
    weights.zero_()
    tokens.zero_()
    return 2.0 + weights.sum((-1, -2)) + torch.rand(weights.shape[:2])


def test_an_own_metric_changes_neither_the_training_nor_the_other_metrics():
    found = []
    for folder, metrics in ("plain", {}), ("watched", {"rude": rude}):
        words = [word for word in MEASURED if NEWLINE not in word and word != RUN]
        words += ["~callbacks.heads", "model.dropout=0.1", f"hydra.run.dir={folder}"]
        metrics["later"] = lambda weights, tokens: weights[..., 9, 9] + tokens[9]
        headscope.train(words, callbacks=[headscope.HeadWatch(metrics=metrics)])
        found.append(headscope.load(folder).known_record())
    assert_same_weights("plain", "watched")
    assert "rude" not in found[1].ends  # its values are above 1
    assert found[1].metrics.pop("rude").min() >= 2
    assert str(found[0].metrics) == str(found[1].metrics)


@pytest.mark.slow
def test_every_command_of_the_page_composes(script: Script):
    commands = re.findall(r"^headscope (train .*)", PAGE, re.MULTILINE)
    assert len(commands) > 5
    for line in commands:
        if "--config-dir" not in line and "<" not in line:
            command, *words = shlex.split(line)
            if "-m" in words:
                words = [word.partition(",")[0] for word in words if word != "-m"]
            script(command, "--cfg", "job", *words).succeeded()


@pytest.mark.slow
def test_own_parts_in_sweeps_comparisons_and_several_processes(script: Script):
    def run(*more: str) -> Said:
        return end(start([sys.executable, "-m", "headscope", *more, *words])).succeeded()

    words = [word for word in TRAIN if word != "~logger"]
    run("train", "trainer.devices=2", *WINDOW, "trainer.accelerator=cpu", RUN)
    assert summary("outputs/run")["devices"] == 2
    sweep = ["-m", "hydra/launcher=joblib", WINDOW[0], "model.attention.window=2,3"]
    assert len(re.findall("(?:best|finished)$", run("train", *sweep).out, re.MULTILINE)) == 2
    choices = 'compare.choices=["model/attention=window", "model/attention=multi_head"]'
    assert "window" in run("compare", choices, "seeds=[1]", "speed_rounds=1").out
