"""The laws of `Checkpoint.attention`: what a reading holds, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import configuration, content, save

import headscope
from headscope.checkpoint import Checkpoint
from headscope.errors import UserError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reading") / "some.safetensors"
    save(content(configuration("model/position=alibi"))[0], path)
    return path


@pytest.fixture(scope="module")
def loaded(saved: Path) -> Checkpoint:
    return headscope.load(saved)


def test_softmax_of_the_masked_scores_is_the_weights(loaded: Checkpoint) -> None:
    reading = loaded.attention("We the")
    tokens = len(reading.tokens)
    assert reading.scores.shape == reading.weights.shape == (2, 4, tokens, tokens)
    masked = reading.scores.masked_fill(torch.ones(tokens, tokens).triu(1) > 0, -torch.inf)
    torch.testing.assert_close(masked.softmax(dim=-1), reading.weights)


def test_the_first_tokens_of_a_reading_are_a_reading_of_them(loaded: Checkpoint) -> None:
    part, alone = loaded.attention("We the").first(3), loaded.attention("We ")
    assert (part.tokens, part.labels) == (alone.tokens, alone.labels)
    torch.testing.assert_close(part.weights, alone.weights)
    torch.testing.assert_close(part.scores, alone.scores)


def test_tokens_may_be_integers_of_any_kind(loaded: Checkpoint) -> None:
    for tokens in ([1, 2], np.array([1, 2]), torch.tensor([1, 2]), (1, 2)):
        assert loaded.attention(tokens).tokens == [1, 2]


def test_what_is_no_token_of_the_vocabulary_is_refused(loaded: Checkpoint) -> None:
    beyond = [1] * 8 + [999]  # the last one, beyond block_size
    for tokens in ([-1], [1, 2.0], [1, "a"], torch.tensor([0.5]), [[1, 2]], [2**70], beyond):
        with pytest.raises(UserError, match=r"token \d is .* 0 to 256"):
            loaded.attention(tokens)
    for tokens in (None, 5):
        with pytest.raises(UserError, match="sequence of integers"):
            loaded.attention(tokens)


def test_a_device_that_is_not_here_is_refused(saved: Path) -> None:
    for device in ("bogus", "cpu:x", "", torch.device("meta")):
        with pytest.raises(UserError, match=r"device="):
            headscope.load(saved, device=device)
