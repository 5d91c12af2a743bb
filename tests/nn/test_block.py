"""Parallel blocks, windows of layers, and rotary positions on a share of each head."""

import pytest
import torch
from choices import every_part
from small_gpt import gpt, some_tokens, variant

from headscope.analysis.activations import capture
from headscope.errors import UserError
from headscope.nn import Block, Cache, ParallelBlock, Rotary


@every_part
@torch.no_grad()
def test_a_parallel_block_adds_two_branches_that_read_its_input(pair):
    block = gpt(**variant(pair), block=ParallelBlock).blocks[0]
    x = torch.randn(2, 10, 16, generator=torch.Generator().manual_seed(0))
    attended = block.attention(block.attention_norm(x))
    added = block.feed_forward(block.feed_forward_norm(x))
    torch.testing.assert_close(block(x), x + attended + added)
    assert (block(x) - Block.forward(block, x)).abs().max() == 0
    one_after_the_other = x + attended + block.feed_forward(block.feed_forward_norm(x + attended))
    assert (block(x) - one_after_the_other).abs().max() > 1e-3


@every_part
@torch.no_grad()
def test_a_window_hides_all_keys_but_the_last_ones_of_its_layers(pair):
    """Also when a text is read in parts, with cached keys, and within documents."""
    for documents in (False, True):
        options = {"document_mask": documents, "end_of_text": 10, "windows": (3, 0)}
        model, tokens = gpt(**variant(pair), **options, layers=3), some_tokens(batch=2) % 10
        tokens[:, 6] = 10
        weights = capture(model, tokens).weights  # (L, B, H, T, T)
        distance = torch.arange(10)[:, None] - torch.arange(10)
        for layer, window in enumerate((3, 10, 3)):
            seen = (distance >= 0) & (distance < window)
            seen[6:, :6] &= not documents
            assert weights[layer][..., ~seen].abs().max() == 0
            assert weights[layer][..., seen].min() > 0
        whole = model(tokens)
        for lengths in ([1] * 10, [4, 1, 1, 3, 1]):
            cache, parts = Cache(model, 2), tokens.split(lengths, dim=1)
            read = [model.unembed(model.hidden(part, cache)) for part in parts]
            torch.testing.assert_close(torch.cat(read, dim=1), whole, rtol=1e-4, atol=1e-5)


def test_a_window_is_a_positive_number_or_0():
    for windows in ((-1,), (2, -3)):
        with pytest.raises(UserError, match=f"{windows[-1]}"):
            gpt(windows=windows)


def test_a_share_of_rotary_positions_rotates_the_first_dimensions_only():
    sizes = {"embed_dim": 24, "block_size": 10, "heads": 3}
    q, k = torch.randn(2, 1, 3, 10, 8, generator=torch.Generator().manual_seed(0)).unbind()
    for interleaved in (False, True):
        whole = Rotary(**sizes, head_dim=4, interleaved=interleaved)
        half = Rotary(**sizes, head_dim=8, interleaved=interleaved, share=0.5)
        for rotated, x, expected in zip(
            half.rotate(q, k), (q, k), whole.rotate(q[..., :4], k[..., :4]), strict=True
        ):
            assert torch.equal(rotated[..., 4:], x[..., 4:])
            torch.testing.assert_close(rotated[..., :4], expected)
    for share in (0.1, 0.4, 1.5, -1.0):
        with pytest.raises(UserError, match="share"):
            Rotary(**sizes, head_dim=8, share=share)


def test_angles_in_float32_differ_far_from_the_beginning():
    sizes = {"embed_dim": 64, "block_size": 2048, "heads": 1, "head_dim": 64}
    exact, rounded = (Rotary(**sizes, float32_angles=each).cos for each in (False, True))
    difference = (exact - rounded).abs().amax(dim=1)
    assert difference[:10].max() < 1e-6
    assert 1e-5 < difference.max() < 1e-3
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, 64, 2).float() / 64))  # as in transformers
    assert torch.equal(rounded, (torch.arange(2048).float()[:, None] * frequencies).cos())


@torch.no_grad()
def test_a_block_of_another_form_is_not_analysed():
    class PostNorm(Block):
        def forward(self, x, position=None, past=None, mask=None):
            return self.attention_norm(super().forward(x, position, past, mask))

    model = gpt(block=PostNorm)
    model(some_tokens())
    with pytest.raises(UserError, match="PostNorm has its own forward"):
        capture(model, some_tokens())
