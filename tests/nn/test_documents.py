"""The laws of a model that knows where documents begin: nothing flows from one into the next."""

import copy

import torch
from choices import every_pair
from small_gpt import gpt, variant
from torch import Tensor

from headscope.nn import GPT, Learned, mask_from_documents
from headscope.nn.capture import capture

END = 10
close = {"rtol": 1e-4, "atol": 1e-5}


def masked(pair: tuple[str, str] = ("multi_head", "rotary"), **options) -> GPT:
    return gpt(**variant(pair) | options, document_mask=True, end_of_text=END)


def text(*beginnings: int, length: int = 10, batch: int = 2) -> Tensor:
    """Random tokens, of which those at `beginnings` begin a document."""
    tokens = torch.randint(END, (batch, length), generator=torch.Generator().manual_seed(1))
    tokens[:, list(beginnings)] = END
    return tokens


@every_pair
def test_a_changed_token_changes_its_own_document_from_there_on_alone(pair):
    tokens = text(3, 7, batch=1)
    kept = ~torch.isin(torch.arange(10), torch.tensor([3, 7]))  # a changed END would join documents
    changed = (tokens + torch.eye(10, dtype=torch.long))[kept] % END
    changed[:, [3, 7]] = END
    from_there = torch.ones(10, 10, dtype=torch.bool).triu()[kept]
    number = (tokens[0] == END).cumsum(dim=0)
    own = (number[:, None] == number)[kept]
    for end_of_text, reached in ((None, from_there), (END, own & from_there)):
        documents = {"document_mask": end_of_text is not None, "end_of_text": end_of_text}
        model = gpt(**variant(pair), **documents)
        change = (model(changed) - model(tokens)).abs().amax(dim=-1)  # (8, 10)
        assert change[~reached].max() < 1e-5
        assert change[reached].min() > 1e-4


def test_positions_do_not_restart():
    model, tokens = masked(position=Learned, ngrams=1), text(4)
    shifted = copy.deepcopy(model)
    with torch.no_grad():
        shifted.position.table.weight[:6] = model.position.table.weight[4:]
    alone = shifted(tokens[:, 4:])
    torch.testing.assert_close(model(tokens)[:, 4:], alone, **close)
    assert (model(tokens[:, 4:]) - alone).abs().max() > 0.1


@every_pair
def test_a_token_looks_at_its_own_document_alone_on_both_paths(pair):
    model, tokens = masked(pair), torch.cat([text(0, 4, 5, batch=1), text(2, 7, batch=1)])
    found = capture(model, tokens)
    torch.testing.assert_close(model.unembed(found.residual[-1]), model(tokens), **close)
    visible = mask_from_documents((tokens == END).cumsum(dim=1)).tril()
    assert torch.equal(found.attention > 0, visible.expand_as(found.attention))
