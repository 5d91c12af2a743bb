"""Kill processes that prepare a text at random moments, and compare the store with its twin.

    python tests/kill_preparations.py --megabytes 100 --kills 30 --tokenizer bpe --seed 1

The twin is prepared without interruption. The other store is prepared by one or two processes at
the same time. Each is killed (SIGKILL) at a random time, or once in a while stopped (SIGTERM), and
started again, until the number of kills is reached. Then both are left to finish. The files of the
two stores must be equal, byte by byte, and the folder must contain nothing else. Prints a line for
each kill; exits with 1 on a difference. 30 kills at 100 MB take some minutes.
"""

import argparse
import filecmp
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
from headscope.data.store import DESCRIPTION, LOCK, TOKENS

PREPARE = """
import sys
from pathlib import Path
from benchmarks.encoding import TOKENIZERS
from headscope.data.own_files import TextFiles
from headscope.data.store import prepare_store

prepare_store(TextFiles(path=sys.argv[1]), TOKENIZERS[sys.argv[3]], root=Path(sys.argv[2]))
"""


def ended(process: subprocess.Popen[bytes], *allowed: int) -> None:
    if process.wait(timeout=3600) not in (0, *allowed):
        sys.exit(f"a preparation ended with exit code {process.returncode}")


def compare(whole: Path, root: Path) -> None:
    """Exits if the files of the stores in two folders differ."""
    one, other = (next(each.glob("text-*")) for each in (whole, root))
    files = [DESCRIPTION, *TOKENS.values()]
    _, different, missing = filecmp.cmpfiles(one, other, files, shallow=False)
    if different or missing:
        sys.exit(f"the stores differ: {', '.join(different + missing)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--tokenizer", choices=["bpe", "char", "byte"], default="bpe")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        text, whole, root = (Path(name) / part for part in ("text.txt", "whole", "killed"))
        write_numbered_speeches(text, options.megabytes * 10**6)

        def start(root: Path) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-c", PREPARE, str(text), str(root), options.tokenizer]
            return subprocess.Popen(command)

        started = time.monotonic()
        ended(start(whole))
        seconds = time.monotonic() - started
        print(f"uninterrupted: {seconds:.1f} s")
        kills = finished = 0
        while kills < options.kills:
            running = [start(root) for _ in range(rng.choice([1, 1, 2]))]
            time.sleep(rng.uniform(0.1, 1.1) * seconds)
            for process in running:
                number = rng.choice([signal.SIGKILL] * 4 + [signal.SIGTERM])
                if alive := process.poll() is None:
                    process.send_signal(number)
                    kills += 1
                ended(process, -signal.SIGKILL, -signal.SIGTERM)
                print(number.name if alive else "finished", [path.name for path in root.glob("*")])
            if any(process.returncode == 0 for process in running):
                finished += 1
                compare(whole, root)
                shutil.rmtree(root)
        for process in [start(root) for _ in range(2)]:
            ended(process)
        compare(whole, root)
        if left := {each.name for each in root.iterdir()} - {LOCK, next(root.glob("text-*")).name}:
            sys.exit(f"these files were not removed: {', '.join(left)}")
        print(f"{kills} kills, {finished + 1} stores finished: all equal to the twin")


if __name__ == "__main__":
    main()
