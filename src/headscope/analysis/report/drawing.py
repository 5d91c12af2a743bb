"""The pictures of a report, each by the name of its file.

Shapes: L layers, H heads of a layer, T tokens.
"""

from collections.abc import Iterator, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from headscope.analysis import pictures
from headscope.analysis.metrics import colour_ends
from headscope.analysis.report.chosen import Head
from headscope.analysis.report.subject import AblationResult
from headscope.analysis.study import HeadStatistics
from headscope.checkpoint import AttentionReading, Checkpoint

Pictures = Iterator[tuple[str, Figure]]


def maps(reading: AttentionReading) -> Pictures:
    """All heads of every layer, and their mean."""
    for layer, weights in enumerate(reading.weights):
        each = pictures.attention_maps(weights, reading.labels, title=f"Layer {layer}")
        yield f"attention_layer_{layer}", each
        title = f"Layer {layer}, the mean over its heads"
        yield f"attention_mean_{layer}", pictures.mean_map(weights, reading.labels, title=title)


def difference_of_heads(reading: AttentionReading, first: Head, second: Head) -> Pictures:
    """The map of one head less that of another."""
    ours, theirs = (f"L{layer}H{head}" for layer, head in (first, second))
    difference = pictures.difference_map(
        reading.weights[first],
        reading.weights[second],
        reading.labels,
        title=f"{ours} less {theirs}",
        names=(ours, theirs),
    )
    yield f"difference_{ours}_{theirs}", difference


def difference_of_checkpoints(
    reading: AttentionReading, ours: Checkpoint, theirs: Checkpoint
) -> Pictures:
    """The maps of `ours`, which are the `reading`, less those of `theirs`, of the layers that both
    have: of the means over heads and, where both have as many, of every head. Where one of them has
    a single head and the other several, also a sheet that compares the two."""
    other = theirs.attention(reading.tokens)
    # Its block_size may be shorter; what a token sees does not depend on those after it.
    length = len(other.tokens)
    labels = reading.labels[:length]
    names = (label_of(ours), label_of(theirs))
    for layer, (weights, others) in enumerate(zip(reading.weights, other.weights, strict=False)):
        seen = weights[:, :length, :length]
        mean = pictures.difference_map(
            seen.mean(dim=0),
            others.mean(dim=0),
            labels,
            title=f"Layer {layer} of two models, the means over heads, one less the other",
            names=names,
        )
        yield f"difference_mean_{layer}", mean
        if len(seen) == len(others):
            title = f"Layer {layer} of two models, one less the other"
            each = pictures.difference_map(seen, others, labels, title=title, names=names)
            yield f"difference_layer_{layer}", each
        elif 1 in (len(seen), len(others)):
            swapped = len(others) == 1
            single, multi = (others, seen) if swapped else (seen, others)
            sheet = pictures.single_and_multi_head(
                single[0],
                multi,
                labels,
                title=f"Layer {layer}: single-head and multi-head attention",
                names=names[::-1] if swapped else names,
            )
            yield f"single_and_multi_layer_{layer}", sheet


def label_of(loaded: Checkpoint) -> str:
    """What tells a checkpoint from others: its run's folder and the one around it, its file, its
    step and its heads."""
    path, heads = loaded.path.resolve(), loaded.model.attentions[0].heads
    run = path.parents[1] if path.parent.name == "checkpoints" else path.parent
    file = "/".join([*run.parts[-2:], path.stem])
    return f"{file}, step {loaded.step:,}, {heads} head{'s' if heads > 1 else ''}"


def figures(study: HeadStatistics) -> Pictures:
    """What every head does, and how alike any two are."""
    ends = {name: colour_ends(name, study.tokens) for name in study.figures}
    title = "What every head does"
    yield (
        "figures",
        pictures.heatmaps_of(study.figures, title=title, ends=ends, marks=study.uniform),
    )
    words = {"title": "How alike heads are", "label": "cosine similarity of two heads"}
    yield "similarity", pictures.similarity_matrix(study.similarity, study.names, **words)
    yield "similarity_histogram", pictures.similarity_histogram(study.similarity, **words)


def distance(distances: Tensor, names: Sequence[str]) -> Pictures:
    """The Jensen-Shannon distances between all heads (L H, L H), on the text of the page."""
    title, label = "How far apart heads are", "Jensen-Shannon distance on the text of the maps"
    yield "jensen_shannon", pictures.similarity_matrix(distances, names, title=title, label=label)


def worth(found: AblationResult) -> Pictures:
    """How much the loss rises without each head."""
    label = (
        "change of the loss, in nats per token, when a head is replaced by "
        f"{'its mean' if found.replace_by == 'mean' else 'zero'}; above 0 the head helps"
    )
    change = found.figures["loss_change"]
    yield (
        "ablation",
        pictures.changes_of_heads(change, title="What every head is worth", label=label),
    )


def history(studies: Sequence[tuple[int, HeadStatistics]]) -> Pictures:
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
