"""A trained model: the weights of a checkpoint with everything that one does with them."""

from headscope.trained.load import load as load
from headscope.trained.model import TrainedModel as TrainedModel
