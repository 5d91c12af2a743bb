"""Kill processes that prepare a text at random moments, and compare the store with its twin.

    python tests/kill_preparations.py --megabytes 100 --kills 30 --tokenizer bpe --seed 1

The twin is prepared without interruption. The other store is prepared by one or two processes at
the same time. Each is killed (SIGKILL) at a random time, or once in a while stopped (SIGTERM), and
started again, from the beginning, until the number of kills is reached. Then both are left to
finish. The files of the two stores must be equal, byte by byte, and the folder must contain nothing
else. Prints a line for each kill; exits with 1 on a difference.

Not part of the test suite: 30 kills at 100 MB take some minutes.
"""

import argparse
import filecmp
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks
from benchmarks.encoding import write_numbered_speeches
from headscope.data.preparing import LOCK
from headscope.data.store import DESCRIPTION, TOKENIZER, TOKENS

PREPARE = """
import sys
from functools import partial
from pathlib import Path
from benchmarks.encoding import TOKENIZERS
from headscope.data.own_files import TextFiles
from headscope.data.preparing import prepare_store

prepare_store(TextFiles(path=sys.argv[1]), TOKENIZERS[sys.argv[3]], root=Path(sys.argv[2]))
"""


def start(text: Path, root: Path, tokenizer: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PREPARE, str(text), str(root), tokenizer])


def finish(*running: subprocess.Popen[bytes]) -> None:
    for process in running:
        if process.wait(timeout=3600):
            sys.exit(f"a preparation ended with exit code {process.returncode}")


def differences(one: Path, other: Path) -> list[str]:
    """The files that differ between two token stores, or that are missing in one of them."""
    names = [DESCRIPTION, TOKENIZER, *TOKENS.values()]
    _, different, missing = filecmp.cmpfiles(one, other, names, shallow=False)
    return different + missing


def store_in(root: Path) -> Path:
    (store,) = (path for path in root.iterdir() if path.is_dir())
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--tokenizer", choices=["bpe", "char", "byte"], default="bpe")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, whole, root = folder / "text.txt", folder / "whole", folder / "killed"
        write_numbered_speeches(text, options.megabytes * 10**6)
        started = time.monotonic()
        finish(start(text, whole, options.tokenizer))
        seconds = time.monotonic() - started
        print(f"uninterrupted: {seconds:.1f} s")
        kills = finished = 0
        while kills < options.kills:
            running = [start(text, root, options.tokenizer) for _ in range(rng.choice([1, 1, 2]))]
            time.sleep(rng.uniform(0.1, 1.1) * seconds)
            for process in running:
                number = rng.choice([signal.SIGKILL] * 4 + [signal.SIGTERM])
                alive = process.poll() is None
                if alive:
                    os.kill(process.pid, number)
                    kills += 1
                if process.wait() not in (0, -signal.SIGKILL, -signal.SIGTERM):
                    sys.exit(f"a preparation ended with exit code {process.returncode}")
                print(number.name if alive else "finished", [path.name for path in root.glob("*")])
            if any(process.returncode == 0 for process in running):
                finished += 1
                if found := differences(store_in(whole), store_in(root)):
                    sys.exit(f"the stores differ: {', '.join(found)}")
                shutil.rmtree(root)
        finish(*(start(text, root, options.tokenizer) for _ in range(2)))
        if found := differences(store_in(whole), store_in(root)):
            sys.exit(f"the stores differ: {', '.join(found)}")
        if left := {path.name for path in root.iterdir()} - {store_in(root).name, LOCK}:
            sys.exit(f"these files were not removed: {', '.join(left)}")
        print(f"{kills} kills, {finished + 1} stores finished: all equal to the twin")


if __name__ == "__main__":
    main()
