"""Records the metrics that a refactoring must not change, and compares them with the current code.

    python tests/baselines.py record     writes tests/baselines.json
    python tests/baselines.py compare    prints the differences; exits with 1 if there are any

The metrics depend on the processor and the number of threads: record and compare on one machine.
They are the losses and gradient norms of the first 20 steps of six recipes, their final metrics,
and all metrics, names, ablations and patchings of the heads of a model that is trained from its
seed. Of `modular`, whose losses count only answers, they are also those of a report.
`HEADSCOPE_TINYSHAKESPEARE` names the file of tiny-shakespeare.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parent.parent
FILE = Path(__file__).with_name("baselines.json")
SHAKESPEARE = os.environ.get("HEADSCOPE_TINYSHAKESPEARE", "tinyshakespeare.txt")
RECIPES = {
    "default": [],
    "nanogpt_cpu": ["experiment=nanogpt_cpu", f"data.path={SHAKESPEARE}"],
    "speedrun_cpu": ["experiment=speedrun_cpu", f"data.path={SHAKESPEARE}"],
    "modern": ["model=modern"],
    "induction": ["experiment=induction"],
    "modular": ["experiment=grokking"],
}
STEPS = ["trainer.max_steps=20", "trainer.val_every_steps=10", "trainer.log_every_steps=1"]
CIRCUIT = ["experiment=induction"]  # 600 steps: induction heads appear
REPORT = [
    *(
        "windows=64",
        "ablation=true",
        "gradients=true",
        "patch.clean=bcdefghkbcd",
        "patch.answers=[e,f]",
    ),
    "patch.corrupted=bcdfeghkbcd",
]
SUMMARY = ("val_loss", "val_bits_per_byte", "best_val_loss", "steps", "tokens", "parameters")


def main(command: str) -> None:
    """Runs `record` or `compare`."""
    found = measure()
    if command == "record":
        lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    recorded = json.loads(FILE.read_text())
    lines = list(differences(recorded, found))
    print("\n".join(lines) or f"equal: {count(recorded)} values")
    sys.exit(bool(lines))


def measure() -> dict[str, Any]:
    """All metrics of the current code, as nested dictionaries and lists."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {}
        for name, words in RECIPES.items():
            run = Path(folder) / name
            script(folder, "train", *words, *STEPS, f"hydra.run.dir={run}")
            found[name] = {"scalars": scalars(run / "tensorboard"), "final": final(run)}
        run = Path(folder) / "circuit"
        script(folder, "train", *CIRCUIT, f"hydra.run.dir={run}")
        script(folder, "analyze", f"checkpoint={run}", *REPORT)
        found["heads"] = heads_of(run)
        script(folder, "analyze", f"checkpoint={Path(folder) / 'modular'}", *REPORT[:3])
        found["modular_heads"] = heads_of(Path(folder) / "modular")
        return found


def heads_of(run: Path) -> dict[str, Any]:
    """The report on the heads of a run."""
    heads = json.loads((run / "analysis" / "heads.json").read_text())
    return {key: heads[key] for key in sorted({*heads} - {"files", "checkpoint"})}


def script(folder: str, name: str, *words: str) -> None:
    """Runs a script in `folder`."""
    path = ROOT / "scripts" / f"{name}.py"
    subprocess.run(
        [sys.executable, str(path), *words], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )


def scalars(folder: Path) -> dict[str, list[float]]:
    """The logged losses and gradient norms. `callbacks=plain` logs them, too."""
    events = EventAccumulator(str(folder))
    events.Reload()
    names = ("train/loss", "train/grad_norm", "val/loss")
    return {name: [event.value for event in events.Scalars(name)] for name in names}


def final(run: Path) -> dict[str, float]:
    summary = json.loads((run / "summary.json").read_text())
    return {name: summary[name] for name in SUMMARY}


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """One line for each value that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = [f"{name}/{key}: only in one" for key in sorted(old.keys() ^ new.keys())]
        for key in old.keys() & new.keys():
            lines += differences(old[key], new[key], f"{name}/{key}")
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for n, (a, b) in pairs for line in differences(a, b, f"{name}/{n}")]
    return [] if old == new else [f"{name}: {old} -> {new}"]


def count(content: Any) -> int:
    if isinstance(content, dict):
        return sum(map(count, content.values()))
    return sum(map(count, content)) if isinstance(content, list) else 1


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("record", "compare"):
        sys.exit(__doc__)
    main(sys.argv[1])
