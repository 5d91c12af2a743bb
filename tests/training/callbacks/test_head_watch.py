"""What a run logs about its heads, read with TensorBoard's own reader."""

import io
import math
from functools import partial
from itertools import pairwise
from operator import sub
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_files import assert_same_weights
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from refusals import refused
from running import SMALL, events, snapshot_headers, summary
from small_gpt import gpt
from tensorboard.plugins.custom_scalar import layout_pb2

import headscope
from headscope import trained
from headscope.analysis.diversity import diversity
from headscope.analysis.head_images import head_image, image_tag
from headscope.analysis.head_statistics import head_similarity
from headscope.analysis.record import HeadRecord
from headscope.analysis.snapshot import compact_json, max_bytes
from headscope.data.store import open_store
from headscope.data.tokenizer import char
from headscope.data.windows import first_passage
from headscope.nn import GPT, Learned, MultiHeadAttention
from headscope.nn.capture import capture
from headscope.trained.records import head_recorder
from headscope.training.callbacks.attention import AttentionLog
from headscope.training.callbacks.heads import CHARTED, HeadWatch
from headscope.training.callbacks.steps import evenly_chosen, snapshot_steps, spread_steps
from headscope.training.head_plan import HeadPlan

RUN = "outputs/run"


def test_a_run_logs_what_its_weights_give(speeches):
    """It measures heads every 2 steps and draws images at steps 0, 2 and 5."""
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=5", "model.heads=2"]
    words += ["callbacks.heads.every_steps=2", "callbacks.heads.windows=3"]
    words += ["callbacks.saving.keep_steps=[]"]
    words += ["callbacks.attention.images=3", "callbacks.attention.steps=3"]
    headscope.train([*words, f"hydra.run.dir={RUN}"])
    log = events(RUN)
    heads = [f"L{layer}H{head}" for layer in range(2) for head in range(2)]
    tags = {f"watch/{name}/{head}" for name in CHARTED for head in heads}
    logged = {tag for tag in log.Tags()["scalars"] if tag.startswith("watch/")}
    assert logged == tags | {"watch/diversity"}
    for tag in logged:
        assert [event.step for event in log.Scalars(tag)] == [0, 2, 4, 5]

    # The last values equal those of the saved weights on the same windows.
    loaded = trained.load(f"{RUN}/checkpoints/last.safetensors")
    [store] = Path("data").glob("*/")
    validation = open_store(store).validation
    recorder = head_recorder(loaded.model, loaded.tokenizer, validation, windows=3)
    expected = recorder(loaded.model, step=5)
    for name in CHARTED:
        for head, value in zip(heads, expected.metrics[name].flatten().tolist(), strict=True):
            last = log.Scalars(f"watch/{name}/{head}")[-1].value
            assert last == pytest.approx(value, rel=1e-4, abs=1e-6)
    last = log.Scalars("watch/diversity")[-1].value
    unlike = diversity(head_similarity(loaded.model, recorder.keywords["windows"]))
    assert last == pytest.approx(float(unlike), rel=1e-4)

    # The tab Custom Scalars has one category per metric, with one chart per layer.
    layout = layout_pb2.Layout()
    [event] = log.Tensors("custom_scalars__config__")
    layout.ParseFromString(event.tensor_proto.string_val[0])
    assert {category.title for category in layout.category} == set(CHARTED)
    chart = layout.category[0].chart[1]
    assert chart.title == "layer 1"
    assert [*chart.multiline.tag] == [f"watch/{CHARTED[0]}/L1H{head}" for head in range(2)]

    # Snapshots have all metrics, and the weights of the probe text.
    snapshots = snapshot_headers(RUN)
    assert [header["step"] for header in snapshots] == snapshot_steps(3, 5)
    last = snapshots[-1]
    assert last["metrics"].keys() == expected.metrics.keys()
    for name, values in last["metrics"].items():
        assert values == pytest.approx(expected.metrics[name].flatten().tolist(), abs=1e-3), name
    assert last["names"] == [head.name for head in expected.types]
    assert (last["layers"], last["heads"], len(last["labels"])) == (2, 2, 32)

    # The last images show the saved weights, on the beginning of the validation split.
    assert set(log.Tags()["images"]) == {image_tag(0, 2), image_tag(1, 2)}
    tokens = first_passage(validation, 32)
    weights = capture(loaded.model, torch.tensor([tokens])).attention[:, 0]
    for layer in range(2):
        logged = log.Images(image_tag(layer, 2))
        assert [event.step for event in logged] == snapshot_steps(3, 5)
        last = Image.open(io.BytesIO(logged[-1].encoded_image_string)).convert("RGB")
        assert last.size == (logged[-1].width, logged[-1].height)
        expected = head_image(weights[layer]).convert("RGB")
        assert np.abs(np.asarray(last, int) - np.asarray(expected, int)).max() <= 3
        assert logged[0].encoded_image_string != logged[-1].encoded_image_string


def test_watching_does_not_change_training(speeches):
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=6", "model.dropout=0.2"]
    # SMALL sets keys of callbacks, so the choice of callbacks must come before it.
    for folder, keys in (
        ("plain", ["callbacks=plain", *words, "callbacks.attention.steps=0"]),
        ("watched", [*words, "callbacks.attention.images=8", "callbacks.heads.every_steps=1"]),
    ):
        run = headscope.train([*keys, f"hydra.run.dir={folder}"]).folder
        logged, watches = events(run).Tags(), folder == "watched"
        assert any(tag.startswith("watch") for tag in logged["scalars"]) == watches
        assert bool(logged["images"]) == ("attention" in logged["tensors"]) == watches
    assert_same_weights("plain", "watched")
    assert summary("plain")["val_loss"] == summary("watched")["val_loss"]


TOKENS = 10
TOKENIZER = char(["abcdefghi"])  # and two special tokens
PLANNED = {0, 900}  # the steps of planned snapshots: the first and the last


def watch(run_bytes: int = 10**9) -> AttentionLog:
    attention = AttentionLog(run_megabytes=run_bytes / 10**6)
    attention.tokens, attention.text_tokens = list(range(TOKENS)), TOKENS + 3
    attention.tokenizer, attention.vocabulary = TOKENIZER, TOKENIZER.vocabulary_labels()
    attention.labels = TOKENIZER.labels(attention.tokens)
    attention.snapshot_steps = {*PLANNED}
    return attention


def record(model: GPT, step: int) -> HeadRecord:
    text = np.arange(16 * TOKENS) % TOKENIZER.vocab_size
    return head_recorder(model, TOKENIZER, text)(model, step=step)


def flat_and_sharp() -> tuple[GPT, GPT]:
    """A model with uniform attention, whose heads have no name, and one whose heads have names."""
    flat = gpt()
    sharp = gpt(attention=partial(MultiHeadAttention, scale=40.0), position=Learned)
    with torch.no_grad():
        for parameter in flat.parameters():
            parameter.zero_()
    return flat, sharp


def measured(tmp_path: Path, attention: AttentionLog, models: dict[int, GPT]) -> list[int]:
    """The steps of the snapshots after `attention` has logged each model at its step."""
    logger = TensorBoardLogger(tmp_path, name="", version="tensorboard")
    for step, model in models.items():
        trainer: Any = SimpleNamespace(global_step=step, loggers=[logger], is_global_zero=True)
        heads = SimpleNamespace(record=lambda module, step=step: record(module.model, step))
        module: Any = SimpleNamespace(model=model, heads=heads)
        attention.log_heads(trainer, module, at_stop=False)
    logger.finalize("success")
    return [header["step"] for header in snapshot_headers(tmp_path)]


def test_a_name_is_announced_once_also_after_a_resume():
    flat, sharp = flat_and_sharp()
    types = record(sharp, 20).types
    heads = HeadWatch()
    models = {0: flat, 20: sharp, 40: flat, 60: sharp}
    said = [heads.new_names(record(model, step), step) for step, model in models.items()]
    expected = [
        f"step 20  L{index // 4}H{index % 4} is now a {each.name} head "
        f"({each.label + ', ' if each.offset else ''}{each.score:.2f})"
        for index, each in enumerate(types)
        if each.name not in ("global", "mixed", "-")
    ]
    assert expected
    assert [line.replace(" an ", " a ") for line in said[1]] == expected
    assert said[0] == said[2] == said[3] == []

    resumed = HeadWatch()
    resumed.load_state_dict(heads.state_dict())
    assert resumed.new_names(record(sharp, 80), 80) == []


def test_heads_are_also_measured_where_planned_steps_are_far_apart():
    for shown, kept, every, expected in (
        ({0, 50, 420}, {7}, 100, [0, 7, 50, 200, 300, 400, 420, 600, 700, 800, 900, 1000]),
        ({0, 50, 420}, {7}, 0, [0, 7, 50, 420, 1000]),
        ((), {7}, 400, [0, 7, 800, 1000]),
        ((), {7}, 0, []),
    ):
        plan = HeadPlan()
        plan.shown, plan.kept, plan.every = shown, kept, every
        plan.begin(1000)
        assert sorted(plan.steps) == expected


def test_snapshots_are_added_when_names_change_and_leave_room_for_planned_ones(tmp_path):
    flat, sharp = flat_and_sharp()
    models = {0: flat, 20: flat, 40: sharp, 60: sharp, 80: flat, 900: flat}
    assert measured(tmp_path / "wide", watch(), models) == [0, 40, 80, 900]
    header = snapshot_headers(tmp_path / "wide")[0]
    assert (len(header["labels"]), header["text_tokens"]) == (TOKENS, TOKENS + 3)
    models = {0: flat} | {20 * n: [flat, sharp][n % 2] for n in range(1, 10)} | {900: flat}
    size = max_bytes(2, 4, TOKENS, **sizes_of(TOKENIZER.vocabulary_labels()))
    watcher = watch(size)  # real snapshots are smaller than this upper limit
    steps = measured(tmp_path / "narrow", watcher, models)
    assert watcher.logged_bytes <= size
    assert (steps[0], steps[-1]) == (0, 900)
    assert 2 < len(steps) < len(models)


def sizes_of(labels: list[str]) -> dict[str, int]:
    """The sizes of a vocabulary for `max_bytes`."""
    return {"vocab_size": len(labels), "label_bytes": len(compact_json(labels).encode())}


def test_a_text_is_shortened_to_the_size_of_a_step(speeches):
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=2", f"hydra.run.dir={RUN}"]
    headscope.train([*words, "callbacks.attention.step_megabytes=0.018"])
    shown, limit = len(snapshot_headers(RUN)[0]["labels"]), 18_000
    assert 0 < shown < 32
    labels = trained.load(f"{RUN}/checkpoints/last.safetensors").tokenizer.vocabulary_labels()
    sizes = {"layers": 2, "heads": 4, **sizes_of(labels)}
    assert max_bytes(**sizes, tokens=shown) <= limit < max_bytes(**sizes, tokens=shown + 1)
    for event in events(RUN).Tensors("attention"):
        assert sum(map(len, event.tensor_proto.string_val)) <= limit
    with refused("step_megabytes"):
        headscope.train([*words[:-1], "callbacks.attention.step_megabytes=0.001"])


@given(st.integers(1, 100), st.integers(1, 1000))
def test_snapshots_are_half_logarithmic_and_half_even(number, last):
    logarithmic, steps = spread_steps((number + 1) // 2, last), snapshot_steps(number, last)
    for each in (steps, logarithmic):
        assert each == sorted(set(each))
        assert len(each) <= number
        assert each[-1] == last
    if number < 4:
        return
    assert steps[0] == 0
    assert set(logarithmic) <= set(steps)
    gaps = [math.log(after / before) for before, after in pairwise(logarithmic[1:])]
    most = 2 * math.log(last) / max(1, len(logarithmic) - 2)
    assert max(gaps, default=0) <= max(most, math.log(2))
    assert max(map(sub, steps[1:], steps)) <= last / (number // 2 - 1) + 1
    # Images are drawn at some of these steps.
    chosen = evenly_chosen(steps, 8)
    assert len(chosen) == min(8, len(steps))
    assert set(chosen) <= set(steps)
    assert {steps[0], steps[-1]} <= set(chosen)
    places = [*map(steps.index, chosen)]
    between = [*map(sub, places[1:], places)]
    assert max(between) - min(between) <= 1
