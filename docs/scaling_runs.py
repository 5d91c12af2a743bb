"""The runs in docs/scaling.md, and the rows of its tables. docs/parts.py makes the tables."""

from collections.abc import Callable
from typing import Any

Estimate = Callable[[str], dict[str, Any]]
"""Runs scripts/estimate.py with the given words, and returns what it prints."""

GPT = "model=gpt2 tokenizer=gpt2 optimizer=adamw"
MODELS = {
    "124M": f"{GPT} model.embed_dim=768 model.layers=12 model.heads=12 model.block_size=1024 "
    "trainer.batch_size=512",
    "1B": f"{GPT} model.embed_dim=2048 model.layers=18 model.heads=16 model.block_size=2048 "
    "trainer.batch_size=512",
    "7B": f"{GPT} model.embed_dim=4096 model.layers=32 model.heads=32 model.block_size=4096 "
    "trainer.batch_size=1024",
}
"""Model sizes with usual batches: 0.5, 1 and 4 million tokens per step."""

TOKENS = (1e10, 1e11, 1e12)
H100 = "estimate.gpu_gib=80 estimate.tflops=989"
"""An H100 SXM: 80 GiB, and 989 TFLOP/s in bf16 without sparsity."""

AUTO = f"trainer.accumulate=auto {H100}"
SAVING = "trainer.checkpoint_activations=true"
MEMORY = [
    ("124M, 1 GPU", f"{MODELS['124M']} {AUTO}"),
    ("124M, 8 GPUs, DDP", f"{MODELS['124M']} {AUTO} estimate.devices=8"),
    ("1B, 1 GPU", f"{MODELS['1B']} {AUTO}"),
    ("1B, 8 GPUs, DDP", f"{MODELS['1B']} {AUTO} estimate.devices=8"),
    ("1B, 8 GPUs, FSDP", f"{MODELS['1B']} {AUTO} estimate.devices=8 estimate.strategy=fsdp"),
    ("7B, 8 GPUs, DDP", f"{MODELS['7B']} {AUTO} estimate.devices=8 {SAVING}"),
    ("7B, 8 GPUs, FSDP", f"{MODELS['7B']} {AUTO} estimate.devices=8 estimate.strategy=fsdp"),
    (
        "7B, 8 GPUs, FSDP, activation checkpointing",
        f"{MODELS['7B']} {AUTO} estimate.devices=8 estimate.strategy=fsdp {SAVING}",
    ),
    (
        "7B, 64 GPUs, FSDP, activation checkpointing",
        f"{MODELS['7B']} {AUTO} estimate.devices=64 estimate.strategy=fsdp {SAVING}",
    ),
]

LLAMA = (
    "model=modern model/attention=grouped_query model.heads=32 model.kv_heads=8 optimizer=adamw "
    "estimate.vocab_size=128256 model.embed_dim=4096 model.layers=39 model.block_size=4096 "
    "trainer.batch_size=32 estimate.devices=8 estimate.strategy=fsdp estimate.tflops=989 "
    "estimate.gpu_gib=96"
)
PUBLISHED = [
    (
        "llm.c, GPT-2 124M, 8 A100",
        f"{MODELS['124M']} estimate.gpu_gib=80 estimate.devices=8 estimate.tflops=312",
        0.300,
        "up to 0.60",
        "-",
    ),
    (
        "llm.c, GPT-2 1558M, 8 H100",
        f"{GPT} model.embed_dim=1600 model.layers=48 model.heads=25 model.block_size=1024 "
        f"trainer.batch_size=128 trainer.accumulate=8 {H100} estimate.devices=8",
        2.80,
        "-",
        "at most 80",
    ),
    (
        "nanochat, d32, 8 H100",
        "model=modern optimizer=muon estimate.vocab_size=65536 model.embed_dim=2048 "
        "model.layers=32 model.heads=16 model.block_size=2048 trainer.batch_size=64 "
        f"trainer.accumulate=4 {H100} estimate.devices=8",
        1.572,
        "0.509",
        "78 (compiled)",
    ),
    (
        "torchtitan, Llama 3.1 8B, 8 H100",
        LLAMA,
        2 * 8192 / 5762,
        "0.33",
        "82.4; 77.0 compiled (selective checkpointing)",
    ),
    (
        "the same, activation checkpointing",
        f"{LLAMA} {SAVING}",
        2 * 8192 / 5762,
        "0.33",
        "-",
    ),
]
"""Name, words of scripts/estimate.py, seconds per step, model FLOPs utilization and memory of one
device, as published. The sources are in docs/scaling.md."""


def memory_row(estimate: Estimate, name: str, words: str) -> dict[str, Any]:
    found = estimate(words)
    parts = found["memory_gib"]
    return {
        "side": name,
        "batch": f"{found['batch_size']} x {found['accumulate']}",
        "kept": f"{parts['parameters'] + parts['gradients'] + parts['optimizer']:.1f}",
        "peak": f"{found['peak_gib']:.1f}",
        "fits": "yes" if found["fits"] else "no",
        "sent": f"{found['sent_gb_per_step']:,.1f}",
        "rate": f"{found['sent_gb_per_step'] / found['seconds_per_step']:,.1f}",
        "checkpoint": f"{found['checkpoint_gb']:.1f}",
    }


def watching_row(estimate: Estimate, name: str) -> dict[str, Any]:
    model = MODELS[name].rpartition(" ")[0]  # without the batch size
    peaks = estimate(f"{model} {H100} trainer.batch_size=1 callbacks=default")["peaks_gib"]
    watching = peaks.pop("watching")
    return {"side": name, "watching": f"{watching:,.1f}", "step": f"{max(peaks.values()):,.1f}"}


def time_row(estimate: Estimate, name: str, tokens: float) -> dict[str, Any]:
    found = estimate(f"{MODELS[name]} {H100} estimate.tokens={tokens}")
    days = found["hours"] / 24
    return {
        "side": f"{name}, {tokens / 1e9:,.0f} billion tokens",
        "flops": f"{found['flops']:.1e}",
        "text": f"{found['text_gb']:,.0f}",
        **{key: f"{days / gpus:,.2f}" for key, gpus in (("one", 1), ("node", 8), ("many", 64))},
    }


def published_row(
    estimate: Estimate, name: str, words: str, seconds: float, stated: str, memory: str
) -> dict[str, Any]:
    found = estimate(f"{words} estimate.mfu=1")
    return {
        "side": name,
        "seconds": f"{seconds:.3f}",
        "ideal": f"{found['seconds_per_step']:.3f}",
        "mfu": f"{found['seconds_per_step'] / seconds:.3f}",
        "stated": stated,
        "memory": memory,
        "peak": f"{found['peak_gib']:.1f}",
    }
