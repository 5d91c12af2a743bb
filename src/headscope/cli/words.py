"""The words of a command line, before Hydra parses them.

In Hydra's grammar, commas, quotes, brackets and `=` have special meanings. The user means paths and
texts literally, so they are quoted for Hydra, except in a sweep, where its grammar holds.
"""

import argparse
import ast
import fnmatch
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser

from headscope.cli.conf import choices_of, chosen_by_experiment, conf_files, is_group
from headscope.errors import UserError

OF_SWEEPS = ("hydra/sweeper", "hydra.sweep", "hydra/launcher", "hydra.launcher")

WRITES_NOTHING = ["hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=disabled"]
"""Overrides with which Hydra makes no folder and writes no file."""


def parsed(words: Sequence[str], config_name: str) -> argparse.Namespace:
    """The words of a command line as Hydra parses them: its flags, and `overrides`. Raises
    UserError when a word is neither, such as `--seed=1`, or a file without a key."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserError(f"{word!a} is not valid UTF-8: rename the file") from None
    parser: Any = get_args_parser()
    parser.error = refuse
    args, unknown = parser.parse_known_intermixed_args(words)
    args.multirun |= "hydra.mode=MULTIRUN" in words
    for word in unknown:
        key, equals, value = word.lstrip("-")[:80].partition("=")
        plain = f"{key}={value if equals else 'VALUE'}"
        raise UserError(f"{word[:200]} is not a flag: keys have no --, as in {plain}; see --help")
    key = "data.path" if config_name in ("train", "compare") else "checkpoint"
    for word in args.overrides:
        if "=" not in word and ("." in word or os.path.exists(word)) and word[0] != "~":
            example = f"{key}={word[:200]}" if os.path.exists(word) else f"{word[:200]}=VALUE"
            raise UserError(f"{word[:200]} has no key: write key=value, such as {example}")
        if config_name == "train" and word.startswith(OF_SWEEPS) and not args.multirun:
            raise UserError(f"{word} has an effect only in a sweep: add -m, or leave it out")
        if word == "hydra.job.chdir=true":
            raise UserError(f"{word}: runs stay in the current folder: use absolute paths")
        if word.endswith("=null") and is_group(key_of(word)):
            raise UserError(f"{word}: to leave out this group, write ~{key_of(word)}")
        files = conf_files(word.lstrip("+").replace("=", "/", 1)) if is_group(key_of(word)) else []
        if len(files) > 1:  # Hydra would use the first one
            raise UserError(f"{word[:200]}: rename {files[1]}: {files[0]} has its name")
    return args


def refuse(problem: str) -> NoReturn:
    raise UserError(f"{problem}; --hydra-help explains the flags")


def key_of(word: str) -> str:
    """The key of an override `key=value`, or its group with a slash."""
    return word.partition("=")[0].lstrip("+~")


def value_of(words: Sequence[str], key: str) -> str | None:
    """The value of the last `key=...`. None if it is `null`, or if the key does not occur."""
    values = [word.partition("=")[2] for word in words if key_of(word) == key and "=" in word]
    return values[-1] if values and values[-1] != "null" else None


def implied_data(words: Sequence[str]) -> list[str]:
    """`data=text` if the words contain `data.path=`, and `data=hub` if they contain `data.name=`,
    unless they or their experiments choose `data`. Raises UserError if only some of them do."""
    keys = {key_of(word) for word in words if "=" in word}
    choices = {"data.path": "data=text", "data.name": "data=hub"}
    implied = [choice for key, choice in choices.items() if key in keys][:1]
    if "data" in keys or not implied:
        return []
    experiments = swept_experiments(value_of(words, "experiment") or "")
    own = [name for name in experiments if "data" in chosen_by_experiment(name)]
    if own and own != experiments:
        others = ", ".join(name for name in experiments if name not in own)
        problem = f"{implied[0]} is not implied: {', '.join(own)} has a text, but not {others}"
        raise UserError(f"experiment={','.join(experiments)}: {problem}: add data=")
    return [] if own else implied


def swept_experiments(value: str) -> list[str]:
    """The experiments in the value of `experiment=`, also if a sweep lists them, as in `a,b`,
    `choice(a,b)` or `glob(a*)`."""
    names = re.findall(r"[^\s,()\[\]'\"]+", value)
    known = choices_of("experiment")  # not those in subfolders
    found = [each for name in names for each in fnmatch.filter(known, name) or [name]]
    return [each for each in dict.fromkeys(found) if conf_files(f"experiment/{each}")]


# --- paths and texts ---

PATHS = (
    *("resume", "init_from", "store_dir", "data.path", "tokenizer.path", "checkpoint", "source"),
    *("corpus", "output", "output_dir", "other", "suite.nanogpt"),
    *("hydra.run.dir", "hydra.sweep.dir"),
)
TEXTS = (
    *(*PATHS, "name", "data.column", "data.template", "data.name", "data.subset", "data.revision"),
    *("data.train_split", "data.validation_split", "callbacks.attention.text", "text", "prompt"),
    *("callbacks.samples.prompt", "patch.clean", "patch.corrupted", "patch.continuation"),
    *("device", "host", "suite.against"),
)
"""The keys whose values are texts, which may contain any characters. Some of them are paths."""

LISTS_OF_PATHS = ("parts", "checkpoints", "runs")
LISTS_OF_TEXTS = (
    *(*LISTS_OF_PATHS, "revisions", "stop", "patch.answers", "compare.choices", "allowed_hosts"),
)
MAY_BE_EMPTY = ("prompt", "callbacks.samples.prompt", "callbacks.attention.text", "stop", "text")


def with_home(word: str) -> str:
    """Replaces `~` at the beginning of a path by the home folder. Shells do so only before a word.
    The paths of a list and of a sweep are separated by commas."""
    before, equals, value = word.partition("=")
    if key_of(word) not in (*PATHS, *LISTS_OF_PATHS):
        return word
    home = os.path.expanduser("~")
    begins = r"(\A|[,\['\"]\s*)~(?=/|\Z)"
    return before + equals + re.sub(begins, lambda match: match[1] + home, value)


def quoted(words: Sequence[str]) -> list[str]:
    """Quotes the values of all texts for Hydra, but not `null`, except as a prompt."""
    return [quoted_word(word) for word in words]


def quoted_word(word: str) -> str:
    key, (before, _, value) = key_of(word), word.partition("=")
    if "=" not in word or key not in (*TEXTS, *LISTS_OF_TEXTS) or word.startswith("~"):
        return word
    if not value and key not in MAY_BE_EMPTY:
        raise UserError(f"{word} is empty: give a value, or leave out {key}=")
    if (value == "null" and key != "prompt") or (key.startswith("hydra.") and "${" in value):
        return word
    if key in LISTS_OF_TEXTS:
        return f"{before}=[{','.join(map(quote, texts_in(key, value)))}]"
    return f"{before}={quote(value)}"


def texts_in(key: str, value: str) -> list[str]:
    """The texts of a list, such as `["a", "b"]` or `[a, b]`, or the only text."""
    if not (value.startswith("[") and value.endswith("]")):
        return [value]
    # Without quotes, which a shell removes, as in [\n, END], it is no list of Python.
    texts = [each.strip().replace(r"\n", "\n") for each in value[1:-1].split(",") if each.strip()]
    with suppress(ValueError, SyntaxError):
        texts = ast.literal_eval(value)
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f'{key}={value} must be a list of texts, such as {key}=\'["a", "b"]\'')
    return texts


def quote(text: str) -> str:
    """Quotes `text` so that Hydra and OmegaConf together return exactly `text`.

    Inside quotes, Hydra unescapes a quote and the backslashes directly before it. Then OmegaConf
    unescapes `${` and the backslashes directly before it. Both keep all other backslashes.
    """
    text = re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", text)
    text = re.sub(r"(\\*)'", lambda match: 2 * match[1] + r"\'", text)
    text = re.sub(r"\\+\Z", lambda match: 2 * match[0], text)
    return f"'{text}'"
