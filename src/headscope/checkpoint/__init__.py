"""Finds and reads checkpoint files, and builds models from them. Reading never runs code from a
file. The imports name what this package exports (`import read as read`, PEP 484)."""

from headscope.checkpoint.building import build_model as build_model
from headscope.checkpoint.building import build_model_for as build_model_for
from headscope.checkpoint.file import Stored as Stored
from headscope.checkpoint.file import contents as contents
from headscope.checkpoint.file import read as read
from headscope.checkpoint.file import write as write
from headscope.checkpoint.finding import find as find
from headscope.checkpoint.finding import pick_device as pick_device
from headscope.checkpoint.loading import check_sizes as check_sizes
from headscope.checkpoint.loading import load_weights as load_weights
from headscope.checkpoint.loading import own_tokenizer as own_tokenizer
from headscope.checkpoint.loading import sources as sources
