"""A trained model: the weights of a checkpoint with everything that one does with them."""

from headscope.trained.model import TrainedModel as TrainedModel
from headscope.trained.model import load as load
