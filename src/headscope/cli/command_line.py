"""Runs a script: Hydra composes the configuration, and errors are printed in one line."""

import ast
import functools
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from headscope import __version__
from headscope.cli import sweeps
from headscope.cli.conf import CONF, check_choices, chosen_by_experiment, is_group, prepare_hydra
from headscope.cli.error_messages import exit_on_error
from headscope.config import load_parts
from headscope.config.parts import find_modules_in
from headscope.errors import UserError
from headscope.terminal import open_closed_streams
from headscope.training import processes
from headscope.training.run_folder import make_new, remove_unused

TEXTS = (
    *("name", "resume", "init_from", "store_dir", "data.path", "data.column", "data.template"),
    *("data.name", "data.subset", "data.train_split", "data.validation_split", "data.revision"),
    *("tokenizer.path", "callbacks.attention.text", "callbacks.samples.prompt", "checkpoint"),
    *("prompt", "device", "source", "text", "output", "output_dir", "other", "host"),
    *("patch.clean", "patch.corrupted", "patch.continuation", "suite.against", "suite.nanogpt"),
    "suite.device",
    *("hydra.run.dir", "hydra.sweep.dir"),
)
"""The keys whose values are texts. A value may contain any characters: in a single run, it is taken
literally, and quoted for Hydra, in whose grammar commas, quotes, brackets and `=` have meanings."""

LISTS_OF_TEXTS = (
    *("parts", "stop", "difference", "checkpoints", "patch.answers", "compare.choices"),
    "allowed_hosts",
)

MAY_BE_EMPTY = ("prompt", "callbacks.samples.prompt", "callbacks.attention.text", "stop", "text")

MULTIRUN = {"-m", "--multirun"}
HELP = {"-h", "--help"}
FLAGS = (
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run"),
    *("--multirun", "--shell-completion", "--config-path", "--config-name", "--config-dir"),
    *("--experimental-rerun", "--info"),
)
"""The long flags of Hydra. Each may be shortened, as in --multi."""

OF_SWEEPS = ("hydra/sweeper", "hydra.sweeper", "hydra/launcher", "hydra.launcher")

WRITES_NOTHING = [
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra.job_logging.root.handlers=[]",
]
"""Overrides with which Hydra makes no folder and writes no file."""


def run(
    task: Callable[[Any], Any],
    config_name: str,
    prepare: Callable[[list[str]], list[str]] = lambda words: words,
    report_sweep: sweeps.ReportSweep | None = None,
) -> None:
    """Composes conf/<config_name>.yaml with the command line of this process, and calls `task` with
    the result.

    `prepare` is called with the words of the command line, and returns those that are passed to
    Hydra, which `quoted` quotes. `report_sweep` is called at the end of a sweep (`-m`).

    An error that the user can fix is printed in one line, and the process ends with exit code 1.
    The environment variable HYDRA_FULL_ERROR=1 shows the full traceback instead. If a run of a
    sweep has such an error, the sweep continues, and the error is listed again at the end.
    Ctrl-C ends the process with exit code 130.
    """
    # A process that Lightning started has inherited the value that the first process set below.
    inherited = processes.starter() == "lightning"
    full_error = not inherited and os.environ.get("HYDRA_FULL_ERROR", "0") not in ("", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise errors instead of printing them
    open_closed_streams()
    prepare_hydra()

    @functools.wraps(task)
    def guarded(config: Any) -> Any:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return sweeps.run_one(task, config)
        # Errors are handled here, inside Hydra's call, because Hydra would print additional lines.
        with exit_on_error(full_error):
            find_modules_in(Path.cwd())
            try:
                load_parts(config.get("parts"))
            except UserError:
                if HydraConfig.get().output_subdir:
                    remove_unused(run_folder())  # Hydra has just made it
                raise
            return task(config)

    with exit_on_error(full_error):
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `start_process`
            signal.signal(signal.SIGINT, signal.default_int_handler)
        processes.check_environment()
        words = sys.argv[1:]
        sweep: Any = nullcontext()
        # If Lightning started this process, the first process has prepared the words.
        if not inherited:
            if "--version" in words:
                print(f"headscope {__version__}")
                return
            check_words(words, config_name)
            words = [*words, *implied_data(words)]
            if HELP & {*words}:
                from headscope.cli.help import help_text

                print(help_text(config_name, [*filter(is_override, quoted(words))]))
                return
            words = prepare(words)
            if MULTIRUN & {*words}:
                processes.check_sweep()
                words = sweeps.with_folder(words)
                sweep = sweeps.reported(report_sweep)
            else:
                words = quoted(words)
            if not any(word in ("-sc", "--shell-completion") for word in words):
                words.sort(key=is_override)  # Hydra takes no flag between two overrides
        sys.argv[1:] = words if processes.rank() == 0 else [*words, *WRITES_NOTHING]
        with sweep:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(
                guarded
            )()


def run_folder() -> Path:
    """The run folder that Hydra has chosen. Its path is not interpolated, because it may contain a
    literal `${`."""
    runtime: Any = OmegaConf.to_container(HydraConfig.get().runtime, resolve=False)
    return Path(runtime["output_dir"])


def read_standard_input() -> str:
    """Reads all of standard input. Raises UserError when the input is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 at byte {error.start}") from None


class NewFolder(Callback):
    """Creates a new run folder before Hydra writes to it, so that two runs that start in the same
    second get different folders. If the command line names a folder, that name is used.

    It is a callback, because Hydra may resolve the name several times. It checks nothing, because
    Hydra turns an error in a callback into a warning."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def on_run_start(self, config: DictConfig, **more: Any) -> None:
        named = any(word.startswith("hydra.run.dir=") for word in config.hydra.overrides.hydra)
        if self.enabled and not named:
            with read_write(config):
                config.hydra.run.dir = make_new(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **more: Any) -> None:
        HydraConfig.instance().set_config(config)  # for the report at the end


# --- the words of the command line ---


def is_override(word: str) -> bool:
    """Whether a word is neither a flag nor the value of a flag."""
    return word.startswith("~") or ("=" in word and not word.startswith("-"))


def key_of(word: str) -> str:
    """The key of an override `key=value`, or its group with a slash."""
    return word.partition("=")[0].lstrip("+~")


def value_of(words: Sequence[str], key: str) -> str | None:
    """The value of the last `key=...`. None if it is `null`, or if the key does not occur."""
    values = [word.partition("=")[2] for word in words if key_of(word) == key and "=" in word]
    return values[-1] if values and values[-1] != "null" else None


def implied_data(words: Sequence[str]) -> list[str]:
    """`data=text` if the words contain `data.path=`, and `data=hub` if they contain `data.name=`,
    unless they or their experiment choose `data`."""
    keys = {key_of(word) for word in words}
    choices = {"data.path": "data=text", "data.name": "data=hub"}
    implied = [choice for key, choice in choices.items() if key in keys]
    if "data" in keys or "data" in chosen_by_experiment(value_of(words, "experiment") or ""):
        return []
    return implied[:1]


def check_words(words: Sequence[str], config_name: str) -> None:
    """Raises UserError when a word is no override and no flag of Hydra: a key that is written like
    an option of other programs, `--seed=1`, or a file without a key, such as `data.path`."""
    key = "data.path" if config_name in ("train", "compare") else "checkpoint"
    for before, word in pairwise(["", *words]):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserError(f"{os.fsencode(word)!r} is not valid UTF-8: rename the file") from None
        flag, equals, value = word.partition("=")
        is_flag = word.startswith(("-", "~")) or before.startswith("-")
        if not equals and not is_flag and ("." in word or os.path.exists(word)):
            raise UserError(f"{word[:200]} has no key: write key=value, such as {key}={word[:200]}")
        if flag.startswith("--") and not any(name.startswith(flag) for name in FLAGS):
            plain = f"{flag.lstrip('-')[:80]}={value[:80] if equals else 'VALUE'}"
            raise UserError(
                f"{word[:200]} is not a flag: keys have no --, as in {plain}; --help lists all keys"
            )
        if word.startswith(OF_SWEEPS) and not MULTIRUN & {*words} and config_name == "train":
            raise UserError(f"{word} has an effect only in a sweep: add -m, or leave it out")
        if word == "logger=null":
            raise UserError("logger=null: to train without a logger, write ~logger")
    if MULTIRUN & {*words} and {"-c", "--cfg"} & {*words}:
        raise UserError("--cfg shows the configuration of one run: leave out -m")
    check_choices(words)


def forced(words: Sequence[str]) -> list[str]:
    """Writes each `key=value` as `++key=value`, which sets the key also if it is not there yet."""
    plain = re.compile(r"(?!hydra\.)[\w.]+=")
    return [
        f"++{word}" if plain.match(word) and not is_group(key_of(word)) else word for word in words
    ]


def quoted(words: Sequence[str]) -> list[str]:
    """Quotes the values of all texts for Hydra. The value `null` is not quoted, except as a
    prompt."""
    return [quoted_word(word) for word in words]


def quoted_word(word: str) -> str:
    key, (before, _, value) = key_of(word), word.partition("=")
    if not is_override(word) or key not in (*TEXTS, *LISTS_OF_TEXTS) or word.startswith("~"):
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
    texts: Any = [unescaped(text.strip()) for text in value[1:-1].split(",") if text.strip()]
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError):
            texts = read(value)
            break
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f'{key}={value} must be a list of texts, such as {key}=\'["a", "b"]\'')
    return texts


def unescaped(text: str) -> str:
    try:
        return json.loads(f'"{text}"')
    except ValueError:
        return text


def quote(text: str) -> str:
    """Quotes `text` so that Hydra and OmegaConf together return exactly `text`.

    Inside quotes, Hydra unescapes a quote and the backslashes directly before it. Then OmegaConf
    unescapes `${` and the backslashes directly before it. Both keep all other backslashes.
    """
    text = re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", text)
    text = re.sub(r"(\\*)'", lambda found: 2 * found[1] + r"\'", text)
    text = re.sub(r"\\+\Z", lambda found: 2 * found[0], text)
    return f"'{text}'"
