"""--help and docs/configuration.md show all choices, keys and comments in conf/."""

import re
from pathlib import Path

import pytest
from running import ROOT, Script

from benchmarks.configuration_page import ROOTS, comment_elsewhere, keys_of, page
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


def test_the_configuration_page_is_up_to_date() -> None:
    """To update it: python -m benchmarks.configuration_page > docs/configuration.md"""
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == f"{page()}\n"
