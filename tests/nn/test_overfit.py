"""Every attention with every position learns: it overfits one batch."""

import pytest
import torch
from choices import every_pair, parts

from headscope.nn import GPT, RMSNorm
from headscope.nn.loss import next_token_loss

SIZES = {"vocab_size": 12, "block_size": 10, "embed_dim": 32, "layers": 2, "norm": RMSNorm}


@every_pair
def test_it_overfits_one_batch(pair):
    """Random texts that begin with different tokens: what follows depends on the whole text."""
    torch.default_generator.manual_seed(0)
    model = GPT(**SIZES, **parts(*pair), scale_embedding=True, tied_head=False)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(12, (8, 11), generator=generator)
    tokens[:, 0] = torch.arange(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0)
    for _ in range(300):
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        if loss < 0.1:
            return
        loss.backward()
        optimizer.step()
    pytest.fail(f"the loss is {float(loss):.2f}")
