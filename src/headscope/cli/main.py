"""The command `headscope`. `headscope train` is what `python scripts/train.py` is in a checkout."""

import difflib
import os
import sys
from importlib import import_module

import headscope
from headscope.cli.start import start_process

COMMANDS = {
    "train": "train a GPT, and log losses, samples and attention for TensorBoard",
    "sample": "sample text from a checkpoint",
    "explore": "type a text on a page, and watch the model and its heads",
    "analyze": "write a report on what every attention head does",
    "evaluate": "print the losses of a checkpoint on the validation split",
    "compare": "train several choices with the same settings and compare them",
    "convert": "convert models from and to other tools",
}
"""Each command, which is the module of this folder with the same name, and what it does."""

HELP = "\n".join(
    [
        "Train a small GPT and see what its attention heads do.\n",
        *(f"  headscope {name:10}{purpose}" for name, purpose in COMMANDS.items()),
        "\nheadscope train --help lists all keys of a command, headscope --version the version.",
    ]
)


def main() -> None:
    """Runs the command that the first word names. The other words are `key=value`."""
    start_process()
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
    import_module(f"headscope.cli.{name}").main()


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
