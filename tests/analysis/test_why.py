"""Why a head looks where it looks: every pair equals a score that the attention itself computes,
the pairs add up to the scores, and the pair of a circuit built by hand comes first."""

import copy
import re
from contextlib import ExitStack
from itertools import product

import numpy as np
import pytest
import torch
from conversion.models import CHOICES, saved
from refusals import refused
from running import ROOT
from small_gpt import VOCAB, induction_circuit
from test_what_heads_write import close, normalized, pushes_of

from headscope.analysis import why as module
from headscope.analysis.reading import Reading
from headscope.analysis.why import explanation
from headscope.data.tokenizer import byte
from headscope.nn import AdditiveAttention, Learned, MultiHead
from headscope.nn.dot_product import HeadOutputs
from headscope.nn.held import add_hold
from headscope.nn.norm import HeadNorm

TEXT = [87, 101, 256, 101, 32, 101, 87, 112]  # with document_mask, 256 begins a document
QUERY = 6
NORMS = "model.bias=true model.qkv_bias=true model.attention.qk_norm=true"
WITH_SUMS = [words for words in CHOICES if "additive" not in words] + [
    f"model/attention=stacked_heads model/position=rotary {NORMS}",
    f"model/attention=grouped_query model/position=relative model.document_mask=true {NORMS}",
]
WINDOW = 3
WINDOWED = ["model=gpt2 window", "model/position=alibi model.document_mask=true window"]
WINDOWED += ["model=gpt2 model.windows=[3]"]


def sliding_window():
    """The attention of docs/own_parts.md."""
    docs, found = (ROOT / "docs/own_parts.md").read_text(encoding="utf-8"), {}
    [code] = [each for each in re.findall(r"```python\n(.+?)```", docs, re.S) if "near" in each]
    exec(code, found)
    return found["SlidingWindow"]


@pytest.fixture(
    scope="module", params=WITH_SUMS + WINDOWED, ids=lambda words: words.replace("model", "")
)
def reading(request, tmp_path_factory):
    words, hides, _ = request.param.partition(" window")
    loaded = saved(tmp_path_factory.mktemp("model"), words)
    for attention in loaded.model.attentions if hides else ():
        attention.__class__, attention.window = sliding_window(), WINDOW
    return loaded.read(TEXT)


@pytest.fixture
def gpt2(tmp_path):
    return saved(tmp_path, "model=gpt2")


def seen_by(reading, query, layer):
    """The keys that a query sees: those of its document and of its window, up to itself."""
    start = TEXT.index(256) if reading.model.end_of_text is not None else 0
    attention = reading.model.attentions[layer]
    window = getattr(attention, "window", None) or attention.layer_window or len(TEXT)
    return [*range(max(start if start <= query else 0, query - window + 1), query + 1)]


@torch.no_grad()
def computed_by_attention(reading, layer, parts):
    """What every pair of parts (N, T, C) adds to the scores of a layer, (H, N + 1, N + 1, T, T),
    and the position bias, (H or 1, T, T). Attention reads one part with its queries and one with
    its keys, with the scales of norms that it has on the text. The last part are the biases: what
    it computes from zeros."""
    model, x, whole = reading.model, reading.residual[layer], {}
    attention, norm = model.attentions[layer], model.blocks[layer].attention_norm

    def with_scale_of_whole(module, read, _):
        return normalized(module, whole.setdefault(module, *read), *read)

    with ExitStack() as stack:
        for module in attention.modules():
            if isinstance(module, HeadNorm):
                stack.enter_context(module.register_forward_hook(with_scale_of_whole))
        attention.compute_heads(norm(x)[None])
        read = normalized(norm, x, torch.stack([*parts, torch.zeros_like(x)]))
        read += 0 if getattr(norm, "bias", None) is None else norm.bias
        queries, keys = read.repeat_interleave(len(read), 0), read.repeat(len(read), 1, 1)
        scores = attention.compute_heads(queries, keys, position=model.position).scores
    bias = model.position.bias(*scores.shape[-2:])
    bias = torch.zeros_like(scores[0]) if bias is None else bias.detach()
    pairs = (scores - bias).unflatten(0, (len(read), len(read))).movedim(2, 0)
    pairs[:, :-1] -= pairs[:, -1:].clone()
    pairs[:, :, :-1] -= pairs[:, :, -1:].clone()
    return pairs, bias


def test_every_pair_is_what_attention_computes_from_it(reading):
    """In float64, because small pairs can be differences of large scores."""
    reading = Reading(copy.deepcopy(reading.model).double(), TEXT, reading.tokenizer)
    for layer in range(len(reading.model.blocks)):
        terms = reading.terms(layer)
        close(sum(terms.values()), reading.residual[layer])
        names = [*product([*terms, "biases"], repeat=2), ("position bias",) * 2]
        computed, biases = computed_by_attention(reading, layer, [*terms.values()])
        for head, pairs in enumerate(computed):
            shares = torch.cat([pairs.flatten(0, 1), biases[[head % len(biases)]]])  # (_, T, T)
            edges = []
            for query in range(len(TEXT)):
                keys = seen_by(reading, query, layer)
                place = query % len(keys)
                of_query = shares[:, query, keys]
                edges.append(of_query - of_query.mean(dim=-1, keepdim=True))
                found = reading.why(f"L{layer}H{head}", query, keys[place])
                check(found, names, edges[-1][:, place])
            every = torch.cat(edges, dim=1).numpy()
            total = every.sum(axis=0)
            covariances = np.array([np.cov(each, total)[0, 1] for each in every])
            found = reading.why(f"L{layer}H{head}")
            check(found, names, covariances / total.var(ddof=1))
            assert found.total == pytest.approx(1)


def check(why, names, expected):
    """The table has these numbers, for each pair of names. Parts that are left out have none."""
    values = {(first, second): value for first, second, value in map(dict.values, why.rows())}
    assert values.keys() <= {*names}
    found = [values.get(pair, 0.0) for pair in names]
    assert found == pytest.approx(expected.tolist(), abs=1e-5)
    for side, table in enumerate((why.by_query(), why.by_key())):
        sums = dict(table.itertuples(index=False))
        assert [*sums][-1] == "position bias"
        assert sum(sums.values()) == pytest.approx(why.total, abs=1e-5)
        for part, value in sums.items():
            pairs = sum(each for pair, each in values.items() if pair[side] == part)
            assert value == pytest.approx(pairs, abs=1e-5)


@torch.no_grad()
def test_pairs_add_up_to_the_scores_and_values_to_what_the_head_writes(reading, monkeypatch):
    monkeypatch.setattr(module, "LISTED", 257)  # all tokens, and all pairs
    labels = reading.tokenizer.vocabulary_labels()[:256]
    for layer, head in product(*map(range, reading.attention.shape[:2])):
        keys = seen_by(reading, QUERY, layer)
        scores, weights = reading.scores[layer, head, QUERY], reading.attention[layer, head, QUERY]
        totals, pushes = [], 0
        for key in keys:
            page = explanation(reading, f"L{layer}H{head}", QUERY, key)
            for name, row in (("scores", scores), ("weights", weights)):
                seen = [value if n in keys else None for n, value in enumerate(row.tolist())]
                assert page[name] == seen
            score = page["scale"] * np.dot(page["q"], page["k"]) + page["position_bias"]
            assert score == pytest.approx(page["scores"][key], abs=1e-5)
            assert sum(value for *_, value in page["pairs"]) == pytest.approx(page["total"])
            totals.append(page["total"])
            raised = dict(page["raised"])
            assert len(raised) == len(labels)  # all that have a text
            pushes += torch.tensor([raised[label] for label in labels])
        close(torch.tensor(totals), scores[keys] - scores[keys].mean())
        close(torch.tensor(totals).softmax(-1), weights[keys])
        close(pushes, pushes_of(reading.model, reading, layer, head, QUERY)[:256])
        for hidden in {*range(len(TEXT))} - {*keys}:
            with refused(f"key={hidden}", f"L{layer}H{head}", f"query at {QUERY}", "not see"):
                reading.why(f"L{layer}H{head}", QUERY, hidden)


@torch.no_grad()
def test_a_key_at_another_place_has_the_score_that_attention_gives_it_there(reading):
    keys, position = seen_by(reading, QUERY, 1), reading.model.position
    block, x = reading.model.blocks[1], reading.residual[1][None]
    q, k, _ = block.attention.project(*[block.attention_norm(x)] * 3)
    bias = position.bias(len(TEXT), len(TEXT))
    for head in range(block.attention.heads):
        page = explanation(reading, f"L1H{head}", QUERY, keys[0])
        assert ("elsewhere" in page) == (bias is not None or not position.rotate(q, k)[1].equal(k))
        if "elsewhere" not in page:
            continue
        of_head = k[:, [head * k.size(1) // block.attention.heads]]
        placed = []  # (keys, places)
        for key in range(len(TEXT)):
            turned, at_all = position.rotate(q, of_head[:, :, [key]].expand_as(of_head))
            row = block.attention.scale * at_all[0, 0] @ turned[0, head, QUERY]
            placed.append(row + (0 if bias is None else bias[head % len(bias), QUERY]))
        scores = torch.stack(placed)
        close(torch.tensor(page["elsewhere"]), scores[keys[0], : QUERY + 1].flip(0))
        assert page["others"] == pytest.approx(float(scores[keys, keys[0]].mean()), abs=1e-5)
        assert page["elsewhere"][QUERY - keys[0]] == pytest.approx(
            page["scores"][keys[0]], abs=1e-5
        )


TOKEN, BEFORE = slice(VOCAB), slice(VOCAB, 2 * VOCAB)
"""The token and the token before it in the residual stream of a circuit."""


@torch.no_grad()
@pytest.mark.parametrize(
    ("by_query", "by_key", "head", "pair"),
    [
        pytest.param(TOKEN, BEFORE, "L0H0", ["positions", "positions"], id="previous-token"),
        pytest.param(TOKEN, BEFORE, "L1H0", ["embedding", "L0H0"], id="K-composition"),
        pytest.param(TOKEN, TOKEN, "L1H0", ["embedding", "embedding"], id="same-token"),
        pytest.param(BEFORE, TOKEN, "L1H0", ["L0H0", "embedding"], id="Q-composition"),
    ],
)
def test_the_pair_of_a_circuit_built_by_hand_comes_first(by_query, by_key, head, pair):
    model = induction_circuit()
    query, key, _ = model.blocks[1].attention.qkv.weight[:, : 2 * VOCAB].chunk(3)
    for matrix, part in ((query, by_query), (key, by_key)):
        matrix.zero_()
        matrix[:VOCAB, part] = 10 * torch.eye(VOCAB)
    reading = Reading(model, torch.arange(9).repeat(2), byte([]))
    for why in (reading.why(head, 15), reading.why(head)):
        *first, value = why.table().iloc[0]
        assert first == pair
        assert value == pytest.approx(why.total, rel=0.05)


class Strongest(MultiHead):
    """Hides all keys but two, by their scores."""

    def attend(self, q, k, v, **options):
        _, weights, scores = super().attend(q, k, v, **options)
        least = weights.topk(2).values[..., -1:]
        kept = weights.where(weights >= least, 0.0)
        kept = kept / kept.sum(-1, keepdim=True)
        return HeadOutputs(kept @ v, kept, scores)


class Projected(MultiHead):
    def project(self, query, key, value):
        return super().project(query, key, value)


class Cubed(Learned):
    def rotate(self, q, k, start=0):
        return q**3, k


@pytest.mark.parametrize("kind", [AdditiveAttention, Strongest, Projected, Cubed])
def test_scores_that_are_no_such_sum_are_refused(gpt2, kind):
    model = gpt2.model
    if kind is AdditiveAttention:
        model.blocks[1].attention.w = torch.ones(4, 2)
    changed = model.position if kind is Cubed else model.blocks[1].attention
    changed.__class__ = kind
    with refused("not a sum", kind.__name__):
        gpt2.why("L1H0", TEXT)
    shown = explanation(gpt2.read(TEXT), "L1H0", -1, None)
    assert kind.__name__ in shown["problem"]
    assert shown.keys() & {"pairs", "total", "q"} == set()
    assert ("raised" in shown) == (kind is not Projected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", ["model=gpt2", "model/attention=stacked_heads"])
def test_a_head_that_is_switched_off_or_held_moves_no_value(tmp_path, words, dtype):
    loaded = saved(tmp_path, words)
    loaded.model.to(dtype)
    mask = add_hold(loaded.model, 1, "attention.out_proj").mask

    def heads_that_raise():
        shown = [explanation(loaded.read(TEXT), f"L1H{head}", -1, None) for head in range(4)]
        return [head for head in range(4) if "raised" in shown[head]]

    assert heads_that_raise() == [0, 1, 2, 3]
    for options in ({}, {"by": "mean", "text": TEXT[::-1]}, {"by": "half"}):
        with loaded.ablate(["L1H2"], **options):
            assert heads_that_raise() == [0, 1, 3]
    mask.unflatten(0, (4, -1))[1] = 1
    assert heads_that_raise() == [0, 2, 3]


def test_what_a_head_does_not_see_is_refused(gpt2, tmp_path):
    documents = saved(tmp_path / "documents", "model.document_mask=true")
    for message, call in [
        ("L2H0", lambda: gpt2.why("L2H0", TEXT)),
        ("key=5", lambda: gpt2.why("L0H0", TEXT, query=4, key=5)),
        ("key=1", lambda: documents.why("L0H0", TEXT, key=1)),
        ("has 8 tokens", lambda: gpt2.why("L0H0", TEXT, query=8)),
        ("several texts", lambda: gpt2.read([TEXT, TEXT]).why("L0H0")),
        ("longer text", lambda: gpt2.why("L0H0", TEXT[:1])),
    ]:
        with refused(message):
            call()
    by_key, by_query = gpt2.why("L0H0", TEXT, key=-7), gpt2.why("L0H0", TEXT, query=5)
    assert (by_key.query, by_key.key) == (7, 1)
    weights = gpt2.read(TEXT).attention[0, 0, 5]
    assert (by_query.query, by_query.key) == (5, int(weights.argmax()))
