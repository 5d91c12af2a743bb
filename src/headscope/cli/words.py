"""Checks and quotes the arguments of a command line before Hydra parses them.

In Hydra's grammar, commas, quotes, brackets and `=` have special meanings, and most Unicode
characters are errors outside quotes. The user means paths and texts literally, so they are quoted
for Hydra.
"""

import ast
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode

from headscope.config import CONF
from headscope.config.parse import texts_in
from headscope.config.training import TrainConfig
from headscope.errors import UserError

HYDRA_TEXTS = {"hydra.run.dir": False, "hydra.sweep.dir": False}
"""Texts among Hydra's own keys. Their values may contain Hydra's interpolations, ${...}."""

MAY_BE_EMPTY = ("prompt", "stop", "text")
"""Last words of the text keys whose value may be empty."""

VALUE = re.compile(r"""\s*(?:("[^"]*"|'[^']*'|choice\([^()]*\))|([^,]*?))\s*,""")
"""A value in a sweep, and the comma after it: either what Hydra reads, or a literal text."""

GROUP = re.compile(r"[a-z_/]+")
MULTIRUN = {"-m", "--multirun"}
HELP = {"-h", "--help"}
FLAGS = (
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run"),
    *("--multirun", "--shell-completion", "--config-path", "--config-name", "--config-dir"),
    *("--experimental-rerun", "--info"),
)
"""The long flags of Hydra. Each may be shortened, as in --multi."""


def literal_arguments(arguments: Sequence[str], schema: type | None = None) -> list[str]:
    """Quotes texts for Hydra: the values of all keys that are texts in `schema` (by default, that
    of scripts/train.py), except those that are a `Choice`. The value `null` is not quoted, except
    as a prompt. In a sweep, commas separate texts, except in quotes."""
    texts = HYDRA_TEXTS | dict(texts_in(schema or TrainConfig))
    sweep = bool(MULTIRUN & {*arguments}) and not HELP & {*arguments}
    return [_literal_argument(argument, texts, sweep) for argument in arguments]


def _literal_argument(argument: str, texts: Mapping[str, bool], sweep: bool = False) -> str:
    key, equals, value = argument.partition("=")
    if not equals or key not in texts:
        if re.search(r"\d{300}", value):  # more digits than a float can hold
            raise UserError(f"{key}={value[:20]}...: this number has too many digits")
        return argument
    if sweep and key not in HYDRA_TEXTS and key != "parts" and not texts[key]:
        return f"{key}=" + ",".join(
            of_hydra or _literal_argument(f"{key}={text}", texts).partition("=")[2]
            for of_hydra, text in VALUE.findall(f"{value},")
        )
    last = key.rpartition(".")[2]
    if not value and last not in MAY_BE_EMPTY:
        raise UserError(f"{argument} is empty: give a value, or leave out {key}=")
    if value == "null" and last != "prompt":
        return argument
    if key in HYDRA_TEXTS and "${" in value:
        return argument
    if texts[key]:
        return f"{key}=[{','.join(map(quote, _texts(key, value)))}]"
    return f"{key}={quote(value)}"


def _texts(key: str, value: str) -> list[str]:
    if not (value.startswith("[") and value.endswith("]")):
        return [value]
    # Without quotes, which a shell removes, as in [\n, END], it is no list of JSON or Python.
    texts: Any = [_unescaped(text.strip()) for text in value[1:-1].split(",")]
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError):
            texts = read(value)
            break
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f'{key}={value} must be a list of texts, such as {key}=\'["a", "b"]\'')
    return texts


def _unescaped(text: str) -> str:
    try:
        return json.loads(f'"{text}"')
    except ValueError:
        return text


def quote(text: str) -> str:
    """Quotes `text` so that Hydra and OmegaConf together return exactly `text`.

    Inside quotes, Hydra unescapes a quote and the backslashes directly before it. Then OmegaConf
    unescapes `${` and the backslashes directly before it. Both keep all other backslashes.
    """
    text = re.sub(r"(\\*)'", lambda found: 2 * found[1] + r"\'", escape(text))
    text = re.sub(r"\\+\Z", lambda found: 2 * found[0], text)
    return f"'{text}'"


def escape(text: str) -> str:
    """Escapes `text` so that OmegaConf returns exactly `text`, without interpolation."""
    return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", text)


def value_of(arguments: Sequence[str], key: str) -> str | None:
    """The value of the last `key=...` in unquoted arguments. None if the value is `null`, or if the
    key does not occur."""
    values = [
        argument.partition("=")[2] for argument in arguments if argument.startswith(f"{key}=")
    ]
    return values[-1] if values and values[-1] != "null" else None


def implied_data(arguments: Sequence[str]) -> list[str]:
    """Returns `data=text` if the arguments contain `data.path=`, and `data=hub` if they contain
    `data.name=`. The result is a list of arguments.

    Returns an empty list if the arguments or the experiment (`experiment=`) already choose `data`.
    """
    keys = {argument.lstrip("+").partition("=")[0] for argument in arguments}
    implied = [
        choice for key, choice in (("data.path", "text"), ("data.name", "hub")) if key in keys
    ]
    if not implied or "data" in keys or "data" in choices_of_experiment(arguments):
        return []
    return [f"data={implied[0]}"]


def choices_of_experiment(arguments: Sequence[str]) -> dict[str, str]:
    """The choices that `experiment=` makes for groups, such as {"tokenizer": "char"}. Empty in a
    sweep over experiments."""
    name = value_of(arguments, "experiment")
    if name is None or "," in name:
        return {}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        chosen = loader.compute_defaults_list(
            "train", [f"experiment={name}"], RunMode.RUN
        ).overrides
    return {
        group: str(chosen.override_choices[group])
        for group, origin in chosen.override_metadata.items()
        if origin.containing_config_path == f"experiment/{name}"
    }


def with_words(arguments: Sequence[str], words: Sequence[str]) -> list[str]:
    """Inserts `words`, such as `data=text`, before the first `key=value` of a command line.

    Hydra does not accept a `key=value` between flags, or after a flag that follows another
    `key=value`.
    """
    found = (index for index, argument in enumerate(arguments) if is_override(argument))
    first = next(found, len(arguments))
    return [*arguments[:first], *words, *arguments[first:]]


def is_override(word: str) -> bool:
    """Whether an argument is neither a flag nor the value of a flag."""
    return word.startswith("~") or ("=" in word and not word.startswith("-"))


def check_encoding(arguments: Sequence[str]) -> None:
    """Raises UserError when an argument or the path of the current folder is not valid UTF-8. Both
    are stored in configurations and checkpoints, which need valid UTF-8. Also raises UserError when
    the path contains `${`."""
    for kind, text in [*(("argument", word) for word in arguments), ("folder", os.getcwd())]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"the {kind} {os.fsencode(text)!r} is not valid UTF-8: rename the file or folder"
            ) from None
    if "${" in os.getcwd():
        raise UserError(
            f"{os.getcwd()}: the path contains ${{, which Hydra would interpolate: rename the "
            "folder"
        )


def check_flags(typed: Sequence[str], key: str = "data.path") -> None:
    """Raises UserError when an argument begins with -- and is not a flag of Hydra, as when a key is
    written like an option of other programs: `--seed=1`. Also when it is a file without a key, such
    as `key`."""
    for before, argument in pairwise(["", *typed]):
        flag, equals, value = argument.partition("=")
        no_key = not equals and not argument.startswith(("-", "~"))
        if no_key and not before.startswith("-") and looks_like_path(argument):
            raise UserError(
                f"{argument[:200]} has no key: write key=value, such as {key}={argument[:200]}"
            )
        if flag.startswith("--") and not any(name.startswith(flag) for name in FLAGS):
            word = f"{flag.lstrip('-')[:80]}={value[:80] if equals else 'VALUE'}"
            raise UserError(
                f"{argument[:200]} is not a flag: keys have no --, as in {word}; --help lists all "
                "keys"
            )


def conf_folders() -> list[Path]:
    """Where Hydra looks for choices: in headscope's own conf/, in conf/ of the current folder, and
    in the folder that this process was given with --config-dir. conf/ is not used if it has
    settings of Hydra, as in another checkout: the current folder may come from a stranger, and
    these settings can run code."""
    used = Path("conf").is_dir() and not Path("conf/hydra").exists()
    folders = [CONF, *([Path("conf").absolute()] if used else [])]
    for word, following in pairwise([*sys.argv, ""]):
        flag, equals, value = word.partition("=")
        if flag == "-cd" or (flag.startswith("--config-d") and "--config-dir".startswith(flag)):
            folders.append(Path(value if equals else following).absolute())
            if not folders[-1].is_dir():
                raise UserError(f"--config-dir={value if equals else following} is not a folder")
    return list({folder.resolve(): folder for folder in folders}.values())


def choices_of(group: str) -> list[str]:
    """The choices in a configuration group, such as model/attention: the names of the files in its
    folders."""
    files = [file for folder in conf_folders() for file in (folder / group).glob("*.yaml")]
    return sorted({file.stem for file in files})


def conf_files(name: str) -> list[Path]:
    """The files of a choice, such as model/attention/multi_head. More than one is a mistake."""
    files = [folder / f"{name}.yaml" for folder in conf_folders()]
    return [file for file in files if file.is_file()]


class OwnChoices(SearchPathPlugin):
    """Lets Hydra find the choices in `conf_folders`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in conf_folders()[1:]:
            search_path.append("headscope", f"file://{folder}")


def check_groups(typed: Sequence[str]) -> None:
    """Raises UserError when a configuration group, such as `model/attention=`, is set to a choice
    that does not exist. Says it if conf/ in the current folder is not used."""
    if Path("conf").is_dir() and not any(map(Path("conf").samefile, conf_folders())):
        line = (
            "conf/ is not read: conf/hydra has settings of Hydra, which can run code; to use it, "
        )
        print(f"{line}add --config-dir=conf", file=sys.stderr)
    sweep = any(flag in typed for flag in MULTIRUN)
    searched = any(word.startswith("hydra.searchpath=") for word in typed)  # then Hydra tells it
    for argument in typed:
        key, equals, value = argument.partition("=")
        group = key.lstrip("+~")
        if group == "hydra" and not value.startswith("{"):
            raise UserError(
                f"{argument}: this is a group of keys: set one of its keys with hydra.KEY=value"
            )
        if group.startswith("hydra/"):
            continue  # most of these choices are not in conf/: Hydra and its plugins define them
        if not equals or not GROUP.fullmatch(group) or not is_group(argument):
            continue
        options = choices_of(group)
        for option in value.split(",") if sweep else [value]:
            if len(found := conf_files(f"{group}/{option}")) > 1:
                raise UserError(f"{argument[:200]}: rename {found[1]}: {found[0]} has its name")
            if option not in options and not searched:
                none = f", or ~{group} for none" if group == "logger" else ""
                if group == "data" and looks_like_path(option):
                    none = f"; to read your own text, write data.path={option[:200]}"
                raise UserError(
                    f"{argument[:200]}: there is no {group}/{option[:80]} in conf/; choose one of "
                    f"{', '.join(options)}{none}"
                )


def looks_like_path(word: str) -> bool:
    """Whether the user probably means a file or a folder."""
    return "." in word or os.path.exists(word)


def plain_word(word: str) -> str:
    """Simplifies an argument: `+key=` and `++key=` become `key=`, because every key exists, and
    `logger=null` becomes `~logger`."""
    bare = word.lstrip("+")
    if bare.startswith("hydra"):
        return word
    return "~logger" if bare == "logger=null" else bare


def forced(arguments: Sequence[str]) -> list[str]:
    """Writes each `key=value` as `++key=value`. So Hydra composes every run of a sweep, and a key
    that one of them does not have is an error of that run only."""
    return [
        f"++{word}" if re.match(r"(?!hydra\.)[\w.]+=", word) and not is_group(word) else word
        for word in arguments
    ]


def is_group(argument: str) -> bool:
    """Whether an argument chooses from a configuration group, such as `model/attention=`."""
    group = argument.partition("=")[0].lstrip("+~")
    return any((folder / group).is_dir() for folder in conf_folders())


def flags_first(arguments: Sequence[str]) -> list[str]:
    """Moves the flag -m to the front, because Hydra does not recognize it between two arguments
    `key=value`."""
    flags = [argument for argument in arguments if argument in MULTIRUN]
    return [*flags[:1], *(argument for argument in arguments if argument not in MULTIRUN)]
