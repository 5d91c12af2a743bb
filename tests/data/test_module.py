"""How much of the validation split a run can afford."""

import pytest

from headscope.data.module import validation_stride


@pytest.mark.parametrize("validation_tokens", [1, 1000, 3001, 241_240])
@pytest.mark.parametrize("training_tokens", [500, 10_000, 1_000_000])
def test_validation_costs_at_most_a_tenth_of_training(
    validation_tokens: int, training_tokens: int
) -> None:
    stride = validation_stride(validation_tokens=validation_tokens, training_tokens=training_tokens)
    # Predicting a token costs a third of training on it.
    assert validation_tokens / stride / 3 <= training_tokens / 10
    if stride > 1:
        assert validation_tokens / (stride - 1) / 3 > training_tokens / 10
