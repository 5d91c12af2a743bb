"""--help shows all choices, keys and comments in conf/."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, Script

from benchmarks.pages import ROOTS, comment_elsewhere, keys_of
from headscope.cli.conf import CONF
from headscope.cli.help import heading, help_text, sections_of

# All other groups belong to train.
SCRIPT_OF = {"suite": "benchmark", "compare": "compare", "thresholds": "analyze"}
CHOICES = sorted(
    (file.parent.relative_to(CONF).as_posix(), file.stem)
    for file in CONF.glob("*/**/*.yaml")
    if not file.is_relative_to(CONF / "hydra")
)


def test_help_shows_the_usage_of_a_script(script: Script) -> None:
    said = script("train", "--help")
    assert said.code == 0
    assert re.search(r"^  python .*scripts/train\.py", said.out, re.M)
    assert not any(Path().iterdir())


@pytest.mark.parametrize("name", ["train", "benchmark", "compare"])
def test_help_lists_every_choice(name: str) -> None:
    _, _, text = help_text(name, []).partition("as composed from")
    for group, option in CHOICES:
        if SCRIPT_OF.get(group, name) == name:
            [line] = re.findall(rf"^{group}=.*(?:\n    .*)*", text, re.MULTILINE)
            assert option in re.split(r"[\s,=]+", line)


LINES = [*ROOTS, "train data=text", "train data=hub", "compare compare=own", "train ~logger"]


@pytest.mark.parametrize("line", LINES)
def test_every_key_of_a_script_has_a_comment(line: str) -> None:
    name, *words = line.split()
    for keys in sections_of(name, words)[1].values():
        for key in keys:
            assert key.comment, key.name


def test_every_choice_and_its_keys_have_comments() -> None:
    for group, option in CHOICES:
        file = CONF / group / f"{option}.yaml"
        assert heading(file)
        for key in keys_of(file) if group != "experiment" else []:
            assert key.value == {} or key.comment or comment_elsewhere(key.name), key.name


def test_help_follows_the_choices_of_the_command_line() -> None:
    text = help_text("train", ["model=modern", "model/attention=grouped_query", "model.layers=7"])
    for line in (
        r"model=modern, or gpt, gpt2\nThe GPT with newer parts: normalized queries and keys, .*",
        r"  model\.layers=7 +transformer blocks",
        r"  model\.kv_heads=2 +key/value heads per layer; .*",
        r"model/position=rotary, or alibi, .*(\n    .*)?\nRoPE: .*",
        r"  model\.attention\.qk_norm=true +apply RMSNorm to .*",
    ):
        assert re.search(f"^{line}$", text, re.MULTILINE), line


@pytest.mark.slow
def test_help_does_not_import_torch() -> None:
    """Importing torch takes longer than all the rest of --help."""
    code = (
        "import runpy, sys; sys.argv = ['train.py', '--help']\n"
        f"runpy.run_path({str(ROOT / 'scripts' / 'train.py')!r}, run_name='__main__')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
