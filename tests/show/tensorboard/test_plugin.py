"""What the plugin of the tab Attention answers in the real TensorBoard, with both loaders."""

import json
import shutil
import subprocess
import sys
from argparse import Namespace
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from choices import slow_unless
from tab_runs import ROUTES, TEXT, Answer, Board, board, in_process, made_up_parts, until, write_run
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from torch.utils.tensorboard import SummaryWriter

import headscope.show.viewer
from headscope.analysis.headers import MAX_STEPS, MEASURED
from headscope.show.tensorboard.loader import AttentionLoader
from headscope.show.viewer.files import glossary_module
from headscope.training.loggers import add_snapshot
from headscope.training.snapshot_events import snapshot_summary

STEPS = range(0, 120, 2)
MARKUP = "<script>alert(1)</script>"
STATIC = sorted((Path(headscope.show.viewer.__file__).parent / "static").iterdir())


def with_header(**changed: Any) -> list[bytes]:
    """The parts of a good snapshot with a changed header."""
    header, *others = made_up_parts(0)
    return [json.dumps(json.loads(header) | changed).encode(), *others]


HOSTILE = [
    *([b""], [b"\xff\xfe", b"", b"", b""], [b"[" * 100_000, b"", b"", b""]),
    [b'{"format": 1' + b"0" * 10_000 + b"}"],
    with_header(layers=10**9, heads=10**9),
    with_header(scores=[10**400] * 4),
    with_header(step=float("nan")),
    with_header(format=2),
    with_header(parts=[{"name": "x", "count": 1, "arrays": [["x", "u1", [10**12]]]}]),
    made_up_parts(0)[:2],
]
"""Parts of snapshots that cannot be shown."""

CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "claims": {"tensor_shape": {"dim": [{"size": 10**6}] * 2}},
    "negative": {"tensor_shape": {"dim": [{"size": -5}]}},
    "floats": {"dtype": 1},
}
"""Fields of a snapshot's tensor that its content contradicts, by the name of the run."""


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every kind."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "good", STEPS)
    with SummaryWriter(str(folder / "old")) as writer:
        writer.add_scalar("train/loss", 1.0, 0)
    snapshots = [*HOSTILE, made_up_parts(len(HOSTILE))]
    write_run(folder / "hostile", range(len(snapshots)), snapshots=snapshots)
    for number, parts in enumerate(HOSTILE):
        write_run(folder / "only" / str(number), snapshots=[parts])
    for name, changed in CONTRADICTIONS.items():
        summary = snapshot_summary(TEXT, made_up_parts(0))
        for field in changed:
            summary.value[0].tensor.ClearField(field)
        summary.value[0].tensor.MergeFrom(TensorProto(**changed))
        with SummaryWriter(str(folder / name)) as writer:
            writer.file_writer.add_summary(summary, 0)
    marked = with_header(labels=[MARKUP] * 6, names=["\ud800"] * 4)
    write_run(folder / MARKUP, snapshots=[marked], text=MARKUP)
    write_run(folder / "cut", [0, 1, 2])
    [file] = (folder / "cut").iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    with SummaryWriter(str(folder / "losses")) as writer:
        for step, loss in enumerate([2.5, float("nan"), float("inf")]):
            writer.add_scalar("val/loss", loss, step)
        add_snapshot(writer, TEXT, made_up_parts(1), 1)
    return folder


@pytest.fixture(scope="module", params=slow_unless([True], [True, False]), ids=["fast", "slow"])
def served(request: pytest.FixtureRequest, logdir: Path) -> Iterator[Board]:
    """TensorBoard, after it has read everything. It must not print a traceback until the end."""
    snapshots = {"good": len(STEPS), "hostile": 1, "cut": 2, "losses": 1, MARKUP: 1}
    others = {f"only/{number}" for number in range(len(HOSTILE))}
    with board(logdir, load_fast=request.param) as started:

        def all_read() -> bool:
            runs = started.runs()
            return others | snapshots.keys() <= runs.keys() and all(
                len(started.steps(run, *runs[run])) == number for run, number in snapshots.items()
            )

        until(all_read, "all runs")
        yield started
    assert "Traceback" not in "".join(started.lines)


def refused(answer: Answer, statuses: set[int]) -> str:
    """The line of an answer that is an error."""
    assert answer.status in statuses
    [(name, line)] = answer.json.items()
    assert name == "error"
    assert "\n" not in line
    return line


def test_the_tab_and_its_runs_with_snapshots_are_listed(served: Board) -> None:
    listed = served.get("data/plugins_listing").json["headscope"]
    assert listed["tab_name"] == "Attention"
    assert listed["enabled"]  # because there is data
    assert listed["loading_mechanism"] == {"type": "IFRAME", "module_path": f"/{ROUTES}/tab.js"}
    assert b"./tab.js" in served.get("data/plugin_entry.html", name="headscope").body
    runs = served.runs()
    assert (runs["good"], runs[MARKUP], runs.get("old")) == ([TEXT], [MARKUP], None)
    shapes = {run["name"]: run["shapes"] for run in served.ask("runs").json["runs"]}
    assert shapes["good"] == shapes["cut"] != shapes[MARKUP]  # can be compared, and cannot
    assert shapes["only/0"] == [None]


def test_static_files_are_served_with_their_type_and_no_other_file(served: Board) -> None:
    files = {file.name: file.read_bytes() for file in STATIC if file.suffix != ".txt"}
    for name, content in {**files, "glossary.js": glossary_module().encode()}.items():
        answer, kind = served.ask(name), {".js": "javascript", ".css": "css"}[Path(name).suffix]
        assert answer.headers["Content-Type"] == f"text/{kind}; charset=utf-8"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.body == content
    for path in [
        *("../plugin.py", "..%2fhistory.py", "%2e%2e/history.py", "....//history.py"),
        *("../../../../../etc/passwd", "/etc/passwd", "static/tab.js", "tab.js%00.css", "tab.py"),
    ]:
        assert served.ask(path).status == 404


def test_the_history_has_every_step_without_a_flag(served: Board) -> None:
    found = served.ask("history", run="good", text=TEXT).json
    assert [each["step"] for each in found["steps"]] == [*STEPS]
    for each in found["steps"]:
        header = json.loads(made_up_parts(each["step"])[0])
        assert each["layout"] == header["parts"]
        for name in ("names", "scores", "ratios", "metrics", "losses", "next", *MEASURED):
            assert each[name] == header[name]
        for name in ("layers", "heads", "labels", "text_tokens", "ends", "switched"):
            assert found[name] == header[name]
    values = pytest.approx([4 / (1 + step) for step in STEPS])
    assert found["loss"] == {"name": "train/loss", "steps": [*STEPS], "values": values}
    losses = {"name": "val/loss", "steps": [0, 1, 2], "values": [2.5, None, None]}
    assert served.ask("history", run="losses", text=TEXT).json["loss"] == losses
    for each in found["steps"][::20]:
        for key, part in zip(each["parts"], made_up_parts(each["step"])[1:], strict=True):
            answer = served.ask("part", key=key)
            assert answer.headers["Content-Type"] == "application/octet-stream"
            assert answer.body == part
    marked = served.ask("history", run=MARKUP, text=MARKUP).json
    assert (marked["labels"], marked["steps"][0]["names"]) == ([MARKUP] * 6, ["\ud800"] * 4)
    for run in CONTRADICTIONS:  # the fast loader drops what it does not know
        answer = served.ask("history", run=run, text=TEXT)
        assert answer.status == 200 or refused(answer, {404, 422})


def test_damaged_snapshots_hide_no_good_one_and_alone_are_an_error(served: Board) -> None:
    [step] = served.ask("history", run="hostile", text=TEXT).json["steps"]
    assert step["step"] == len(HOSTILE)
    assert served.ask("part", key=step["parts"][0]).body == made_up_parts(len(HOSTILE))[1]
    for number, parts in enumerate(HOSTILE):
        line = refused(served.ask("history", run=f"only/{number}", text=TEXT), {422})
        assert f"only/{number}" in line
        if parts == with_header(format=2):
            assert "step 0: the format is 2, and this version reads 7" in line


def test_unknown_and_hostile_parameters_are_refused(served: Board) -> None:
    for name in [b"", b"old", b"../good", b"\0", b"good\xff", b"\xc3" * 4000, MARKUP.encode()]:
        refused(served.ask("history", run=name, text=TEXT), {404})
        refused(served.ask("history", run="good", text=name), {404})
    assert "`run`" in refused(served.ask("history"), {400})
    assert "`text`" in refused(served.ask("history", run="good"), {400})
    assert "`key`" in refused(served.ask("part"), {400})

    def as_key(*values: Any) -> bytes:  # as TensorBoard's slow loader encodes it
        return urlsafe_b64encode(json.dumps(values).encode())

    for key in [
        *("", "x", "=", "é", "\0", "A" * 10_000, b"\xff", urlsafe_b64encode(b"{}"), b"W" * 99_999),
        *(as_key("", "headscope", "good", TEXT, 0, index) for index in (99, -99, "0", None)),
        as_key("", "headscope", "no", TEXT, 0, 0),
        as_key("", "scalars", "good", "train/loss", 0, 0),
    ]:
        answer = served.ask("part", key=key)
        assert answer.status == 414 or refused(answer, {400, 404, 422})


def test_a_broken_plugin_does_not_stop_tensorboard(tmp_path: Path, logdir: Path) -> None:
    breaks = "import sys\nsys.modules['headscope.show.tensorboard.plugin'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(breaks)
    with board(logdir, load_fast=True, path=tmp_path) as started:
        listed = started.get("data/plugins_listing").json
    assert "scalars" in listed
    assert "headscope" not in listed
    [line] = [line for line in started.lines if "Attention" in line]
    assert "the tab Attention is not available" in line
    assert "Traceback" not in "".join(started.lines)


def test_the_loader_imports_nothing_heavy_and_keeps_a_flag_of_the_user() -> None:
    program = "import sys, headscope.show.tensorboard.loader; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    heavy = {b"torch", b"hydra", b"matplotlib", b"lightning", b"numpy", b"headscope.nn"}
    assert not heavy & set(names.split())
    for given, expected in (({}, MAX_STEPS), ({"headscope": 3}, 3)):
        flags = Namespace(samples_per_plugin=given)
        AttentionLoader().fix_flags(flags)
        assert flags.samples_per_plugin == {"headscope": expected}


def test_headers_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", [0, 1, 2])
    ask = in_process(tmp_path)
    size = sum(len(made_up_parts(step)[0]) for step in [0, 1, 2])
    monkeypatch.setattr("headscope.show.tensorboard.plugin.MAX_HEADERS_BYTES", size)
    assert len(ask("history", run="run", text=TEXT).json["steps"]) == 3
    monkeypatch.setattr("headscope.show.tensorboard.plugin.MAX_HEADERS_BYTES", size - 1)
    assert f"{size - 1:,} bytes" in refused(ask("history", run="run", text=TEXT), {422})


def test_a_run_that_was_trained_again_has_other_keys(tmp_path: Path) -> None:
    """The browser keeps the parts of the first run by their keys."""
    keys = set()
    for seed in [0, 1]:
        write_run(tmp_path / "run", seed=seed)
        ask = in_process(tmp_path)
        [step] = ask("history", run="run", text=TEXT).json["steps"]
        assert ask("part", key=step["parts"][0]).body == made_up_parts(0, seed=seed)[1]
        keys.update(step["parts"])
        shutil.rmtree(tmp_path / "run")
    assert len(keys) == 2 * len(made_up_parts(0)[1:])
