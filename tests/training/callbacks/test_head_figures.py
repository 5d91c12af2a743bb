"""What is watched while it trains: read back with TensorBoard's own reader."""

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
from headscope.training.callbacks.heads import REPEATED_TEXTS, table
from headscope.training.callbacks.watching import spread_steps

RUN = "outputs/run"
FIGURES = {*METRICS, "same_token", "punctuation", "frequent", *REPEAT_FIGURES}


@pytest.fixture
def watched(script: Script, speeches: Path) -> None:
    """A run of 5 steps whose heads are watched at 0, 2, 4 and 5, and drawn at 0, 1 and 5."""
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


def test_all_figures_of_all_heads_are_logged(watched) -> None:
    log = events(RUN)
    heads = [f"L{layer}H{head}" for layer in range(2) for head in range(2)]
    tags = {f"heads/{name}/{head}" for name in FIGURES for head in heads}
    logged = {tag for tag in log.Tags()["scalars"] if tag.startswith("heads/")}
    assert logged == tags | {"heads/diversity"}
    for tag in logged:
        assert [event.step for event in log.Scalars(tag)] == [0, 1, 2, 4, 5]

    # The last are those of the weights that were saved, on the same windows.
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
    alike = cosine_similarity(weights.transpose(0, 1).flatten(1, 2)).mean(dim=0)
    last = log.Scalars("heads/diversity")[-1].value
    assert last == pytest.approx(diversity(alike).item(), rel=1e-4)

    # Custom Scalars: a category for each figure, in it a chart for each layer.
    arranged = layout_pb2.Layout()
    [event] = log.Tensors("custom_scalars__config__")
    arranged.ParseFromString(event.tensor_proto.string_val[0])
    assert {category.title for category in arranged.category} == FIGURES
    for category in arranged.category:
        assert [chart.title for chart in category.chart] == ["layer 0", "layer 1"]
        for layer, chart in enumerate(category.chart):
            of_layer = [f"heads/{category.title}/L{layer}H{head}" for head in range(2)]
            assert list(chart.multiline.tag) == of_layer

    # Pictures and words.
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


def test_watching_changes_no_weight(script: Script, speeches: Path) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=6", "model.dropout=0.2"]
    watching = [*DRAWN, "callbacks.heads.every_steps=1"]
    for folder, more in (("plain", ["callbacks=plain"]), ("watched", watching)):
        said = script("train", *words, *more, f"hydra.run.dir=outputs/{folder}")
        assert said.code == 0, said.err
    plain, seen = (
        torch.load(f"outputs/{folder}/checkpoints/last.ckpt", weights_only=True)
        for folder in ("plain", "watched")
    )
    assert plain["state_dict"].keys() == seen["state_dict"].keys()
    for name, weight in plain["state_dict"].items():
        assert torch.equal(weight, seen["state_dict"][name]), name
    losses = (
        json.loads(Path(f"outputs/{folder}/summary.json").read_text())["val_loss"]
        for folder in ("plain", "watched")
    )
    assert len(set(losses)) == 1
    logged = events("outputs/plain").Tags()
    assert not [tag for tag in logged["scalars"] + logged["images"] if "head" in tag]
    assert [tag for tag in events("outputs/watched").Tags()["scalars"] if "head" in tag]


def test_what_heads_are_called_is_a_table_of_layers() -> None:
    assert table(["self", "-", "mixed", "induction"], heads=2).splitlines()[2:] == [
        "| 0 | self | - |",
        "| 1 | mixed | induction |",
    ]


@pytest.mark.parametrize("images", [0, 1, 2, 3, 10])
def test_pictures_are_spread_over_the_run(images) -> None:
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
