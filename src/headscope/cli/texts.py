"""Paths and texts on the command line.

In Hydra's grammar, commas, quotes, brackets and `=` have special meanings. The user means paths and
texts literally, so they are quoted for Hydra, except in a sweep, where its grammar holds.
"""

import ast
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress

from headscope.cli.words import key_of
from headscope.errors import UserError

PATHS = (
    *("resume", "init_from", "store_dir", "data.path", "tokenizer.path", "checkpoint", "source"),
    *("output", "output_dir", "other", "suite.nanogpt", "hydra.run.dir", "hydra.sweep.dir"),
)
TEXTS = (
    *(*PATHS, "name", "data.column", "data.template", "data.name", "data.subset", "data.revision"),
    *("data.train_split", "data.validation_split", "callbacks.attention.text", "text", "prompt"),
    *("callbacks.samples.prompt", "patch.clean", "patch.corrupted", "patch.continuation"),
    *("device", "host", "suite.against"),
)
"""The keys whose values are texts, which may contain any characters. Some of them are paths."""

LISTS_OF_PATHS = ("parts", "checkpoints", "runs")
LISTS_OF_TEXTS = (*LISTS_OF_PATHS, "stop", "patch.answers", "compare.choices", "allowed_hosts")
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
    # Without quotes, which a shell removes, as in [\n, END], it is no list of JSON or Python.
    texts = [each.strip().replace(r"\n", "\n") for each in value[1:-1].split(",") if each.strip()]
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError):
            texts = read(value)
            break
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
