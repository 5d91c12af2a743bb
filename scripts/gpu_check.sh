#!/usr/bin/env bash
# Check and measure headscope on a GPU, part by part, with one table at the end:
#   bash scripts/gpu_check.sh [part ...] [out=folder] [key=value ...]
# The parts are tests, runs, speedrun, steps, documents, chunks and sampling. If no part is named, all
# run.
# Each should take less than 8 minutes on an H100, and all together less than 25 minutes.
# out= may name the folder of an earlier call: the new results are added to it.
# A key applies to every run, for example store_dir=/mnt/data. A key for one benchmark starts with the
# name of the benchmark: training.rounds=5, sampling.rounds=1. A key for the GPT-2 model in the parts
# steps, documents and chunks starts with gpt2: gpt2.tokenizer.vocab_size=320.
# tiny-shakespeare is downloaded. SHAKESPEARE=input.txt uses a local copy instead.
# A part is skipped with a message if its packages are not installed: the part sampling needs
# pip install -e '.[huggingface]', and the tests need '.[dev]'. With prepared token stores, the package
# `datasets` is not needed.
set -uo pipefail
cd "$(dirname "$0")/.."

all=(tests runs speedrun steps documents chunks sampling)
# The sizes of the smallest GPT-2, with a slightly smaller vocabulary.
gpt2=(model=gpt2 tokenizer.vocab_size=47744 model.block_size=1024 model.embed_dim=768
  model.layers=12 model.heads=12 optimizer=adamw trainer.batch_size=32)
parts=() keys=() training=() sampling=()
out=outputs/gpu_check_$(date +%Y-%m-%d_%H-%M-%S)
for word in "$@"; do
  case $word in
    out=*) out=${word#out=} ;;
    gpt2.*) gpt2+=("${word#*.}") ;;
    training.*) training+=("suite.${word#*.}") ;;
    sampling.*) sampling+=("suite.${word#*.}") ;;
    *=*) keys+=("$word") ;;
    *)
      [[ " ${all[*]} " == *" $word "* ]] || { echo "$word is not one of: ${all[*]}" >&2; exit 1; }
      parts+=("$word") ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]}")
mkdir -p "$out"
installed() { # installed PACKAGE ...: whether Python finds all of them
  python -c 'import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' "$@"
}
shakespeare=(data=tinyshakespeare)
if [ -n "${SHAKESPEARE:-}" ]; then shakespeare+=("data.path=$SHAKESPEARE"); fi

train() { # train NAME [key=value ...]: trains in $out/NAME, and replaces the run of an earlier call
  rm -rf "${out:?}/$1"
  python scripts/train.py "hydra.run.dir=$out/$1" "${@:2}" "${keys[@]}"
}
tests() {
  installed pytest xdist hypothesis psutil \
    || { echo "skipped: it needs pytest, pytest-xdist, hypothesis and psutil"; return; }
  # Only the files that have GPU tests, because the other files need more packages.
  grep -rl "mark\.gpu" tests --include='test_*.py' \
    | xargs python -m pytest -m gpu --numprocesses=0 -rs
}
runs() {
  train default \
    && train nanogpt_gpu experiment=nanogpt_gpu "${shakespeare[@]}" \
    && python scripts/sample.py "checkpoint=$out/nanogpt_gpu" max_new_tokens=100
}
speedrun() {
  for seed in 1 2 3; do
    train "speedrun_gpu_$seed" experiment=speedrun_gpu "${shakespeare[@]}" "seed=$seed" || return
  done
}
steps() {
  train step_124m "${gpt2[@]}" callbacks=plain trainer.max_steps=200 trainer.val_every_steps=200 \
    && python scripts/benchmark.py suite=training suite.rounds=10 suite.steps=10 \
      "${gpt2[@]}" "hydra.run.dir=$out/benchmark_124m" "${keys[@]}" "${training[@]}" \
    && python scripts/benchmark.py suite=training suite.rounds=10 suite.steps=20 \
      experiment=nanogpt_gpu model.dropout=0 "${shakespeare[@]}" "hydra.run.dir=$out/benchmark_nanogpt" \
      "${keys[@]}" "${training[@]}"
}
documents() { # compare with step_124m of the part steps
  train document_mask_124m "${gpt2[@]}" model.document_mask=true callbacks=plain \
    trainer.max_steps=200 trainer.val_every_steps=200
}
chunks() {
  for tokens in auto null 2048 8192; do
    train "chunk_$tokens" "${gpt2[@]}" callbacks=plain "trainer.loss_chunk_tokens=$tokens" \
      trainer.max_steps=60 trainer.val_every_steps=60 || return
  done
}
sampling() {
  installed transformers \
    || { echo "skipped: it compares with transformers, which is not installed"; return; }
  python scripts/benchmark.py suite=sampling "hydra.run.dir=$out/benchmark_sampling" "${sampling[@]}"
}

failed=()
for part in "${parts[@]}"; do
  echo "--- $part"
  started=$SECONDS
  "$part" || failed+=("$part")
  echo "--- $part: $((SECONDS - started)) s"
done
python scripts/gpu_table.py "$out" || failed+=(table)
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
