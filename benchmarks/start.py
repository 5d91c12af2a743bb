"""Measures how long commands take to start: python -m benchmarks.start"""

import json
import subprocess
import sys
import time
from functools import partial

from benchmarks.runner import compared

ROUNDS = 7
RUN = "outputs/start"
STEP = ["trainer.max_steps=1", "trainer.final_validation=part", f"hydra.run.dir={RUN}"]
ATTENTION = f"import headscope; headscope.load({RUN!r}).read('My fellow citizens').attention"
PROGRAMS = {
    "python -c 'import torch'": ["-c", "import torch"],
    "python -c 'import lightning.pytorch'": ["-c", "import lightning.pytorch"],
    "headscope --help": ["-m", "headscope", "--help"],
    "headscope train --help": ["-m", "headscope", "train", "--help"],
    "headscope.load(run).read(text)": ["-c", ATTENTION],
    "headscope sample max_new_tokens=1": ["-m", "headscope", "sample", "max_new_tokens=1"],
    "headscope train, one step": ["-m", "headscope", "train", *STEP],
}


def measure_times() -> None:
    """Runs each program several times, alternating with the others. Prints the median, the lowest
    and the highest number of seconds. A first run, which is not measured, encodes the text."""
    subprocess.run([sys.executable, *PROGRAMS["headscope train, one step"]], check=True, stdout=2)
    sides = {name: partial(run, words) for name, words in PROGRAMS.items()}
    for row in compared(sides, ROUNDS, ratio_of="seconds", reference="headscope --help"):
        shown = {"seconds": "median", "lowest": "min", "highest": "max"}
        rounded = {key: round(row["seconds"][each], 2) for key, each in shown.items()}
        print(json.dumps({"program": row["side"], **rounded}))


def run(words: list[str]) -> dict[str, float]:
    words = [word.replace(f"dir={RUN}", f"dir={RUN}_{time.time_ns()}") for word in words]
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    measure_times()
