"""Words of the command line have the meaning that a user expects, and --help and
docs/configuration.md show all choices, keys and comments in conf/."""

import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from composing import CHOICES, ROOT_OF, SCRIPTS, composed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from refusals import refused
from running import ROOT, SMALL, Script

import headscope
from benchmarks.pages import ROOTS, comment_elsewhere
from benchmarks.pages import keys_of as keys_in
from benchmarks.runner import suite
from headscope.cli.conf import CONF, choices_of
from headscope.cli.help import heading, help_text, sections_of
from headscope.cli.words import LISTS_OF_TEXTS, PATHS, TEXTS, implied_data, quoted, with_home
from headscope.config.parse import alternatives
from headscope.config.parts import GROUPS, Part, arguments_of, defaults_in_conf, keys_of, locate


def typed(script: str, *arguments: str) -> DictConfig:
    return composed(*quoted(arguments), root=script)


def texts_in(types: dict[str, Any], prefix: str = "", group: str = "") -> Iterator[tuple[str, Any]]:
    """The full names and types of the keys that are texts or lists of texts."""
    for name, expected in types.items():
        inner = f"{group}{name}"
        for each in alternatives(expected):
            if each in (str, list[str]):
                yield f"{prefix}{name}", each
            elif each is Part or name == "callbacks" or (group and inner in GROUPS):
                for target, own in defaults_in_conf(inner).items():
                    choice = f"{own['choice']}." if name == "callbacks" else ""
                    keys = keys_of(locate(target), inner).values()
                    inside = {key.name: key.annotation for key in keys}
                    yield from texts_in(inside, f"{prefix}{name}.{choice}", f"{inner}/")
            elif is_dataclass(each) and isinstance(each, type):
                yield from texts_in(get_type_hints(each), f"{prefix}{name}.")


def test_the_list_of_texts_has_all_keys_that_are_texts() -> None:
    found = {key: each for s in SCRIPTS.values() for key, each in texts_in(get_type_hints(s))}
    for name in choices_of("suite"):
        keys = arguments_of(suite(name, None)).values()
        found |= dict(texts_in({key.name: key.annotation for key in keys}, "suite."))
    lists = {key for key, each in found.items() if each == list[str]} | {"parts"}
    assert lists == {*LISTS_OF_TEXTS}
    assert found.keys() - lists == {*TEXTS} - {"hydra.run.dir", "hydra.sweep.dir"}


@settings(max_examples=20)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    | st.text(alphabet="\\'\"${}[]a", max_size=8)
)
@example("What's next (not) 中文! [1, 2] {a: b}, x=y ")
@example("null")
@example("42")
@example("\\' \\\\' ${oc.env:HOME} \\${seed} \\\\${seed}")
@example("a backslash before the last line's end \\\n")
def test_any_text_is_taken_literally(text: str) -> None:
    assert typed("sample", f"prompt={text}").prompt == text


PATH = "runs/lr=1e-3, a (copy)/it's"
LITERAL = [
    ("explore", "allowed_hosts", "a.example", ["a.example"]),
    ("explore", "allowed_hosts", "*.b.example", ["*.b.example"]),
    ("explore", "allowed_hosts", "[a.example,*.b.example]", ["a.example", "*.b.example"]),
    ("explore", "allowed_hosts", '["a.example", "[::1]"]', ["a.example", "[::1]"]),
    ("explore", "allowed_hosts", "[]", []),
    *(("train", key, PATH, PATH) for key in ("resume", "init_from", "store_dir")),
    ("train", "callbacks.attention.text", PATH, PATH),
    ("train", "data.path", PATH, PATH),
    ("sample", "stop", r'["\n", "a, b"]', ["\n", "a, b"]),
    ("sample", "stop", "The end, or not", ["The end, or not"]),
    # bash turns ["\n", "END"] into the first of these. The second is a text, not a list.
    ("sample", "stop", r"[\n, END]", ["\n", "END"]),
    ("sample", "stop", "[sic", ["[sic"]),
    ("sample", "checkpoint", "null", None),
    ("train", "trainer.precision", "32-true", "32-true"),
    ("train", "model.heads", "1", 1),
]


@pytest.mark.parametrize(("script", "key", "word", "value"), LITERAL)
def test_texts_and_lists_of_texts_need_no_quotes(script, key, word, value) -> None:
    data = ["data=text"] if key == "data.path" else []
    assert OmegaConf.select(typed(script, *data, f"{key}={word}"), key) == value


@pytest.mark.parametrize("key", PATHS)
def test_a_tilde_is_the_home_folder_in_every_path(key, monkeypatch) -> None:
    assert key in (*TEXTS, *LISTS_OF_TEXTS)
    monkeypatch.setenv("HOME", "/home/it's me")
    assert with_home(f"{key}=~/a~b,~/c~") == f"{key}=/home/it's me/a~b,/home/it's me/c~"
    assert with_home(f"+{key}=['~/a', \"~\"]") == f"+{key}=['/home/it's me/a', \"~\"]"
    assert with_home(f"{key}=[~/a, ~/b ~/c]") == f"{key}=[/home/it's me/a, /home/it's me/b ~/c]"
    assert with_home(f"{key}=~") == f"{key}=/home/it's me"
    for same in (f"~{key}", f"{key}=a/~/b", "prompt=~/a"):
        assert with_home(same) == same


@pytest.mark.usefixtures("pictures_not_drawn")
def test_the_home_folder_is_named_by_a_tilde_in_every_path(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line, in a file in conf/, and in a sweep."""
    Path("home").mkdir()
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    Path("home/my.txt").write_text("All that a text needs to be. " * 200)
    Path("home/my_parts.py").write_text("")
    Path("conf/data").mkdir(parents=True)
    Path("conf/data/mine.yaml").write_text("defaults: [text, _self_]\npath: ~/my.txt\n")
    train = ["train", *SMALL[1:], "tokenizer=byte", "trainer.max_steps=1", "callbacks=plain"]
    train += ["~logger", "parts=['~/my_parts.py']", "store_dir='~/data'"]  # for a sweep
    alone = [*train[:-2], "parts=[~/my_parts.py]", "store_dir=~/data"]
    run, exported = "~/runs/one", "~/exported"
    for words in (
        [*alone, "data.path=~/my.txt", f"hydra.run.dir={run}"],
        ["train", f"resume={run}", "trainer.max_steps=2", "store_dir=~/data"],
        [*alone, "data=mine", f"init_from={run}@2", "hydra.run.dir=~/runs/two"],
        [*train, "-m", "seed=1,2", "data.path='~/my.txt'", "hydra.sweep.dir=~/runs/swept"],
        ["sample", f"checkpoint={run}", "max_new_tokens=1", "parts=~/my_parts.py"],
        ["evaluate", f"checkpoint={run}", "data=text", "data.path=~/*.txt"],
        ["analyze", "output_dir=~/report", f"runs=[{run},~/runs/two]"],
        ["convert", f"checkpoint={run}", "to=safetensors", f"output={exported}"],
    ):
        script(*words).succeeded()
    assert sorted(path.name for path in Path("home/runs").iterdir()) == ["one", "swept", "two"]
    script("train", "data.path=~/absent", "hydra.run.dir=~/runs/three").refused("/home/absent")
    here = {path.name for path in Path().iterdir()}
    assert here <= {"home", "conf", "outputs"}
    assert not Path("home/runs/three").exists()


def test_words_before_a_key_stay_and_a_list_has_only_texts() -> None:
    for plus in ("+", "++"):
        words = [f"{plus}data.path=a b", "~data.path"]
        assert quoted(words) == [f"{plus}data.path='a b'", "~data.path"]
    with pytest.raises(ValueError, match=r"stop=\[1\]"):
        quoted(["stop=[1]"])


@pytest.mark.parametrize(
    ("words", "implied"),
    [
        ("data.path=my.txt", ["data=text"]),
        ("++data.path=my.txt", ["data=text"]),
        ("data.name=a/b", ["data=hub"]),
        ("data=tinyshakespeare data.path=my.txt", []),
        ("experiment=nanogpt_cpu data.path=my.txt", []),
        ("experiment=best_sotu data.path=my.txt", ["data=text"]),
        ("model.heads=8", []),
        ("experiment=nanogpt_cpu,speedrun_cpu data.path=my.txt", []),
        ("experiment=heads,best_sotu data.path=my.txt", ["data=text"]),
        ("experiment=choice(nanogpt_cpu,speedrun_cpu) data.path=my.txt", []),
        ("experiment=glob(nano*) data.path=my.txt", []),
        ("experiment=nanogpt_cpu,heads data=text data.path=my.txt", []),
    ],
)
def test_a_data_path_implies_the_choice_of_data(words: str, implied: list[str]) -> None:
    assert implied_data(words.split()) == implied


def test_a_data_path_is_refused_if_only_some_of_the_swept_experiments_choose_the_data() -> None:
    for value in ("nanogpt_cpu,heads", "glob(*_cpu),heads"):
        with refused("experiment=", "nanogpt_cpu", "data="):
            implied_data([f"experiment={value}", "data.path=my.txt"])


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES.remove(ROOT / "docs" / "own_parts.md")  # see tests/test_own_parts.py
OURS = ("scripts/", "tests/", ".ci/", "-m")
"""How our commands begin, after `python` or `bash`; some pages quote those of other projects."""
ENDS = {"|", "&&", "<", ">"}
"""Where bash ends the words of a command."""


def commands_of(page: Path) -> Iterator[list[str]]:
    """The words of every command on a page that starts a file or a module of ours."""
    text = page.read_text().replace("outputs/<run>", "outputs/run").replace("\\\n", " ")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`((?:python|bash|headscope) [^`\n]+)`", text)
    for line in "\n".join([*blocks, *inline]).splitlines():
        if re.search(r"\b(python|bash|headscope) ", line):
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.wordchars += "@"  # outputs/<run>@300
            for is_end, words in itertools.groupby(lexer, ENDS.__contains__):
                command = [word for word in words if word != "time"]
                ours = not is_end and command[0] in ("python", "bash")
                if ours and command[1].startswith(OURS):
                    yield command[1:]
                if not is_end and command[0] == "headscope" and command[1][0] not in "-C(":
                    yield [f"scripts/{command[1]}.py", *command[2:]]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_docs_composes(page: Path) -> None:
    for program, *arguments in commands_of(page):
        assert_composes(program, arguments)


def test_every_command_in_readme_composes_and_those_of_all_pages_are_found() -> None:
    test_every_command_in_the_docs_composes(PAGES[0])
    commands = [words for page in PAGES for words in commands_of(page)]
    scripts = {Path(words[0]).stem for words in commands}
    assert {"train", "sample", "evaluate", "analyze", "compare", "benchmark"} <= scripts
    assert len(commands) > 60


def assert_composes(program: str, arguments: list[str]) -> None:
    if program == "-m":
        assert importlib.util.find_spec(arguments[0])
        return
    assert (ROOT / program).is_file()
    script = Path(program)
    if script.parent.name == "scripts" and script.suffix == ".py":
        if "-m" in arguments:  # the first run of a sweep
            values = re.compile(r"(?:choice|interval)\((.*)\)")  # of Hydra's sweepers
            arguments = [values.sub(r"\1", word).partition(",")[0] for word in arguments]
            arguments = [word for word in arguments if not word.startswith("hydra")]
        arguments = [word for word in arguments if "=" in word]
        config = typed(script.stem, *arguments, *implied_data(arguments))
        if any(word.startswith("compare.choices=") for word in arguments):
            for choice in config.compare.choices:
                typed("train", *choice.split())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["| head -1", ">&-", ">&- 2>&- <&-"])
def test_a_reader_that_ends_and_a_closed_stream_are_no_bug(how: str, tmp_path: Path) -> None:
    """Also while a run prints. What it prints is written into none of its files."""
    (tmp_path / "my.txt").write_text("All that a text needs to be. " * 200)
    words = " ".join([*SMALL[1:], "data.path=my.txt", "trainer.max_steps=3"])
    for command, end in (
        (f"train.py {words} hydra.run.dir=run", how.removeprefix("| head -1")),
        (f"train.py {words}", how),
        ("sample.py checkpoint=run max_new_tokens=400 prompt=All", how),
        ("sample.py checkpoint=run max_new_tokens=4 prompt=-", how),
        ("train.py --cfg job", how),
    ):
        line = f"'{sys.executable}' '{ROOT}'/scripts/{command} {end}"
        options = {"stdin": subprocess.DEVNULL, "capture_output": True}
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, **options)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr
        assert b"BrokenPipe" not in done.stderr
    headscope.load(tmp_path / "run/checkpoints/best.safetensors")


# --- --help ---


@pytest.mark.parametrize("name", ["train", "benchmark", "compare"])
def test_help_lists_every_choice(name: str) -> None:
    _, _, text = help_text(name, []).partition("as composed from")
    for group, option in CHOICES:
        if ROOT_OF.get(group, name) == name:
            [line] = re.findall(rf"^{group}=.*(?:\n    .*)*", text, re.MULTILINE)
            assert option in re.split(r"[\s,=]+", line)


LINES = [*ROOTS, "train data=text", "train data=hub", "compare compare=own", "train ~logger"]


@pytest.mark.parametrize("line", LINES)
def test_every_key_of_a_script_has_a_comment(line: str) -> None:
    name, *words = line.split()
    for keys in sections_of(name, words)[1].values():
        for key in keys:
            assert key.comment, key.name


@pytest.mark.parametrize(
    "line", [*LINES, *(f"train experiment={each}" for each in choices_of("experiment"))]
)
def test_help_shows_what_the_run_gets(line: str) -> None:
    """With the same words, each key has the same value."""
    name, *words = line.split()
    words += ["name=ours"] if name in ("train", "compare") else []
    run: Any = OmegaConf.to_container(composed(*words, root=name), resolve=True)
    shown = [key for keys in sections_of(name, words)[1].values() for key in keys]
    for key in shown:
        value = run
        for part in key.name.split("."):
            value = value[part]
        assert key.value in ({}, value), key.name


def test_every_choice_and_its_keys_have_comments() -> None:
    for group, option in CHOICES:
        file = CONF / group / f"{option}.yaml"
        assert heading(file)
        for key in keys_in(file) if group != "experiment" else []:
            assert key.value == {} or key.comment or comment_elsewhere(key.name), key.name
