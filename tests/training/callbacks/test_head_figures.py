"""The figures of heads in TensorBoard, read with TensorBoard's own reader."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from running import DRAWN, SMALL, Script, events
from tensorboard.plugins.custom_scalar import layout_pb2

from headscope import checkpoint
from headscope.analysis.diversity import cosine_similarity, diversity
from headscope.analysis.metrics import METRICS, head_figures
from headscope.analysis.repeats import REPEAT_FIGURES, repeat_figures
from headscope.analysis.report.inputs import classify_vocabulary
from headscope.analysis.tokens import mass_on, targets_in
from headscope.data.batches import spread_windows
from headscope.data.store import open_store
from headscope.nn.capture import attention_weights
from headscope.training.callbacks.head_figures import REPEATED_TEXTS, type_table
from headscope.training.callbacks.step_callback import spread_steps

RUN = "outputs/run"
FIGURES = {*METRICS, "same_token", "punctuation", "frequent", *REPEAT_FIGURES}


@pytest.fixture
def measured(script: Script, speeches: Path) -> None:
    """A run of 5 steps that measures heads every 2 steps and draws pictures at steps 0, 1 and 5."""
    said = script(
        "train",
        *SMALL,
        f"data.path={speeches}",
        "trainer.max_steps=5",
        "model.heads=2",
        "callbacks.heads.every_steps=2",
        "callbacks.heads.images=3",
        "callbacks.heads.windows=3",
        f"hydra.run.dir={RUN}",
    )
    assert said.code == 0, said.err


def test_all_figures_of_all_heads_are_logged(measured) -> None:
    log = events(RUN)
    heads = [f"L{layer}H{head}" for layer in range(2) for head in range(2)]
    tags = {f"heads/{name}/{head}" for name in FIGURES for head in heads}
    logged = {tag for tag in log.Tags()["scalars"] if tag.startswith("heads/")}
    assert logged == tags | {"heads/diversity"}
    for tag in logged:
        assert [event.step for event in log.Scalars(tag)] == [0, 1, 2, 4, 5]

    # The last logged figures equal those of the saved weights on the same windows.
    loaded = checkpoint.load(f"{RUN}/checkpoints/last.ckpt")
    model, tokenizer = loaded.model, loaded.tokenizer
    [store] = [path for path in Path("data").iterdir() if path.is_dir()]
    validation = open_store(store).validation
    windows = spread_windows(validation, windows=3, length=32)
    assert windows.shape == (3, 32)
    weights = attention_weights(model, windows)
    expected = {name: value.mean(dim=1) for name, value in head_figures(weights).items()}
    for name, targets in targets_in(windows, classify_vocabulary(tokenizer, validation)).items():
        mass, queries = mass_on(weights, targets)
        expected[name] = mass / queries
    excluded = [tokenizer.end_of_text]
    expected |= repeat_figures(model, texts=REPEATED_TEXTS, excluded=excluded)
    assert expected.keys() == FIGURES
    for name, figure in expected.items():
        for layer, head in np.ndindex(2, 2):
            last = log.Scalars(f"heads/{name}/L{layer}H{head}")[-1].value
            assert last == pytest.approx(figure[layer, head].item(), rel=1e-4, abs=1e-6)
    similarity = cosine_similarity(weights.transpose(0, 1).flatten(1, 2)).mean(dim=0)
    last = log.Scalars("heads/diversity")[-1].value
    assert last == pytest.approx(diversity(similarity).item(), rel=1e-4)

    # The tab Custom Scalars has one category per figure, with one chart per layer.
    layout = layout_pb2.Layout()
    [event] = log.Tensors("custom_scalars__config__")
    layout.ParseFromString(event.tensor_proto.string_val[0])
    assert {category.title for category in layout.category} == FIGURES
    for category in layout.category:
        assert [chart.title for chart in category.chart] == ["layer 0", "layer 1"]
        for layer, chart in enumerate(category.chart):
            tags_of_layer = [f"heads/{category.title}/L{layer}H{head}" for head in range(2)]
            assert list(chart.multiline.tag) == tags_of_layer

    # Pictures and the table of head types.
    for tag in ("heads/figures", "heads/similarity"):
        pictures = log.Images(tag)
        assert [picture.step for picture in pictures] == [0, 1, 5]
        for picture in pictures:
            file = Path("picture.png")
            file.write_bytes(picture.encoded_image_string)
            image = np.asarray(Image.open(file).convert("RGB"))
            assert image.shape == (picture.height, picture.width, 3)
            assert len(np.unique(image.reshape(-1, 3), axis=0)) > 20
        assert pictures[0].encoded_image_string != pictures[-1].encoded_image_string
    words = log.Tensors("heads/types/text_summary")
    assert [event.step for event in words] == [0, 1, 2, 4, 5]
    fresh = words[0].tensor_proto.string_val[0].decode()
    assert fresh == "| layer | head 0 | head 1 |\n| --- | --- | --- |\n| 0 | - | - |\n| 1 | - | - |"


def test_measuring_heads_does_not_change_training(script: Script, speeches: Path) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=6", "model.dropout=0.2"]
    measuring = [*DRAWN, "callbacks.heads.every_steps=1"]
    # SMALL sets keys of callbacks, so the choice of callbacks must come before it.
    for folder, before, after in (
        ("plain", ["callbacks=plain"], []),
        ("measured", [], measuring),
    ):
        said = script("train", *before, *words, *after, f"hydra.run.dir=outputs/{folder}")
        assert said.code == 0, said.err
    plain, measured = (
        torch.load(f"outputs/{folder}/checkpoints/last.ckpt", weights_only=True)
        for folder in ("plain", "measured")
    )
    assert plain["state_dict"].keys() == measured["state_dict"].keys()
    for name, weight in plain["state_dict"].items():
        assert torch.equal(weight, measured["state_dict"][name]), name
    losses = (
        json.loads(Path(f"outputs/{folder}/summary.json").read_text())["val_loss"]
        for folder in ("plain", "measured")
    )
    assert len(set(losses)) == 1
    logged = events("outputs/plain").Tags()
    assert not [tag for tag in logged["scalars"] + logged["images"] if "head" in tag]
    assert [tag for tag in events("outputs/measured").Tags()["scalars"] if "head" in tag]


def test_the_table_of_types_has_one_row_per_layer() -> None:
    assert type_table(["self", "-", "mixed", "induction"], heads=2).splitlines()[2:] == [
        "| 0 | self | - |",
        "| 1 | mixed | induction |",
    ]


@pytest.mark.parametrize("images", [0, 1, 2, 3, 10])
def test_steps_with_pictures_are_evenly_spaced_in_log_time(images) -> None:
    steps = spread_steps(images, 900)
    assert len(steps) <= images
    assert steps == sorted(set(steps))
    if images:
        assert steps[-1] == 900
    if images > 1:
        assert steps[0] == 0
    if images > 3:
        gaps = [math.log(after / before) for before, after in pairwise(steps[1:])]
        assert max(gaps) < 2 * math.log(900) / (images - 2)
