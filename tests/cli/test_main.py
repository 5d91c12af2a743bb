"""The laws of the command `headscope` and of headscope.train."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize
from hydra.core.global_hydra import GlobalHydra
from many_processes import TINY, end, start
from refusals import refused
from running import Said, Script, summary

import headscope
from headscope.cli.main import COMMANDS
from headscope.files import read_summary
from headscope.trained.records import FILE

TRAIN = [*TINY, "data=repeats", "data.characters=3000", "trainer.max_steps=2", "~logger"]


def run(*words: str) -> Said:
    return end(start([sys.executable, "-m", "headscope", *words]))


def test_the_commands_are_listed_without_a_slow_import() -> None:
    for words in ([], ["-h"], ["--help"]):
        said = run(*words).succeeded()
        for name in COMMANDS:
            assert f"\n  headscope {name} " in said.out
    libraries = ("torch", "hydra", "omegaconf", "numpy", "lightning", "rich")
    code = f"import sys, headscope.cli.main; print([n for n in {libraries} if n in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


BEFORE_WORK = """
import os
import sys
from headscope.cli.main import main

more = ["--help", "--cfg job", "sede=1", "x"]
for words in ["--help", *(f"{name} {each}" for name in sys.argv[1:] for each in more), "xyz"]:
    sys.argv = ["headscope", *words.split()]
    os.environ.pop("HYDRA_FULL_ERROR", None)
    try:
        main()
    except SystemExit:
        pass
    print(words, *{"torch", "lightning", "pandas"} & sys.modules.keys(), sep=": loads ")
"""


def test_no_command_loads_slow_libraries_before_its_work_begins(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEFORE_WORK, *COMMANDS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.endswith(f"\n{[*COMMANDS][-1]} x\nxyz\n"), done.stdout + done.stderr
    assert all(f"\n{name} x\n" in done.stdout for name in COMMANDS)
    assert ": loads " not in done.stdout
    assert all(line.startswith("Error: ") for line in done.stderr.splitlines()), done.stderr


def test_the_version_and_a_wrong_command(script: Script) -> None:
    version = f"headscope {headscope.__version__}\n"
    assert run("--version").out == script("train", "--version").out == version
    for words, advice in (
        (["trian"], "did you mean headscope train?"),
        (["model.heads=8"], "headscope train model.heads=8"),
        (["xyz"], "headscope --help"),
    ):
        assert run(*words).refused(advice).err.count("\n") == 1


@pytest.mark.slow
def test_bash_completes_commands_keys_and_choices(tmp_path: Path) -> None:
    own = tmp_path / "conf" / "experiment"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("# @package _global_\n{}\n")
    path = f'PATH="{Path(sys.executable).parent}:$PATH"'
    for line, expected in (
        ("headscope ev", ["evaluate"]),
        ("headscope train model.hea", ["model.head_dim=", "model.heads="]),
        ("headscope train model/position=al", ["model/position=alibi"]),
        ("headscope train experiment=m", ["experiment=mine"]),
        ("headscope sample temp", ["temperature="]),
    ):
        variables = f'COMP_LINE="{line}" COMP_POINT={len(line)} COMP_CWORD={line.count(" ")}'
        reply = 'hydra_bash_completion; echo "${COMPREPLY[@]}"'
        code = f'{path}; eval "$(headscope -sc install=bash)"; {variables}; {reply}'
        said = subprocess.check_output(["bash", "-c", code], text=True, cwd=tmp_path)
        assert said.split() == expected, line


def test_train_from_python_is_the_command(script: Script) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    result = headscope.train(TRAIN)
    assert result.summary == read_summary(result.folder)
    assert not (result.folder / "checkpoints" / FILE).exists()  # callbacks=plain measures no heads
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert (result.folder / ".hydra" / "overrides.yaml").read_text().count("\n") == len(TRAIN)
    assert script("train", *TRAIN, "hydra.run.dir=outputs/typed").code == 0
    assert summary("outputs/typed")["val_loss"] == result.summary["val_loss"]
    again = headscope.train([f"resume={result.folder}", "trainer.max_steps=3"])
    assert (again.folder, again.summary["steps"]) == (result.folder, 3)
    with initialize(version_base=None):  # as in a program that uses Hydra
        assert headscope.train(TRAIN).summary["val_loss"] == result.summary["val_loss"]
        assert GlobalHydra.instance().is_initialized()
    before = sorted(Path("outputs").iterdir())
    for word, advice in (
        ("model.headz=8", "did you mean heads?"),
        ("-m", "is a flag"),
        ("trainer.devices=2", "one device each"),
        ("init_from=absent", "init_from=absent does not exist"),
    ):
        with refused(advice):
            headscope.train([*TRAIN, word])
    assert sorted(Path("outputs").iterdir()) == before


TRAIN_LONG = f"headscope.train({[*TRAIN, 'trainer.max_steps=100000']})"


@pytest.mark.slow
def test_an_interrupted_cell_saves_and_the_kernel_goes_on(tmp_path: Path) -> None:
    jupyter = pytest.importorskip("jupyter_client", reason="needs jupyter_client, of the dev extra")
    manager, client = jupyter.manager.start_new_kernel(cwd=str(tmp_path))

    def cell(code: str, *, interrupted: bool = False) -> tuple[str, list[str], str]:
        """What the cell printed, the texts of its live lines, and its error."""
        printed, live, error = "", list[str](), ""

        def hear(message: dict[str, Any]) -> None:
            nonlocal printed, error
            content = message["content"]
            printed += content.get("text", "")
            error += "\n".join(content.get("traceback", ()))
            live.append(content.get("data", {}).get("text/plain", ""))
            if interrupted and live[-1].startswith("step 2"):
                manager.interrupt_kernel()

        client.execute_interactive(code, timeout=60, output_hook=hear)
        return printed, [*filter(None, live)], error

    try:
        cell("import headscope, signal; before = signal.getsignal(signal.SIGINT)")
        printed, live, error = cell(TRAIN_LONG, interrupted=True)
        assert "KeyboardInterrupt" in error
        assert "Saved at step" in printed
        assert "To continue: headscope.train(['resume=outputs/" in printed
        assert not any(line.startswith("step") for line in printed.splitlines())
        assert live[-1].startswith("step ")
        assert [*tmp_path.glob("outputs/gpt_*/checkpoints/last.safetensors")]
        assert cell("print(signal.getsignal(signal.SIGINT) is before)")[::2] == ("True\n", "")
        _, _, error = cell("headscope.train(['model.headz=1'])")
        assert error == "Error: model.headz: there is no such key; did you mean heads?"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
