"""The words of a command line, before Hydra reads them.

Hydra's grammar gives commas, quotes, brackets, `=` and most of Unicode a meaning of their own.
Paths and texts are meant literally, so they are quoted first.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from headscope.errors import UserError

CONF = Path(__file__).parents[3] / "conf"

LITERAL_KEYS = frozenset(
    {
        "name",
        "prompt",
        "stop",
        "text",
        "output_dir",
        "checkpoint",
        "checkpoints",
        "other",
        "resume",
        "init_from",
        "store_dir",
        "data.path",
        "data.name",
        "data.subset",
        "data.column",
        "data.train_split",
        "data.validation_split",
        "data.revision",
        "tokenizer.path",
        "callbacks.attention.text",
        "callbacks.samples.prompt",
        "suite.nanogpt",
        "hydra.run.dir",
        "hydra.sweep.dir",
        "output",
        "compare.choices",
    }
)
"""Keys whose value is a text, a path or, in `LIST_KEYS`, a list of texts."""

LIST_KEYS = frozenset({"stop", "compare.choices", "checkpoints"})
"""Of `LITERAL_KEYS`, the ones whose value is one text, or a JSON list of texts."""

TEXT_KEYS = frozenset(
    {"prompt", "stop", "text", "callbacks.attention.text", "callbacks.samples.prompt"}
)
"""Of `LITERAL_KEYS`, the ones that may be empty."""

HYDRA_KEYS = frozenset({"hydra.run.dir", "hydra.sweep.dir"})
"""Of `LITERAL_KEYS`, the ones in which an interpolation, ${...}, keeps its meaning."""


GROUP = re.compile(r"[a-z_/]+")
MULTIRUN = {"-m", "--multirun"}
HELP = {"-h", "--help"}
NAME = re.compile(r"[^\W_][\w .+=@-]*")
LONGEST_NAME = 200
"""Bytes: a folder's name has at most 255, and the date and time follow."""


def literal_arguments(arguments: Sequence[str]) -> list[str]:
    """The same command line with the values of `LITERAL_KEYS` quoted for Hydra.

    `null` stays what it means to Hydra, but for a prompt.
    """
    return [_literal_argument(argument) for argument in arguments]


def _literal_argument(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if not equals or key.lstrip("+") not in LITERAL_KEYS:
        if re.search(r"\d{300}", value):  # Python converts none with more than 308
            raise UserError(f"{key}={value[:20]}...: this number is too long")
        return argument
    if not value and key not in TEXT_KEYS:
        raise UserError(f"{argument} is empty: give it a value, or leave it out")
    if value == "null" and not key.endswith("prompt"):
        return argument
    if key in HYDRA_KEYS and "${" in value:
        return argument
    if key in LIST_KEYS:
        return f"{key}=[{','.join(map(quote, _texts(key, value)))}]"
    return f"{key}={quote(value)}"


def _texts(key: str, value: str) -> list[str]:
    if not (value.startswith("[") and value.endswith("]")):
        return [value]
    try:
        texts = json.loads(value)
    except ValueError:
        # A shell has taken the quotes away: [\n, END]
        texts = [_unescaped(text.strip()) for text in value[1:-1].split(",")]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f'{key}={value} must be a list of texts, such as {key}=\'["a", "b"]\'')
    return texts


def _unescaped(text: str) -> str:
    try:
        return json.loads(f'"{text}"')
    except ValueError:
        return text


def quote(text: str) -> str:
    """A Hydra value that OmegaConf reads as exactly `text`.

    In quotes, Hydra unescapes a quote and the backslashes right before one; OmegaConf then
    unescapes `${` and the backslashes right before it, and leaves all others alone.
    """
    text = re.sub(r"(\\*)'", lambda found: 2 * found[1] + r"\'", escape(text))
    text = re.sub(r"\\+\Z", lambda found: 2 * found[0], text)
    return f"'{text}'"


def escape(text: str) -> str:
    """What OmegaConf reads as exactly `text`, with no interpolation in it."""
    return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", text)


def value_of(arguments: Sequence[str], key: str) -> str | None:
    """What the last `key=...` of a command line (not yet quoted) says, or None."""
    values = [
        argument.partition("=")[2] for argument in arguments if argument.startswith(f"{key}=")
    ]
    return values[-1] if values and values[-1] != "null" else None


def implied_data(arguments: Sequence[str]) -> list[str]:
    """`data=text` or `data=hub` where `data.path=` or `data.name=` stands without a choice of data.

    A recipe (`experiment=`) may have chosen; then the path is its local copy.
    """
    arguments = [argument.lstrip("+") for argument in arguments]
    if any(argument.startswith("data=") for argument in arguments):
        return []
    experiment = value_of(arguments, "experiment")
    if experiment and "override /data:" in _experiment(experiment):
        return []
    for key, choice in (("data.path", "text"), ("data.name", "hub")):
        if any(argument.startswith(f"{key}=") for argument in arguments):
            return [f"data={choice}"]
    return []


def tokenizer_of_experiment(arguments: Sequence[str]) -> list[str]:
    """`tokenizer=char` and the like, where `experiment=` names a recipe that chooses one."""
    chosen = re.findall(
        r"override /tokenizer: (\w+)", _experiment(value_of(arguments, "experiment") or "")
    )
    return [f"tokenizer={name}" for name in chosen]


def with_words(arguments: Sequence[str], words: Sequence[str]) -> list[str]:
    """`words` put before the first `key=value` of a command line: among its flags, or after a flag
    that stands between, Hydra would not take them."""
    first = next(
        (
            place
            for place, argument in enumerate(arguments)
            if "=" in argument and not argument.startswith("-")
        ),
        len(arguments),
    )
    return [*arguments[:first], *words, *arguments[first:]]


def _experiment(name: str) -> str:
    file = CONF / "experiment" / f"{name}.yaml"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def check_encoding(arguments: Sequence[str]) -> None:
    """Raises UserError when a word, or the current folder's path, cannot be kept in a file.

    Configurations and checkpoints are UTF-8, and Hydra interpolates the path of the current folder.
    """
    for what, text in [*(("argument", word) for word in arguments), ("folder", os.getcwd())]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"the {what} {os.fsencode(text)!r} is not valid UTF-8: rename the file or folder"
            ) from None
    if "${" in os.getcwd():
        raise UserError(f"{os.getcwd()}: the folder's name has ${{ in it, which Hydra interprets")


def check_name(typed: Sequence[str]) -> None:
    """Raises UserError when `name=` cannot begin the name of a folder in outputs/."""
    name = value_of(typed, "name")
    if name is not None and not (NAME.fullmatch(name) and len(name.encode()) <= LONGEST_NAME):
        raise UserError(
            f"name={name} begins a folder's name: give up to {LONGEST_NAME} bytes of letters, "
            "digits, spaces and . _ + = @ -, the first one a letter or digit"
        )


def choices_of(group: str) -> list[str]:
    """The names of the files in a group of conf/, such as model/attention."""
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def check_groups(typed: Sequence[str]) -> None:
    """Raises UserError when `model=`, `model/attention=` or another group of conf/ is set to what
    is no choice of it."""
    sweep = any(flag in typed for flag in MULTIRUN)
    for argument in typed:
        key, equals, value = argument.partition("=")
        group = key.lstrip("+~")
        if group == "hydra" and not value.startswith("{"):
            raise UserError(
                f"{argument}: this is a group of keys; set one of them, hydra.KEY=value"
            )
        if not equals or not GROUP.fullmatch(group) or not (CONF / group).is_dir():
            continue
        options = choices_of(group)
        for option in value.split(",") if sweep else [value]:
            if option not in options:
                none = f"; leave it out by ~{group}" if group == "logger" else ""
                raise UserError(
                    f"{argument[:200]}: there is no {group}/{option[:80]} in conf/; choose one of "
                    f"{', '.join(options)}{none}"
                )


def plain_word(word: str) -> str:
    """The usual form of a word: `+key=` and `++key=` of a literal key, which always exists, is
    `key=`; `logger=null` is `~logger`."""
    bare = word.lstrip("+")
    if bare.partition("=")[0] in LITERAL_KEYS:
        return bare
    return "~logger" if word == "logger=null" else word


def flags_first(arguments: Sequence[str]) -> list[str]:
    """The same command line with -m in front: between keys, Hydra does not know it."""
    found = [argument for argument in arguments if argument in MULTIRUN]
    return [*found[:1], *(argument for argument in arguments if argument not in MULTIRUN)]
