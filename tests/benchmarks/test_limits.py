"""What there is to do, held against what PyTorch counts."""

import torch
from small_gpt import make_gpt
from torch.utils.flop_counter import FlopCounterMode

from headscope.benchmarks.limits import (
    matrix_rate,
    read_bandwidth,
    training_flops,
    weights_in_products,
)

SIZES = {"vocab_size": 19, "block_size": 12, "embed_dim": 16, "layers": 2, "heads": 2}


def test_every_weight_of_a_product_counts_and_no_table() -> None:
    matrices = 2 * 12 * 16 * 16 + 19 * 16  # of two layers, and the head
    for other in (
        {},
        {"tied_head": False},
        {"bias": True, "qkv_bias": True},
        {"previous_tokens": 2},
    ):
        assert weights_in_products(make_gpt(**SIZES, **other)) == matrices


def test_a_step_takes_what_pytorch_counts() -> None:
    model = make_gpt(**SIZES)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(3, 12, dtype=torch.long)).sum().backward()
    # PyTorch does not count attention on a CPU: QK and its sum, forward once and back twice.
    attention = 3 * 2 * 2 * 2 * 12 * 12 * 16 * 3
    counted = counter.get_total_flops()
    if not any("attention" in str(name) for name in counter.get_flop_counts()["Global"]):
        counted += attention
    assert counted == 3 * 12 * training_flops(model)


def test_rates_are_those_of_a_machine() -> None:
    cpu = torch.device("cpu")
    assert matrix_rate(cpu) > 1e8
    with torch.autocast("cpu", torch.bfloat16):
        assert matrix_rate(cpu) > 1e8
    assert read_bandwidth(cpu, megabytes=8) > 1e8
