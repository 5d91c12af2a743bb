"""Draws pictures of attention heads. Each function returns a matplotlib Figure."""

from headscope.analysis.pictures.heads import (
    changes_of_heads,
    heatmaps_of,
    history,
    patching_of_heads,
    similarity_matrix,
)
from headscope.analysis.pictures.maps import (
    attention_maps,
    difference_map,
    single_and_multi_head,
)
from headscope.analysis.pictures.position import bias_map, position_picture

__all__ = [
    "attention_maps",
    "bias_map",
    "changes_of_heads",
    "difference_map",
    "heatmaps_of",
    "history",
    "patching_of_heads",
    "position_picture",
    "similarity_matrix",
    "single_and_multi_head",
]
