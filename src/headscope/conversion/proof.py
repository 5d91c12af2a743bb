"""Compares an exported model with ours.

Shapes: B batch, T tokens, V vocab_size.
"""

import torch
from torch import Tensor

from headscope.checkpoint import Checkpoint

TOLERANCE = 1e-4
"""The largest difference that logits may have. If the largest logit is above 10, the difference may
be larger in proportion, because float32 has seven digits."""

COMPARED_TOKENS = 64
"""The most tokens of a sequence that are compared."""


class NotEqual(Exception):
    """An exported model does not compute what our model computes. This is a bug in headscope, or in
    a version of the other tool that is not supported."""


def probe(loaded: Checkpoint) -> tuple[Tensor, list[int]]:
    """Random tokens (2, T) to compare, with an end of text in the middle, and the prompt of the
    greedy text."""
    length = min(COMPARED_TOKENS, loaded.model.block_size)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(loaded.tokenizer.vocab_size, (2, length), generator=generator)
    if length > 2 and loaded.tokenizer.end_of_text is not None:
        tokens[:, length // 2] = loaded.tokenizer.end_of_text
    return tokens, tokens[0, : min(8, (length + 1) // 2)].tolist()


def compare_logits(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference between logits (B, T, V). Raises NotEqual if it is too large."""
    if ours.shape != theirs.shape:
        raise NotEqual(f"logits have shape {tuple(theirs.shape)} instead of {tuple(ours.shape)}")
    difference = (ours - theirs).abs().max().item()
    largest = ours.abs().max().item()
    if not difference <= TOLERANCE * max(1.0, largest / 10):  # NaN is not equal either
        raise NotEqual(f"logits differ by {difference:.2g}, and the largest is {largest:.2g}")
    return difference
