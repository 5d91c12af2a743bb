"""The pictures of a report, each with its file name.

Shapes: L layers, H heads per layer, T tokens.
"""

from collections.abc import Iterator, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from headscope.analysis import pictures
from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.metrics import colour_ends
from headscope.analysis.report.inputs import AblationResult
from headscope.analysis.report.selection import Head
from headscope.checkpoint import AttentionReading, Checkpoint

Pictures = Iterator[tuple[str, Figure]]
"""File names without extension, and pictures."""


def maps(reading: AttentionReading) -> Pictures:
    """For each layer, the attention maps of all heads, and their mean."""
    for layer, weights in enumerate(reading.weights):
        heads = pictures.attention_maps(weights, reading.labels, title=f"Layer {layer}")
        yield f"attention_layer_{layer}", heads
        title = f"Layer {layer}, mean over its heads"
        yield f"attention_mean_{layer}", pictures.mean_map(weights, reading.labels, title=title)


def difference_of_heads(reading: AttentionReading, first: Head, second: Head) -> Pictures:
    """The map of the first head minus the map of the second."""
    names = (f"L{first[0]}H{first[1]}", f"L{second[0]}H{second[1]}")
    difference = pictures.difference_map(
        reading.weights[first],
        reading.weights[second],
        reading.labels,
        title=f"{names[0]} minus {names[1]}",
        names=names,
    )
    yield f"difference_{names[0]}_{names[1]}", difference


def difference_of_checkpoints(
    reading: AttentionReading, loaded: Checkpoint, other: Checkpoint
) -> Pictures:
    """The maps of `loaded`, given as `reading`, minus those of `other`, for the layers that both
    have: the mean over heads and, if both have equally many heads, each head. If one of the two has
    a single head and the other several, also a picture of both side by side."""
    other_reading = other.attention(reading.tokens)
    # The other model may have a shorter block_size. Causal maps can be cut to it.
    length = len(other_reading.tokens)
    labels = reading.labels[:length]
    names = (label_of(loaded), label_of(other))
    layers = zip(reading.weights, other_reading.weights, strict=False)
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


def label_of(loaded: Checkpoint) -> str:
    """A label that identifies a checkpoint: the last two folders of the run, the file, the step and
    the number of heads."""
    path, heads = loaded.path.resolve(), loaded.model.attentions[0].heads
    run = path.parents[1] if path.parent.name == "checkpoints" else path.parent
    file = "/".join([*run.parts[-2:], path.stem])
    return f"{file}, step {loaded.step:,}, {heads} head{'s' if heads > 1 else ''}"


def figures(statistics: HeadStatistics) -> Pictures:
    """Heatmaps of all figures, and the cosine similarity of each pair of heads."""
    ends = {name: colour_ends(name, statistics.tokens) for name in statistics.figures}
    yield (
        "figures",
        pictures.heatmaps_of(
            statistics.figures, title="Figures of all heads", ends=ends, marks=statistics.uniform
        ),
    )
    texts = {"title": "Similarity of heads", "label": "cosine similarity of two heads"}
    matrix = pictures.similarity_matrix(statistics.similarity, statistics.names, **texts)
    yield "similarity", matrix
    yield "similarity_histogram", pictures.similarity_histogram(statistics.similarity, **texts)


def distances(matrix: Tensor, names: Sequence[str]) -> Pictures:
    """The Jensen-Shannon distance of each pair of heads (L H, L H), on the text of the page."""
    title, label = "Distance of heads", "Jensen-Shannon distance on the text of the maps"
    yield "jensen_shannon", pictures.similarity_matrix(matrix, names, title=title, label=label)


def ablation(result: AblationResult) -> Pictures:
    """The change of the loss without each head."""
    replacement = "its mean" if result.replace_by == "mean" else "zero"
    label = (
        f"change of the loss in nats per token when a head is replaced by {replacement}; above 0, "
        "the head helps"
    )
    change = result.figures["loss_change"]
    title = "Change of the loss without each head"
    yield "ablation", pictures.changes_of_heads(change, title=title, label=label)


def history(statistics: Sequence[tuple[int, HeadStatistics]]) -> Pictures:
    """Each figure of each head over the steps of training."""
    steps = [step for step, _ in statistics]
    values = {
        name: torch.stack([at_step.figures[name] for _, at_step in statistics])
        for name in statistics[0][1].figures
    }
    yield "history", pictures.history(steps, values, title="Figures of all heads during training")


def position(loaded: Checkpoint) -> Pictures:
    """The picture of the position encoding, if there is one for its type."""
    picture = pictures.position_picture(loaded.model.position)
    if picture is not None:
        yield "position", picture
