"""Checks and quotes the arguments of a command line before Hydra parses them.

In Hydra's grammar, commas, quotes, brackets and `=` have special meanings, and most Unicode
characters are errors outside quotes. The user means paths and texts literally, so they are quoted
for Hydra.
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
        "data.template",
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
        "source",
        "compare.choices",
        "patch.clean",
        "patch.corrupted",
        "patch.answers",
        "patch.continuation",
    }
)
"""Keys whose value is taken literally: a text, a path, or (see `LIST_KEYS`) a list of texts."""

LIST_KEYS = frozenset({"stop", "compare.choices", "checkpoints", "patch.answers"})
"""Literal keys whose value is one text or a JSON list of texts."""

TEXT_KEYS = frozenset(
    {"prompt", "stop", "text", "callbacks.attention.text", "callbacks.samples.prompt"}
)
"""Literal keys whose value may be empty."""

HYDRA_KEYS = frozenset({"hydra.run.dir", "hydra.sweep.dir"})
"""Literal keys whose value may contain Hydra's interpolations, ${...}."""

GROUP = re.compile(r"[a-z_/]+")
MULTIRUN = {"-m", "--multirun"}
HELP = {"-h", "--help"}
FLAGS = (
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run"),
    *("--multirun", "--shell-completion", "--config-path", "--config-name", "--config-dir"),
    *("--experimental-rerun", "--info"),
)
"""The long flags of Hydra. Each may be shortened, as in --multi."""
NAME = re.compile(r"[^\W_][\w .+=@-]*")
MAX_NAME_BYTES = 200
"""Maximum length of `name=` in bytes. The name of a run folder also contains the date and time,
and file systems allow 255 bytes in total."""


def literal_arguments(arguments: Sequence[str]) -> list[str]:
    """Quotes the values of `LITERAL_KEYS` for Hydra. The value `null` is not quoted, except as a
    prompt."""
    return [_literal_argument(argument) for argument in arguments]


def _literal_argument(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if not equals or key.lstrip("+") not in LITERAL_KEYS:
        if re.search(r"\d{300}", value):  # more digits than a float can hold
            raise UserError(f"{key}={value[:20]}...: this number has too many digits")
        return argument
    if not value and key not in TEXT_KEYS:
        raise UserError(f"{argument} is empty: give a value, or leave out {key}=")
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
        # The value is not JSON, because the shell has removed the quotes, as in [\n, END].
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
    """The tokenizer that `experiment=` chooses: a list with an argument such as `tokenizer=char`.
    The list is empty if the experiment does not choose a tokenizer."""
    chosen = re.findall(
        r"override /tokenizer: (\w+)", _experiment(value_of(arguments, "experiment") or "")
    )
    return [f"tokenizer={name}" for name in chosen]


def with_words(arguments: Sequence[str], words: Sequence[str]) -> list[str]:
    """Inserts `words`, such as `data=text`, before the first `key=value` of a command line.

    Hydra does not accept a `key=value` between flags, or after a flag that follows another
    `key=value`.
    """
    first = next(
        (
            index
            for index, argument in enumerate(arguments)
            if "=" in argument and not argument.startswith("-")
        ),
        len(arguments),
    )
    return [*arguments[:first], *words, *arguments[first:]]


def _experiment(name: str) -> str:
    file = CONF / "experiment" / f"{name}.yaml"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


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


def check_flags(typed: Sequence[str]) -> None:
    """Raises UserError when an argument begins with -- and is not a flag of Hydra, as when a key is
    written like an option of other programs: `--seed=1`."""
    for argument in typed:
        flag, equals, value = argument.partition("=")
        if flag.startswith("--") and not any(name.startswith(flag) for name in FLAGS):
            word = f"{flag.lstrip('-')[:80]}={value[:80] if equals else 'VALUE'}"
            raise UserError(
                f"{argument[:200]} is not a flag: keys have no --, as in {word}; --help lists all "
                "keys"
            )


def check_name(typed: Sequence[str]) -> None:
    """Raises UserError when `name=` cannot be the first part of the name of a run folder."""
    name = value_of(typed, "name")
    if name is not None and not (NAME.fullmatch(name) and len(name.encode()) <= MAX_NAME_BYTES):
        raise UserError(
            f"name={name} must be usable in the name of a folder: use letters, digits, spaces and "
            f". _ + = @ -, start with a letter or digit, and use up to {MAX_NAME_BYTES} bytes"
        )


def choices_of(group: str) -> list[str]:
    """The choices in a configuration group, such as model/attention: the names of the files in its
    folder."""
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def check_groups(typed: Sequence[str]) -> None:
    """Raises UserError when a configuration group, such as `model/attention=`, is set to a choice
    that does not exist."""
    sweep = any(flag in typed for flag in MULTIRUN)
    for argument in typed:
        key, equals, value = argument.partition("=")
        group = key.lstrip("+~")
        if group == "hydra" and not value.startswith("{"):
            raise UserError(
                f"{argument}: this is a group of keys: set one of its keys with hydra.KEY=value"
            )
        if group.startswith("hydra/"):
            continue  # most of these choices are not in conf/: Hydra and its plugins define them
        if not equals or not GROUP.fullmatch(group) or not (CONF / group).is_dir():
            continue
        options = choices_of(group)
        for option in value.split(",") if sweep else [value]:
            if option not in options:
                none = f", or ~{group} for none" if group == "logger" else ""
                raise UserError(
                    f"{argument[:200]}: there is no {group}/{option[:80]} in conf/; choose one of "
                    f"{', '.join(options)}{none}"
                )


def plain_word(word: str) -> str:
    """Simplifies an argument. For the keys in `LITERAL_KEYS`, which always exist, `+key=` and
    `++key=` become `key=`. `logger=null` becomes `~logger`."""
    bare = word.lstrip("+")
    if bare.partition("=")[0] in LITERAL_KEYS:
        return bare
    return "~logger" if word == "logger=null" else word


def flags_first(arguments: Sequence[str]) -> list[str]:
    """Moves the flag -m to the front, because Hydra does not recognize it between two arguments
    `key=value`."""
    flags = [argument for argument in arguments if argument in MULTIRUN]
    return [*flags[:1], *(argument for argument in arguments if argument not in MULTIRUN)]
