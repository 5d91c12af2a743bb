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

from kill_runs import differences
from running import ROOT, events, summary

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
PATCH = ["patch.clean=bcdefghkbcd", "patch.answers=[e,f]", "patch.corrupted=bcdfeghkbcd"]
REPORT = ["windows=64", "ablation=true", "gradients=true"]
SCALARS = ("train/loss", "train/grad_norm", "val/loss")
SUMMARY = ("val_loss", "val_bits_per_byte", "best_val_loss", "steps", "tokens", "parameters")


def main(command: str) -> None:
    """Runs `record` or `compare`."""
    found = measure()
    if command == "record":
        lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    wrong = differences(json.loads(FILE.read_text()), found)
    print("\n".join(wrong) or "equal")
    sys.exit(bool(wrong))


def measure() -> dict[str, Any]:
    """All metrics of the current code, as nested dictionaries and lists."""
    with tempfile.TemporaryDirectory() as name:
        folder, found = Path(name), {}
        for recipe, words in RECIPES.items():
            run = folder / recipe
            script(folder, "train", *words, *STEPS, f"hydra.run.dir={run}")
            final = summary(run)
            found[recipe] = {
                "scalars": {
                    tag: [event.value for event in events(run).Scalars(tag)] for tag in SCALARS
                },
                "final": {key: final[key] for key in SUMMARY},
            }
        script(folder, "train", *CIRCUIT, f"hydra.run.dir={folder / 'circuit'}")
        for key, run, more in (("heads", "circuit", PATCH), ("modular_heads", "modular", [])):
            script(folder, "analyze", f"checkpoint={folder / run}", *REPORT, *more)
            heads = json.loads((folder / run / "analysis" / "heads.json").read_text())
            found[key] = {key: heads[key] for key in sorted({*heads} - {"files", "checkpoint"})}
        return found


def script(folder: Path, name: str, *words: str) -> None:
    """Runs a script in `folder`."""
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *words]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("record", "compare"):
        sys.exit(__doc__)
    main(sys.argv[1])
