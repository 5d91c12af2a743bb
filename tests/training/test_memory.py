"""The laws of the memory estimate: fake tensors need the bytes that real tensors need, and a few
blocks tell the sizes of many."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from composing import training_config
from torch import nn

from headscope import checkpoint
from headscope.config import build_part
from headscope.config.training import TrainConfig
from headscope.nn.capture import evaluating
from headscope.training.fit import changed
from headscope.training.flops import training_flops
from headscope.training.memory import MAX_CHUNKS, LiveBytes, estimate, step_sizes, trace
from headscope.training.objective import Objective

SMALL = [
    *("callbacks=plain", "model.embed_dim=32", "model.block_size=32"),
    *("trainer.batch_size=4", "trainer.val_batch_size=2"),
]
VARIANTS = [
    [],
    ["optimizer=adamw", "trainer.accumulate=3"],
    ["optimizer=adamw", "trainer.checkpoint_activations=true", "model.dropout=0.1"],
    ["model=modern", "model.ngrams=3", "trainer.loss_chunk_tokens=10"],
    ["model/attention=additive", "model/position=relative"],
    ["model/attention=grouped_query", "model.heads=4", "model.kv_heads=2"],
    ["model/attention=stacked_heads", "model/norm=rms"],
]
every_variant = pytest.mark.parametrize("words", VARIANTS, ids=" ".join)
VOCABULARY = 50


def small(*words: str) -> TrainConfig:
    return training_config(*SMALL, *words)


def needs(config: TrainConfig, **options: Any) -> Any:
    return estimate(config, **{"vocab_size": VOCABULARY, "precision": "32-true"} | options)


def real_peak(config: TrainConfig) -> int:
    """The peak of the live bytes while real tensors take two steps and validate."""
    torch.manual_seed(0)
    tokens = torch.zeros(4, config.model.block_size, dtype=torch.long)
    settings = config.trainer
    with LiveBytes() as live:
        model = checkpoint.build_model(config.model, vocab_size=VOCABULARY).train()
        model.checkpoint_activations = settings.checkpoint_activations
        optimizer = build_part(config.optimizer)(model)
        objective = Objective(model, chunk_tokens=settings.loss_chunk_tokens)
        live.history.clear()  # a tied head has its own weight at first
        for _ in range(2):
            for _ in range(settings.accumulate):
                objective.loss(tokens, tokens).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad(), evaluating(model):
            objective.loss_sum(tokens[:2], tokens[:2])
    return max(live.history)


@every_variant
def test_the_estimate_is_what_a_real_step_needs(words):
    config = small("model.layers=5", *words)
    found = needs(config)
    assert found.peak == max(found.peaks.values()) == pytest.approx(real_peak(config), rel=0.02)
    model = checkpoint.build_model(config.model, vocab_size=VOCABULARY)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert found.weights == found.gradients == weights
    assert found.parameters == weights + sum(buffer.nbytes for buffer in model.buffers())
    tokens = 4 * config.trainer.accumulate * config.model.block_size
    assert found.step_flops == training_flops(model) * tokens


def assert_equal_sizes(found: dict, whole: dict, share: float) -> None:
    """Sizes differ by at most `share` of the peak. The parts that a step keeps do not differ."""
    largest = whole["parameters"] + whole["gradients"] + whole["forward"]
    assert found == pytest.approx(whole | {"block": found["block"]}, rel=0, abs=share * largest)
    for part in ("parameters", "gradients", "optimizer", "kept_gradients", "flops"):
        assert found[part] == whole[part]


@pytest.mark.parametrize(
    ("words", "precision"),
    [*((words, "32-true") for words in VARIANTS), ([], "bf16-mixed"), ([], "bf16-true")],
)
def test_two_blocks_tell_the_sizes_of_many(words, precision):
    config = small("model.layers=5", f"trainer.precision={precision}", *words)
    if config.trainer.loss_chunk_tokens == "auto":
        config = changed(config, loss_chunk_tokens=None)
    whole, found = trace(config, VOCABULARY, False), step_sizes(config, VOCABULARY, False, {})
    assert_equal_sizes(found, whole, 0.025)


@pytest.mark.slow
def test_small_batches_tell_the_sizes_of_large_ones():
    words = ["trainer.loss_chunk_tokens=16", "trainer.batch_size=30", "trainer.val_batch_size=40"]
    config = small("model.layers=3", *words)
    assert 30 * config.model.block_size / 16 > MAX_CHUNKS
    # In a new process: after a failed torch.compile, Python keeps some tensors longer.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        whole, found = (
            pool.submit(sizes, config, VOCABULARY, False, *more).result()
            for sizes, *more in ((trace,), (step_sizes, {}))
        )
    assert_equal_sizes(found, whole, 0.01)


def test_nothing_is_drawn_and_nothing_is_allocated():
    before = torch.get_rng_state()
    words = ["model.embed_dim=16384", "model.block_size=2048", "model.layers=90"]
    assert needs(small(*words, "trainer.batch_size=1000000"), vocab_size=10**5).peak > 2**43
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("more", "less", "saved"),
    [
        ([], ["trainer.checkpoint_activations=true"], "peak"),
        (["trainer.loss_chunk_tokens=null"], ["trainer.loss_chunk_tokens=8"], "peak"),
        (["trainer.accumulate=2"], [], "peak"),
        (["optimizer=adamw"], ["optimizer=muon"], "optimizer"),
        (["callbacks=default"], [], "watching"),
    ],
)
def test_what_saves_memory_needs_less(more, less, saved):
    shape = ["model.layers=6", "model.block_size=64"]
    one, other = (needs(small(*shape, *words), vocab_size=3000) for words in (more, less))
    assert getattr(one, saved) > getattr(other, saved)


def test_dropout_stores_the_attention_weights_only_on_a_cpu():
    config = small("model.dropout=0.1", "model.block_size=256", "model.layers=1")
    on_cpu, on_gpu = (needs(config, gpu_memory=memory) for memory in (None, 2**34))
    weights = 4 * 4 * config.model.heads * 256**2
    assert on_cpu.activations - on_gpu.activations >= weights


@pytest.mark.parametrize(("accumulate", "more"), [(1, set()), (2, {"backward"})])
def test_with_ddp_the_gradients_are_where_they_are_sent_from(accumulate, more):
    words = ["optimizer=adamw", f"trainer.accumulate={accumulate}"]
    one = needs(small(*words, "trainer.batch_size=4"))
    several = needs(small(*words, "trainer.batch_size=12"), devices=3)
    for time, size in one.peaks.items():
        added = one.gradients if time in {"forward", "validation"} | more else 0
        assert several.peaks[time] == size + added, time


def test_devices_share_the_model_with_fsdp():
    config = small("optimizer=adamw", "model.layers=30", "trainer.batch_size=1")
    one, eight, many = (needs(config, devices=n, strategy="fsdp") for n in (1, 8, 10**9))
    assert 8 * eight.optimizer == one.optimizer
    assert 8 * eight.gradients == one.gradients
    assert one.peak > eight.peak > many.peak
    blocks = step_sizes(changed(config, loss_chunk_tokens=None), VOCABULARY, False, {})["block"]
    assert many.parameters == pytest.approx(one.weights - 28 * blocks, rel=1e-3)


def test_live_bytes_count_storages_until_they_are_freed():
    with LiveBytes() as live:
        a = torch.ones(10, 100)
        view = a.t()[:3]
        assert live.now == 4000
        b = a + 1
        assert live.now == 8000
        del a
        assert live.now == 8000  # `view` keeps the storage
        del view, b
        assert live.now == 0
    assert max(live.history) == 8000
