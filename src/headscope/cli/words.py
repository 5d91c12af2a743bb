"""The words of a command line, before Hydra parses them."""

import argparse
import fnmatch
import os
import re
from collections.abc import Sequence
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
