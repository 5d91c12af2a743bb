#!/usr/bin/env bash
# Everything that is worth seeing on a GPU, and one table of what came of it:
#   bash scripts/gpu_check.sh [key=value ...]      the keys go to every run, for example
#   bash scripts/gpu_check.sh store_dir=/mnt/data
# tiny-shakespeare is downloaded; SHAKESPEARE=input.txt takes a local copy.
set -euo pipefail
cd "$(dirname "$0")/.."

out=outputs/gpu_check_$(date +%Y-%m-%d_%H-%M-%S)
shakespeare=()
if [ -n "${SHAKESPEARE:-}" ]; then shakespeare=("data.path=$SHAKESPEARE"); fi

python scripts/train.py "hydra.run.dir=$out/default" "$@"
python scripts/train.py experiment=nanogpt_gpu "${shakespeare[@]}" "hydra.run.dir=$out/nanogpt_gpu" "$@"
python scripts/sample.py "checkpoint=$out/nanogpt_gpu" max_new_tokens=100

python - "$out" <<'PY'
import json
import pathlib
import sys

rows = [
    (file.parent.name, json.loads(file.read_text()))
    for file in sorted(pathlib.Path(sys.argv[1]).glob("*/summary.json"))
]
names = ["val_loss", "best_val_loss", "val_bits_per_byte", "steps", "train_seconds", "wall_seconds"]
names += ["tokens_per_second", "device"]
print(" | ".join(["run", *names]))
for run, summary in rows:
    print(" | ".join([run, *(str(summary[name]) for name in names)]))
PY
