"""Draws the pictures of a report, each with its file name.

Shapes: L layers, H heads per layer, T tokens.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from matplotlib.figure import Figure

from headscope.analysis import pictures
from headscope.analysis.head_outputs import Head
from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.metrics import colour_scales
from headscope.analysis.patching import PatchingResult, PatchTexts
from headscope.analysis.reading import Reading
from headscope.analysis.report.inputs import AblationResult

if TYPE_CHECKING:
    from headscope.trained import TrainedModel

Pictures = Iterator[tuple[str, Figure]]
"""Pairs of a file name without extension and a picture."""


def maps(reading: Reading) -> Pictures:
    """For each layer, the attention maps of all heads."""
    for layer, weights in enumerate(reading.attention):
        heads = pictures.attention_maps(weights, reading.labels, title=f"Layer {layer}")
        yield f"attention_layer_{layer}", heads


def difference_of_heads(reading: Reading, first: Head, second: Head) -> Pictures:
    """The attention map of the first head minus the attention map of the second head."""
    names = (f"L{first[0]}H{first[1]}", f"L{second[0]}H{second[1]}")
    difference = pictures.difference_map(
        reading.attention[first],
        reading.attention[second],
        reading.labels,
        title=f"{names[0]} minus {names[1]}",
        names=names,
    )
    yield f"difference_{names[0]}_{names[1]}", difference


def difference_of_checkpoints(
    reading: Reading, loaded: "TrainedModel", other: "TrainedModel"
) -> Pictures:
    """The attention maps of `loaded` minus the attention maps of `other`, for each layer that both
    models have. `reading` contains the maps of `loaded`. The difference is drawn for the mean over
    the heads and, if both models have equally many heads, for each head. If only one of the models
    has a single head, another picture shows the maps of both models side by side."""
    other_reading = other.read(reading.tokens.tolist()[: other.model.block_size])
    # If the other model has a shorter block_size, it has read fewer tokens. Cut the maps to these
    # tokens, which causal attention allows.
    length = len(other_reading.tokens)
    labels = reading.labels[:length]
    names = (label_of(loaded), label_of(other))
    layers = zip(reading.attention, other_reading.attention, strict=False)
    for layer, (weights, other_weights) in enumerate(layers):
        weights = weights[:, :length, :length]
        mean = pictures.difference_map(
            weights.mean(dim=0),
            other_weights.mean(dim=0),
            labels,
            title=f"Layer {layer} of two models: difference of the means over heads",
            names=names,
        )
        yield f"difference_mean_{layer}", mean
        if len(weights) == len(other_weights):
            title = f"Layer {layer} of two models: difference of each head"
            heads = pictures.difference_map(
                weights, other_weights, labels, title=title, names=names
            )
            yield f"difference_layer_{layer}", heads
        elif 1 in (len(weights), len(other_weights)):
            swapped = len(other_weights) == 1
            single, multi = (other_weights, weights) if swapped else (weights, other_weights)
            sheet = pictures.single_and_multi_head(
                single[0],
                multi,
                labels,
                title=f"Layer {layer}: single-head and multi-head attention",
                names=names[::-1] if swapped else names,
            )
            yield f"single_and_multi_layer_{layer}", sheet


def label_of(loaded: "TrainedModel") -> str:
    """A label that identifies a checkpoint. It contains the last two folders of the run's path, the
    file name, the step, and the number of heads."""
    path, heads = loaded.path.resolve(), loaded.model.attentions[0].heads
    run = path.parents[1] if path.parent.name == "checkpoints" else path.parent
    file = "/".join([*run.parts[-2:], path.stem])
    return f"{file}, step {loaded.step:,}, {heads} head{'s' if heads > 1 else ''}"


def metrics(statistics: HeadStatistics) -> Pictures:
    """Heatmaps of all metrics, and the cosine similarity of each pair of heads."""
    ends = colour_scales(statistics.metrics, statistics.tokens)
    yield (
        "metrics",
        pictures.heatmaps_of(
            statistics.metrics, title="Metrics of all heads", ends=ends, marks=statistics.uniform
        ),
    )
    texts = {"title": "Similarity of heads", "label": "cosine similarity of two heads"}
    matrix = pictures.similarity_matrix(statistics.similarity, statistics.heads, **texts)
    yield "similarity", matrix


def ablation(result: AblationResult) -> Pictures:
    """The change of the loss when each head is removed."""
    replacement = "its mean" if result.replace_by == "mean" else "zero"
    label = (
        f"change of the loss in nats per token when a head is replaced by {replacement}; above 0, "
        "the head helps"
    )
    names = {"loss_change": "measured", "loss_change_estimate": "estimated from gradients:"}
    changes = {names[name]: result.metrics[name] for name in names if name in result.metrics}
    title = "Change of the loss without each head"
    values = changes.get("measured") if len(changes) == 1 else None
    yield (
        "ablation",
        pictures.changes_of_heads(changes if values is None else values, title=title, label=label),
    )


def patching(texts: PatchTexts, result: PatchingResult) -> Pictures:
    """The scores of activation patching for each head."""
    place = "at all tokens"
    if texts.position is not None:
        labels = (each[texts.position] for each in (texts.clean_labels, texts.corrupted_labels))
        place = f"at token {texts.position} ({' / '.join(labels)})"
    title = (
        f"Activation patching of heads {place}\nclean: {''.join(texts.clean_labels)}\n"
        f"corrupted: {''.join(texts.corrupted_labels)}\n{texts.metric_name}: "
        f"{result.clean:.3g} (clean), {result.corrupted:.3g} (corrupted)"
    )
    yield (
        "patching",
        pictures.patching_of_heads(result.denoising, result.noising, title=title),
    )


def history(statistics: Sequence[tuple[int, HeadStatistics]]) -> Pictures:
    """Each metric of each head over the training steps."""
    steps = [step for step, _ in statistics]
    values = {
        name: torch.stack([at_step.metrics[name] for _, at_step in statistics])
        for name in statistics[0][1].metrics
    }
    yield "history", pictures.history(steps, values, title="Metrics of all heads during training")


def position(loaded: "TrainedModel") -> Pictures:
    """The picture of the position encoding, if this type of encoding has one."""
    picture = pictures.position_picture(loaded.model.position)
    if picture is not None:
        yield "position", picture
