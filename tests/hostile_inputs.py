"""Attack the scripts with generated hostile inputs: python tests/hostile_inputs.py --count 1000

Command lines, checkpoints, token stores and texts, each in a process and a folder of its own. None
may run code, write outside its folder, hang for 20 s, take more than 2 GB, or end in a traceback.
Prints a table, and each input that broke a law with its number: --only NUMBER repeats it.
Not a test of the suite, since it takes minutes.
"""

import argparse
import os
import random
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}

from hostile_kinds import KINDS  # after the environment is set

SECONDS, BYTES = 20, 2 * 10**9
ROOT = Path(__file__).parents[1]
SMALL = [
    *("tokenizer=byte", "data.path=text.txt", "model.block_size=16", "model.embed_dim=16"),
    *("model.layers=2", "model.heads=2", "trainer.max_steps=2", "callbacks.attention.steps=2"),
    *("callbacks.samples.max_new_tokens=3", "callbacks.heads.windows=1"),
]
TEXT = "To be, or not to be, that is the question: 名 é \n" * 60


def run_script(name: str, words: list[str]) -> None:
    """Run scripts/<name>.py in this process, as a person would."""
    sys.argv = [f"{name}.py", *words]
    sys.path.insert(0, str(ROOT / "scripts"))
    runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")


def child(name: str, words: list[str], folder: Path) -> int:
    """Run a script in a forked process; returns its exit code, or why it was ended."""
    pid = os.fork()
    if pid:
        return watch(pid)
    os.setsid()
    os.chdir(folder)
    os.environ |= {"TMPDIR": str(folder), "HOME": str(folder)}
    tempfile.tempdir = None
    for number, file in enumerate(("/dev/null", "out.txt", "err.txt")):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    report = os.open("broken.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.addaudithook(lambda event, arguments: audit(event, arguments, folder, report))
    code = 0
    try:
        run_script(name, words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def audit(event: str, arguments: tuple, folder: Path, report: int) -> None:
    """Write down each program that is started and each file that is written elsewhere."""
    broken = event in (
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "subprocess.Popen",
        "socket.connect",
    )
    if event == "open" and isinstance(arguments[0], str | bytes):
        path, _, flags = arguments
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        place = os.path.abspath(os.fsdecode(path))
        broken = writes and not place.startswith((str(folder), "/dev/"))
    if broken:
        os.write(report, f"{event} {str(arguments)[:200]}\n".encode(errors="replace"))


def watch(pid: int) -> int:
    """The exit code of a process; -1 when it took too long, -2 too much memory."""
    started, reason = time.monotonic(), 0
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return reason or os.waitstatus_to_exitcode(status)
        if time.monotonic() - started > SECONDS:
            reason = -1
        elif resident(pid) > BYTES:
            reason = -2
        if reason:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.02)


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def verdict(code: int, folder: Path) -> str:
    """What law was broken, or 'accepted' or 'refused'."""
    if code in (-1, -2):
        return "hang" if code == -1 else "memory"
    if (folder / "ran").exists() or (folder.parent / "ran").exists():
        return "executed"
    if (folder / "broken.txt").read_bytes():
        return "wrote outside"
    said = (folder / "err.txt").read_text(errors="replace")
    if "Traceback (most recent call last)" in said or code < 0:
        return "traceback"
    return "refused" if code else "accepted"


def prepare(folder: Path) -> None:
    """A text and a small run, which the inputs are made of."""
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text(TEXT)
    if code := child("train", [*SMALL, "hydra.run.dir=outputs/run"], folder):
        sys.exit(f"the run could not be made: exit code {code}\n{(folder / 'err.txt').read_text()}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--count", type=int, default=1000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--only", type=int, nargs="*")
    arguments.add_argument("--keep", action="store_true", help="leave the folders there")
    asked = arguments.parse_args()
    import lightning.pytorch  # noqa: F401  # imported once, before all forks
    import torch.utils.tensorboard  # noqa: F401

    root = Path(tempfile.mkdtemp(prefix="hostile-"))
    prepare(root / "whole")
    counts: Counter[tuple[str, str]] = Counter()
    broken = 0
    for number in asked.only or range(asked.count):
        draw = random.Random(f"{asked.seed} {number}")
        kind = list(KINDS)[number % len(KINDS)]
        folder = root / str(number) / "here"
        shutil.copytree(root / "whole", folder)
        name, words = KINDS[kind](draw, folder)
        found = verdict(child(name, words, folder), folder)
        counts[kind, found] += 1
        if found not in ("accepted", "refused"):
            broken += 1
            print(f"{number} {kind}: {found}\n  {name}.py {words}", flush=True)
            print(
                "  " + (folder / "err.txt").read_text(errors="replace")[-600:].replace("\n", "\n  ")
            )
        elif asked.only:
            print(f"{number} {kind}: {found}\n  {name}.py {words}")
            print("  " + (folder / "err.txt").read_text(errors="replace")[-600:])
        if not asked.keep:
            shutil.rmtree(folder.parent)
    for (kind, found), count in sorted(counts.items()):
        print(f"{kind:15} {found:15} {count:6}")
    print(f"{sum(counts.values())} inputs, {broken} broken")
    if not asked.keep:
        shutil.rmtree(root)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
