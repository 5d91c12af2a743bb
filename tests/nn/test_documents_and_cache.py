"""Documents never see each other. The key-value cache saves work, and changes no result."""

import copy
from itertools import product

import pytest
import torch
from choices import ATTENTIONS, every_pair
from small_gpt import gpt, some_tokens, variant
from torch import Tensor

from headscope.errors import UserError
from headscope.nn import GPT, Cache, Learned, cache_bytes_per_token
from headscope.trained.generation.generate import generate_tokens

END = 10
close = {"rtol": 1e-4, "atol": 1e-5}


def text(*beginnings: int, length: int = 10, batch: int = 2) -> Tensor:
    """Random tokens. A document begins at each of `beginnings`."""
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
    model, tokens = gpt(position=Learned, document_mask=True, end_of_text=END), text(4)
    shifted = copy.deepcopy(model)
    with torch.no_grad():
        shifted.position.table.weight[:6] = model.position.table.weight[4:]
    alone = shifted(tokens[:, 4:])
    torch.testing.assert_close(model(tokens)[:, 4:], alone, **close)
    assert (model(tokens[:, 4:]) - alone).abs().max() > 0.1


# --- the cache ---


@every_pair
@torch.no_grad()
def test_read_in_parts_a_text_has_the_logits_that_it_has_at_once(pair):
    for end_of_text in (None, 10):
        documents = {"document_mask": end_of_text is not None, "end_of_text": end_of_text}
        model = gpt(**variant(pair), **documents)
        tokens = some_tokens(batch=3)
        tokens[0, 4] = tokens[1, 5] = tokens[:, 8] = 10
        whole = model(tokens)
        for lengths in ([1] * 10, [4, 1, 1, 3, 1], [1, 9]):
            cache, parts = Cache(model, 3), tokens.split(lengths, dim=1)
            read = [model.unembed(model.hidden(part, cache)) for part in parts]
            torch.testing.assert_close(torch.cat(read, dim=1), whole, rtol=1e-4, atol=1e-5)


@every_pair
def test_cached_and_uncached_write_the_same_past_the_end_of_the_context(pair):
    model, prompts = gpt(**variant(pair)), ([1, 2, 3], [4], [*range(11)] * 3)
    for prompt, temperature in product(prompts, (0.0, 3.0)):
        options = {"max_new_tokens": 13, "seeds": [3, 1, 4], "temperature": temperature}
        cached = list(generate_tokens(model, prompt, **options))
        assert cached == list(generate_tokens(model, prompt, cached=False, **options))
        for number in (0, 2):  # the other texts of a batch do not change a text
            alone = options | {"seeds": [options["seeds"][number]]}
            made = generate_tokens(model, prompt, **alone)
            assert [token for (token,) in made] == [tokens[number] for tokens in cached]


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_its_room_is_what_the_model_says(attention):
    model = gpt(**variant((attention, "rotary")))
    keys = {"single_head": 1, "multi_query": 1, "grouped_query": 2}.get(attention, 4)
    bytes_per_token = 2 * 2 * keys * model.attentions[0].head_dim * 4
    room = [part.nbytes for layer in Cache(model, 3).layers for part in layer]
    assert sum(room) == 3 * (10 + 1) * bytes_per_token
    assert cache_bytes_per_token(model) == bytes_per_token
    assert cache_bytes_per_token(model.bfloat16()) == bytes_per_token / 2


@torch.no_grad()
def test_no_more_is_read_than_the_context_holds():
    model, cache = gpt(), Cache(gpt(), 2)
    model.hidden(some_tokens(7), cache)
    with pytest.raises(UserError, match=r"12 tokens.*block_size=10"):
        model.hidden(some_tokens(5), cache)
    assert cache.length == 7


def test_only_new_tokens_are_read(monkeypatch):
    read: list[int] = []
    read_tokens = GPT.hidden

    def hidden(model, tokens, cache=None):
        read.append(tokens.size(1))
        return read_tokens(model, tokens, cache)

    monkeypatch.setattr(GPT, "hidden", hidden)
    list(generate_tokens(gpt(), [1, 2, 3], max_new_tokens=10, seeds=[1]))
    assert read == [3, *[1] * 7, 5, 1]  # 11 tokens are too many: the last 5 are read again
