"""The laws of FLOPs: the formula counts what PyTorch counts, and a rate is measured unnoticed."""

import torch
from small_gpt import make_gpt
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.flops import matrix_rate, training_flops

SIZES = {"vocab_size": 19, "block_size": 12, "embed_dim": 16, "layers": 2, "heads": 2}


def test_a_step_takes_what_pytorch_counts() -> None:
    model = make_gpt(**SIZES)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(3, 12, dtype=torch.long)).sum().backward()
    counted = counter.get_total_flops()
    if not any("attention" in str(name) for name in counter.get_flop_counts()["Global"]):
        # QK and its sum, forward once and back twice: on a CPU they are not counted.
        counted += 3 * 2 * 2 * 2 * 12 * 12 * 16 * 3
    assert counted == 3 * 12 * training_flops(model)


def test_the_matrix_rate_is_that_of_a_machine_and_draws_no_global_random_numbers() -> None:
    before = torch.get_rng_state()
    assert 1e8 < matrix_rate(torch.device("cpu"), size=256, rounds=2) < 1e15
    assert torch.equal(torch.get_rng_state(), before)
