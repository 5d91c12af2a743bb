"""Finds and reads checkpoint files, and builds models from them. Reading never runs code from a
file. The imports name what this package exports (`import read as read`, PEP 484)."""

from headscope.trained.checkpoint.building import build_model as build_model
from headscope.trained.checkpoint.building import build_model_for as build_model_for
from headscope.trained.checkpoint.file import Stored as Stored
from headscope.trained.checkpoint.file import contents as contents
from headscope.trained.checkpoint.file import read as read
from headscope.trained.checkpoint.file import write as write
from headscope.trained.checkpoint.finding import find as find
from headscope.trained.checkpoint.finding import is_model_folder as is_model_folder
from headscope.trained.checkpoint.finding import pick_device as pick_device
from headscope.trained.checkpoint.loading import check_sizes as check_sizes
from headscope.trained.checkpoint.loading import load_weights as load_weights
from headscope.trained.checkpoint.loading import own_tokenizer as own_tokenizer
from headscope.trained.checkpoint.loading import sources as sources
