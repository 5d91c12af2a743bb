"""The pictures of a report, each by the name of its file.

Shapes: L layers, H heads of a layer, T tokens.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from headscope.analysis import pictures
from headscope.analysis.study import Study
from headscope.checkpoint import Checkpoint, Reading
from headscope.head_report.subject import Head

Pictures = Iterator[tuple[str, Figure]]


def maps(reading: Reading) -> Pictures:
    """All heads of every layer, and their mean."""
    for layer, weights in enumerate(reading.weights):
        title = f"Layer {layer}"
        yield (
            f"attention_layer_{layer}",
            pictures.attention_maps(weights, reading.labels, title=title),
        )
        mean = f"Layer {layer}, the mean over its heads"
        yield f"attention_mean_{layer}", pictures.mean_map(weights, reading.labels, title=mean)


def pair(reading: Reading, first: Head, second: Head) -> Pictures:
    """The map of one head less that of another."""
    names = tuple(f"L{layer}H{head}" for layer, head in (first, second))
    yield (
        f"difference_{names[0]}_{names[1]}",
        pictures.difference_map(
            reading.weights[first],
            reading.weights[second],
            reading.labels,
            title=f"{names[0]} less {names[1]}",
            names=(names[0], names[1]),
        ),
    )


def other(reading: Reading, loaded: Checkpoint, other: Checkpoint) -> Pictures:
    """The maps of one checkpoint less those of another, of the layers that both have: of the means
    over heads and, where both have as many, of every head."""
    theirs = other.attention(reading.tokens)
    # The other's block_size may be shorter; what a token sees does not depend on those after it.
    length = len(theirs.tokens)
    names = (label_of(loaded), label_of(other))
    for layer, (ours, theirs_here) in enumerate(zip(reading.weights, theirs.weights, strict=False)):
        ours, labels = ours[:, :length, :length], reading.labels[:length]
        mean = pictures.difference_map(
            ours.mean(dim=0),
            theirs_here.mean(dim=0),
            labels,
            title=f"Layer {layer}, the mean over its heads, less that of the other",
            names=names,
        )
        yield f"difference_mean_{layer}", mean
        if len(ours) == len(theirs_here):
            each = pictures.difference_map(
                ours, theirs_here, labels, title=f"Layer {layer}, less the other", names=names
            )
            yield f"difference_layer_{layer}", each


def label_of(loaded: Checkpoint) -> str:
    heads = loaded.model.attentions[0].heads
    return f"{loaded.config['name']}, step {loaded.step:,}, {heads} head{'s' if heads > 1 else ''}"


def figures(study: Study, distance: Tensor, worth: Mapping[str, Tensor]) -> Pictures:
    """What every head does, how alike any two are, and what each is worth where that is known.

    `distance` is Jensen and Shannon's between all heads (L H, L H).
    """
    yield "figures", pictures.heatmaps_of(study.figures, title="What every head does")
    alike = {"title": "How alike heads are", "label": "cosine similarity of two heads"}
    yield "similarity", pictures.similarity_matrix(study.similarity, study.names, **alike)
    yield "similarity_histogram", pictures.similarity_histogram(study.similarity, **alike)
    apart = {"title": "How far apart heads are", "label": "Jensen-Shannon distance of two heads"}
    yield "jensen_shannon", pictures.similarity_matrix(distance, study.names, **apart)
    if worth:
        yield (
            "ablation",
            pictures.layers_by_heads(
                1e3 * worth["loss_without"],
                title="What every head is worth",
                label="change of the loss without it, in thousandths of a nat per token",
                diverging=True,
            ),
        )


def history(studies: Sequence[tuple[int, Study]]) -> Pictures:
    """How every figure moved over the steps of training."""
    moved = {
        name: torch.stack([study.figures[name] for _, study in studies])
        for name in studies[0][1].figures
    }
    steps = [step for step, _ in studies]
    yield "history", pictures.history(steps, moved, title="How every head became what it is")


def position(loaded: Checkpoint) -> Pictures:
    """The position encoding's own picture, where it has one."""
    drawn = pictures.position_picture(loaded.model.position)
    if drawn is not None:
        yield "position", drawn
