"""The laws of a model that knows where documents begin: nothing flows from one into the next."""

import copy

import pytest
import torch
from choices import every_pair, every_part
from small_gpt import gpt, loss_of, variant
from torch import Tensor

from headscope.analysis.ablation import ablate_heads
from headscope.nn import GPT, Learned, make_cache, mask_from_documents
from headscope.nn.capture import attention_weights, captured_attention
from headscope.nn.loss import next_token_loss

END = 10
RELATIVE = ("rotary", "alibi", "relative", "none")
"""Positions of which a score sees only the distance."""

close = {"rtol": 1e-4, "atol": 1e-5}


def masked(pair: tuple[str, str] = ("multi_head", "rotary"), **options) -> GPT:
    return gpt(**variant(pair) | options, end_of_text=END)


def unmasked(model: GPT) -> GPT:
    """The same model, which does not know where documents begin."""
    other = copy.deepcopy(model)
    other.end_of_text = None
    return other


def text(*beginnings: int, length: int = 10, batch: int = 2) -> Tensor:
    """Random tokens, of which those at `beginnings` begin a document."""
    tokens = torch.randint(END, (batch, length), generator=torch.Generator().manual_seed(1))
    tokens[:, list(beginnings)] = END
    return tokens


@every_pair
def test_a_changed_token_changes_its_own_document_alone(pair):
    model, tokens = masked(pair), text(3, 7, batch=1)
    kept = ~torch.isin(torch.arange(10), torch.tensor([3, 7]))  # a changed END would join documents
    changed = (tokens + torch.eye(10, dtype=torch.long))[kept] % END
    changed[:, [3, 7]] = END
    with_change = (model(changed) - model(tokens)).abs().amax(dim=-1)  # (8, 10)
    number = (tokens[0] == END).cumsum(dim=0)
    before = torch.ones(10, 10, dtype=torch.bool).tril(-1)
    reached = (number[:, None] == number) & ~before
    assert with_change[~reached[kept]].max() < 1e-5
    assert with_change[reached[kept]].min() > 1e-4


@every_pair
def test_a_document_has_the_logits_that_it_has_alone_if_scores_see_only_distances(pair):
    model, tokens = masked(pair), text(4)
    together = model(tokens)
    torch.testing.assert_close(together[:, :4], model(tokens[:, :4]), **close)
    alone = model(tokens[:, 4:])
    if pair[1] in RELATIVE and pair != ("additive", "rotary"):
        torch.testing.assert_close(together[:, 4:], alone, **close)


def test_positions_do_not_restart():
    model, tokens = masked(position=Learned, ngrams=1), text(4)
    shifted = copy.deepcopy(model)
    with torch.no_grad():
        shifted.position.table.weight[:6] = model.position.table.weight[4:]
    alone = shifted(tokens[:, 4:])
    torch.testing.assert_close(model(tokens)[:, 4:], alone, **close)
    assert (model(tokens[:, 4:]) - alone).abs().max() > 0.1


@every_pair
def test_with_one_document_nothing_changes(pair):
    model = masked(pair)
    for tokens in (text(), text(0)):
        torch.testing.assert_close(model(tokens), unmasked(model)(tokens), **close)


@every_pair
def test_with_two_documents_the_second_one_changes(pair):
    model, tokens = masked(pair), text(4)
    change = (model(tokens) - unmasked(model)(tokens)).abs().amax(dim=(0, 2))
    assert change[:4].max() < 1e-5
    assert change[4:].min() > 1e-3


def test_sequences_of_a_batch_have_their_own_documents():
    model, tokens = masked(), torch.cat([text(4, batch=1), text(2, 7, batch=1)])
    torch.testing.assert_close(model(tokens), torch.cat([model(tokens[:1]), model(tokens[1:])]))


@every_pair
def test_fused_equals_explicit_and_rows_sum_to_one_within_a_document(pair):
    model, tokens = masked(pair).double(), text(0, 4, 5, length=11)

    def results() -> list[Tensor]:
        loss = loss_of(model, tokens)
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    fused = results()
    with captured_attention(model) as captured:
        explicit = results()
    torch.testing.assert_close(fused, explicit, rtol=1e-6, atol=1e-9)
    inputs = tokens[:, :-1]
    visible = mask_from_documents((inputs == END).cumsum(dim=1)).tril()
    torch.testing.assert_close(torch.stack(captured), attention_weights(model, inputs))
    for weights in captured:
        assert torch.equal(weights > 0, visible.expand_as(weights))
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@every_pair
@torch.no_grad()
def test_read_in_parts_a_text_has_the_logits_that_it_has_at_once(pair):
    model, tokens = masked(pair), text(4, 8)
    tokens[1, 4], tokens[1, 5] = 0, END
    whole = model(tokens)
    for lengths in ([1] * 10, [4, 1, 1, 3, 1], [5, 5]):
        cache = make_cache(model, 2)
        read = [model.unembed(model.hidden(part, cache)) for part in tokens.split(lengths, dim=1)]
        torch.testing.assert_close(torch.cat(read, dim=1), whole, **close)


@torch.no_grad()
def test_after_an_end_of_text_token_a_new_document_is_written():
    model = masked(("multi_head", "rotary"))
    new = model.next_logits(torch.tensor([[END]]))
    for before in ([1], [1, 2, 3], [END, 4, END, 5]):
        torch.testing.assert_close(model.next_logits(torch.tensor([[*before, END]])), new, **close)


@every_part
def test_activation_checkpointing_gives_bit_identical_gradients(pair):
    model, tokens = masked(pair).train(), text(4, 8)
    gradients = []
    for model.checkpoint_activations in (False, True):
        loss = loss_of(model, tokens)
        gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
    for stored, recomputed in zip(*gradients, strict=True):
        assert stored is recomputed is None or torch.equal(stored, recomputed)


@pytest.mark.slow
@every_part
def test_compiled_code_gives_the_same_logits(pair):
    torch._dynamo.reset()
    model, tokens = masked(pair), text(4, 8)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens), **close)


@torch.no_grad()
@every_part
def test_a_removed_head_is_removed_from_the_masked_model(pair):
    model, tokens = masked(pair), text(0, 4, 8, length=11, batch=3)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    found = ablate_heads(model, inputs, targets)
    torch.testing.assert_close(found["loss"], next_token_loss(model(inputs), targets), **close)
    for layer, attention in enumerate(model.attentions):
        without, width = copy.deepcopy(model), attention.head_dim
        without.attentions[layer].out_proj.weight[:, :width] = 0
        change = next_token_loss(without(inputs), targets) - found["loss"]
        torch.testing.assert_close(found["nats_per_token"][layer, 0], change, **close)
