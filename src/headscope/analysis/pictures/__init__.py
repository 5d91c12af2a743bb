"""The pictures of a report about attention heads: tensors and plain values in, a matplotlib Figure
out, which the caller saves as PNG or SVG."""

from headscope.analysis.pictures.heads import (
    changes_of_heads,
    heatmaps_of,
    layers_by_heads,
    similarity_histogram,
    similarity_matrix,
)
from headscope.analysis.pictures.history import history
from headscope.analysis.pictures.maps import (
    attention_maps,
    difference_map,
    mark_diagonals,
    mean_map,
)
from headscope.analysis.pictures.position import bias_map, position_picture
from headscope.analysis.pictures.single_and_multi import single_and_multi_head

__all__ = [
    "attention_maps",
    "bias_map",
    "changes_of_heads",
    "difference_map",
    "heatmaps_of",
    "history",
    "layers_by_heads",
    "mark_diagonals",
    "mean_map",
    "position_picture",
    "similarity_histogram",
    "similarity_matrix",
    "single_and_multi_head",
]
