"""The law of a stranger's configuration: it is data. Nothing in it is called or interpolated, it
chooses no place to write, and what it makes a script read is named on the console."""

import copy
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from checkpoint_files import configuration, content, opened, save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import SMALL

from headscope import trained
from headscope.config.parse import parse
from headscope.config.parts import build_part
from headscope.config.training import TrainConfig
from headscope.errors import UserError

OTHERS = ["headscope.load", "headscope.train", "headscope.data.shutil.rmtree"]
OTHERS += ["headscope.data.own_files.TextFiles", "headscope.TextFiles", "headscope.Rotary", "x"]
"""Names of headscope that are no parts, or parts of another group."""

BAITS = ["bait.txt", "hubconf.py"]


def traps(folder):
    """Each would leave a file in `folder`, or read one of BAITS there, if anything evaluated it."""
    marker = folder / "ran"
    for name in BAITS:
        (folder / name).write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    create = f"${{oc.create:{{_target_: pathlib.Path.write_text, _args_: ['{marker}', x]}}}}"
    hub = {"repo_or_dir": str(folder), "model": "x", "source": "local"}
    return [
        *(create, f"\\{create}", f"\\\\{create}", f"${{oc.select:none,{create}}}", "${name}"),
        *("${oc.env:HOME}", "${oc.decode:${oc.env:HOME}}", "${hydra:runtime.cwd}"),
        {"_target_": "os.system", "command": f"touch {marker}"},
        {"_target_": "os.mkdir", "_args_": [str(marker)], "_partial_": False},
        {"_target_": "headscope.trained.checkpoint.Path.mkdir", "self": str(marker)},
        {"_target_": "builtins.open", "_args_": [str(folder / "bait.txt")]},
        {"_target_": "headscope.nn.attention.torch.hub.load"} | hub,
        {"_target_": ["os.mkdir"], "path": str(marker)},
        {"_target_": "hydra.utils.instantiate", "config": {"_target_": "os.mkdir"}},
        {"_args_": [create], "_recursive_": True, "_convert_": "object"},
        [create, {"_target_": "os.mkdir", "path": str(marker)}],
        *({"_target_": target, "path": str(marker)} for target in ("os.mkdir", *OTHERS)),
    ]


def places(config, path=()):
    """The path of every value in nested plain data, groups included."""
    for key, value in config.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def value_at(config, place):
    for key in place:
        config = config[key]
    return config


PLACES = list(places(configuration()))
GROUPS = [place for place in PLACES if isinstance(value_at(configuration(), place), dict)]
IMPORT = {"_target_": "imported_by_a_stranger.Part"}
TRAPS = "traps_of_a_stranger"
touched: list[tuple] = []


def hook(event, arguments):
    """Records what this process opens and calls in the folder of the traps."""
    calls = event.startswith(("open", "os.", "subprocess.", "socket.", "shutil."))
    if calls and arguments and TRAPS in str(arguments[0]):
        touched.append((event, arguments[0]))


sys.addaudithook(hook)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Beside a module that leaves a file when it is imported."""
    folder, modules = tmp_path_factory.mktemp(TRAPS), tmp_path_factory.mktemp("modules")
    (modules / "imported_by_a_stranger.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(modules)
        yield folder


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_trap_anywhere_is_refused_or_stays_text(data, folder):
    trap = data.draw(st.just(IMPORT) | st.sampled_from(traps(folder)))
    place = data.draw(st.sampled_from(GROUPS) | st.sampled_from(PLACES))
    config = copy.deepcopy(configuration())
    if data.draw(st.booleans()):  # a new key in a group
        place = (*place, "x")
        if not isinstance(value_at(config, place[:-1]), dict):
            place = place[:-1]
    value_at(config, place[:-1])[place[-1]] = trap
    file = folder.parent / "trap.safetensors"
    save(content()[0] | {"config": config}, file)
    touched.clear()
    try:
        parsed = parse(TrainConfig, config, composed=False)
        for group in ("optimizer", "schedule", "tokenizer"):
            with suppress(UserError):
                build_part(getattr(parsed, group), group, max_steps=1)
    except UserError:
        parsed = None
    with suppress(UserError):
        trained.load(file)
    assert touched == []
    if parsed is not None:
        kept = asdict(parsed)
        if "_error_" not in str(kept[place[0]]):
            value = value_at(kept, place)
            assert value == trap or trap.items() <= value.items()  # literally, with defaults
    assert not (folder / "ran").exists()


WORDS = [word for word in SMALL if not word.startswith("tokenizer")]
WORDS += ["callbacks=plain", "tokenizer=byte", "trainer.max_steps=2", "data.path=text.txt"]
REACHED = [
    *("data.path", "tokenizer.path", "schedule.cooldown", "logger", "callbacks.mine"),
    *("trainer.profiler", "name", "store_dir", "init_from", "resume", "optimizer.lr", "data"),
    *("callbacks.samples.prompt", "callbacks.attention.text"),
]
"""Where a resumed run uses what its checkpoint says."""


@pytest.fixture
def run(script):
    """A run of two steps, to be changed and resumed."""
    Path("text.txt").write_text("To be, or not to be, that is the question. " * 40)
    script("train", *WORDS, "hydra.run.dir=outputs/run").succeeded()
    Path("outputs/run/summary.json").unlink()
    return Path("outputs/run/checkpoints/last.safetensors")


@pytest.mark.slow
def test_a_resumed_run_evaluates_nothing_and_writes_in_its_folder(script, run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    whole = opened(run)
    before = files(Path())
    for number, place in enumerate(tuple(key.split(".")) for key in REACHED):
        elsewhere = ("../../elsewhere", str(folder / "elsewhere"))[number % 2]
        for trap in (traps(folder)[number % 3], elsewhere):
            changed = copy.deepcopy(whole)
            config = changed["config"]
            group = value_at(config, place[:-1])
            if not isinstance(group, dict):
                continue
            group[place[-1]] = trap
            changed["overrides"] = [f"+{'.'.join(place)}={trap}"]
            save(changed, run)
            said = script("train", "resume=outputs/run", "trainer.max_steps=3")
            assert "Traceback" not in said.err, said.err
            assert sorted(file.name for file in folder.iterdir()) == BAITS
            new = {file for file in files(Path()) - before if not file.startswith("outputs/run/")}
            assert {file for file in new if not file.startswith(("data/", "outputs/"))} == set()
            if place == ("data", "path") and isinstance(trap, str):
                assert f"data.path={trap}" in said.err


def files(folder):
    return {str(file) for file in folder.rglob("*") if file.is_file()}


def save_reading(text, **others):
    """Writes a.safetensors, whose text is this file, and `others` to its configuration."""
    saved, _ = content()
    data = {"_target_": "headscope.TextFiles", "path": text}
    saved["config"] |= {"data": data, **others}
    save(saved, "a.safetensors")


@pytest.mark.usefixtures("pictures_not_drawn")
def test_other_scripts_name_the_file_that_a_checkpoint_makes_them_read(script):
    """And no control character in the name acts on the terminal."""
    Path("odd ${oc.env:HOME} secret.txt").write_text("a text that is long enough " * 20)
    erasing = "[\x1b[2K\r\x1b[1Ao]dd *"  # a glob that matches it, and erases its own line
    save_reading(erasing)
    for words in (("evaluate",), ("analyze", "windows=1", "output_dir=report")):
        said = script(*words, "checkpoint=a.safetensors").succeeded()
        assert "data.path=[\\x1b[2K\\r\\x1b[1Ao]dd *" in said.err
    save_reading("odd ${oc.env:HOME} secret.txt", **{"\x1b[31mbogus\n": 1})
    assert "\x1b" not in script("evaluate", "checkpoint=a.safetensors").refused().err


def test_a_run_with_links_out_of_it_is_not_resumed(script, run):
    Path("victim").mkdir()
    for name in ("checkpoints", "tensorboard", "csv"):
        own = Path("outputs/run", name)
        own.mkdir(exist_ok=True)
        own.rename(f"victim/{name}")
        own.symlink_to(Path("victim", name).resolve())
        before = {file: Path(file).read_bytes() for file in files(Path("victim"))}
        more = ["trainer.max_steps=3", "logger=[tensorboard,csv]"]
        script("train", "resume=outputs/run", *more).refused(f"{name} is a symbolic link")
        assert {file: Path(file).read_bytes() for file in files(Path("victim"))} == before
        own.unlink()
        Path("victim", name).rename(own)
