"""Draws pictures of attention heads. Each function returns a matplotlib Figure."""

from headscope.analysis.pictures.heads import attention_maps as attention_maps
from headscope.analysis.pictures.heads import bias_map as bias_map
from headscope.analysis.pictures.heads import changes_of_heads as changes_of_heads
from headscope.analysis.pictures.heads import heatmaps_of as heatmaps_of
from headscope.analysis.pictures.heads import history as history
from headscope.analysis.pictures.heads import parts_of_heads as parts_of_heads
from headscope.analysis.pictures.heads import patching_of_heads as patching_of_heads
from headscope.analysis.pictures.heads import position_picture as position_picture
from headscope.analysis.pictures.heads import similarity_matrix as similarity_matrix
