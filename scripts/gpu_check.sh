#!/usr/bin/env bash
# Everything that is worth seeing on a GPU, and one table of what came of it:
#   bash scripts/gpu_check.sh [key=value ...]      the keys go to every run, for example
#   bash scripts/gpu_check.sh store_dir=/mnt/data
# tiny-shakespeare is downloaded; SHAKESPEARE=input.txt takes a local copy. Some ten minutes.
# Steps and sampling are compared with transformers: pip install -e '.[peers]'
set -euo pipefail
cd "$(dirname "$0")/.."
python -c "import transformers" || { echo "first: pip install -e '.[peers]'" >&2; exit 1; }

out=outputs/gpu_check_$(date +%Y-%m-%d_%H-%M-%S)
shakespeare=()
if [ -n "${SHAKESPEARE:-}" ]; then shakespeare=("data.path=$SHAKESPEARE"); fi

echo "--- runs"
python scripts/train.py "hydra.run.dir=$out/default" "$@"
python scripts/train.py experiment=nanogpt_gpu "${shakespeare[@]}" "hydra.run.dir=$out/nanogpt_gpu" "$@"
for seed in 1 2 3; do
  python scripts/train.py experiment=speedrun_gpu "${shakespeare[@]}" "seed=$seed" \
    "hydra.run.dir=$out/speedrun_gpu_$seed" "$@"
done
python scripts/sample.py "checkpoint=$out/nanogpt_gpu" max_new_tokens=100

echo "--- a training step: nanoGPT's GPU recipe, then GPT-2's smallest shape, its vocabulary a little smaller"
python scripts/benchmark.py suite=training suite.peers=true experiment=nanogpt_gpu model.dropout=0 \
  "${shakespeare[@]}" "output=$out/step_nanogpt.json" "$@"
python scripts/benchmark.py suite=training suite.peers=true suite.rounds=10 suite.steps=10 \
  tokenizer.vocab_size=47744 model.block_size=1024 model.embed_dim=768 model.layers=12 model.heads=12 \
  trainer.batch_size=16 trainer.loss_chunk_tokens=null optimizer=adamw "output=$out/step_124m.json" "$@"

echo "--- sampling"
python scripts/benchmark.py suite=sampling "output=$out/sampling.json"

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
