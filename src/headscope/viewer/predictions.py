"""What the model predicts after each token (placeholder)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Predictions:
    lens_tokens: np.ndarray
    lens_probabilities: np.ndarray
    next_probabilities: np.ndarray
    next_pushes: np.ndarray
    push_tokens: np.ndarray | None
    push_values: np.ndarray | None
    labels: Sequence[str]
