"""The command `headscope`. `headscope train` is what `python scripts/train.py` is in a checkout.
Imports nothing heavy, because it comes before all other imports."""

import difflib
import os
import signal
import sys
from functools import partial
from importlib import import_module

import headscope

COMMANDS = {
    "train": "train a GPT, and log losses, samples and attention for TensorBoard",
    "sample": "sample text from a checkpoint",
    "explore": "type a text on a page, and watch the model and its heads",
    "analyze": "write a report on what every attention head does",
    "evaluate": "print the losses of a checkpoint on the validation split",
    "compare": "train several choices with the same settings and compare them",
    "convert": "convert models from and to other tools",
}
"""Each command, and what it does. Its function has the same name, in a module of this name."""

HELP = "\n".join(
    [
        "Train a small GPT and see what its attention heads do.\n",
        *(f"  headscope {name:10}{purpose}" for name, purpose in COMMANDS.items()),
        "\nheadscope train --help lists all keys of a command, headscope --version the version.",
    ]
)


def main() -> None:
    """Runs the command that the first word names. The other words are `key=value`."""
    name, *words = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(HELP)
        return
    if name == "--version":
        print(f"headscope {headscope.__version__}")
        return
    if name in ("-sc", "--shell-completion"):
        name, words = completed_command(words), [name, *words]
        if not name:
            print(*COMMANDS, sep="\n")
            return
    elif name not in COMMANDS:
        from headscope.training import processes

        if processes.starter() != "lightning":
            close = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
            close = [f"train {name[:80]}"] if "=" in name else close
            advice = f"did you mean headscope {close[0]}? " if close else ""
            sys.exit(f"Error: {name[:80]!r} is not a command: {advice}headscope --help lists all")
        name, words = "train", [name, *words]  # Lightning repeats the words after the command
    sys.argv[1:] = words
    run(name)


def run(name: str) -> None:
    """Runs the command `name` in this process. A module without a function `main` has the function
    of a command that needs nothing but the values of its keys."""
    start_process()
    from headscope.cli import command_line
    from headscope.config.parse import parse

    module = import_module(f"headscope.cli.{name}")
    if hasattr(module, "main"):
        module.main()
    else:
        command_line.run(partial(parse, getattr(module, name)), name)


def start_process() -> None:
    """Sets what must be set before torch is loaded.

    Ctrl-C ends the process at once, without a traceback, except where `headscope.stop` handles it.
    An ignored Ctrl-C (as with `nohup`) stays ignored. The threads of OpenMP spin while they wait
    for each other: if another program uses a core, long spinning makes a step ten times as slow.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"


def completed_command(words: list[str]) -> str:
    """The command whose keys the shell completes, or "" while the command itself is completed.
    Removes the command from the line that Hydra completes. `words` are those after the flag -sc."""
    if not any(word.startswith("query=") for word in words):
        return "train"  # to install or to remove the completion: every command does the same
    program, _, line = os.environ.get("COMP_LINE", "").lstrip().partition(" ")
    name, space, rest = line.lstrip().partition(" ")
    if not space or name not in COMMANDS:
        return ""
    os.environ["COMP_LINE"] = f"{program} {rest}"
    return name
