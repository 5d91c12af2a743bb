"""Measures the time and the memory to prepare a token store from a large text file."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import runner
from benchmarks.runner import Figures, Request, Result
from headscope.data import tokenizer
from headscope.data.corpus import Sotu
from headscope.data.machine import process_cores
from headscope.data.own_files import TextFiles
from headscope.data.store import prepare_store, training_texts

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
    groups, speed = {}, "mb_per_second_per_core"
    for size in request.suite.megabytes:
        with TemporaryDirectory() as name:
            file = Path(name) / "text.txt"
            write_numbered_speeches(file, size * 10**6)
            sides = {
                name: partial(runner.in_fresh_process, prepare, (file, name)) for name in TOKENIZERS
            }
            rows = runner.compared(sides, request.suite.rounds, ratio_of=speed, reference="bpe")
        groups[f"{size:,} MB"] = rows
    return Result(
        "Speed of preparing a token store",
        groups,
        f"Median of {request.suite.rounds} rounds, on {process_cores()} cores. Seconds: to make "
        "the tokenizer, and to hash, read, encode and write the text. MB per second: "
        "without the time to make the tokenizer. Peak memory: of the process, without file pages. "
        "Ratio: to bpe in the same round.",
        "MB/s per core (longer is faster), x: ratio to bpe",
        speed,
    )


def prepare(task: tuple[Path, str]) -> Figures:
    """Prepares the store of a text file with a tokenizer. Called in a fresh process. Measures the
    memory of the process every 20 ms. Pages of files do not count, because the system can take them
    back at any time."""
    peak = 0.0
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(times_to_prepare, *task)
        while not work.done():
            peak = max(peak, runner.process_mib("RssAnon"))
            time.sleep(0.02)
    return {**work.result(), "peak_memory_mib": peak}


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
    """Writes the speeches again and again, until the file has at least `size` bytes. Every line
    begins with its number."""
    speeches = sorted((Sotu().folder / "speeches").glob("*.txt"))
    texts = (speech.read_text(encoding="utf-8") for speech in cycle(speeches))
    lines = enumerate(line for text in texts for line in text.splitlines())
    written = 0
    with file.open("wb") as stream:
        while written < size:
            number, line = next(lines)
            written += stream.write(f"{number} {line}\n".encode())
