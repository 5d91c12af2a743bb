"""What each part of a model writes, and what it says about the next token: every number equals one
that hooks, or formulas written here, compute from the model itself."""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, contextmanager, nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conversion.models import CHOICES, saved
from refusals import refused
from small_gpt import gpt
from torch import nn

import headscope
from headscope.analysis import activations as module
from headscope.analysis.head_outputs import replaced_heads
from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.reading import Reading
from headscope.analysis.why import explanation
from headscope.data.tokenizer import CharTokenizer
from headscope.errors import UserError
from headscope.nn.capture import capture
from headscope.nn.held import add_hold
from headscope.trained.records import head_recorder

TEXT = "We the p"


@pytest.fixture(scope="module", params=CHOICES, ids=lambda words: words.replace("model", ""))
def loaded(request, tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"), "model=gpt2")


def tokens_of(loaded):
    return torch.tensor([loaded.tokens(TEXT)])


def inputs_of(parts, model, tokens):
    """What each of these parts reads, and what the last block returns, by hooks."""
    found = []
    with ExitStack() as stack:
        for part in parts:
            hook = part.register_forward_pre_hook(lambda part, read: found.append(read[0][0]))
            stack.enter_context(hook)
        last = model.hidden(tokens)[0]
    return [*found, last]


def normalized(norm, x, part):
    """The share of `part` in `norm` of x, by its formula and without its bias. Both (..., C)."""
    if isinstance(norm, nn.LayerNorm):
        part, x = (each - each.mean(dim=-1, keepdim=True) for each in (part, x))
    if not isinstance(norm, nn.Identity):
        part = part / ((x**2).mean(dim=-1, keepdim=True) + norm.eps).sqrt()
    return part if getattr(norm, "weight", None) is None else part * norm.weight


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_a_reading_has_what_every_part_adds(loaded):
    model, tokens, reading = loaded.model, tokens_of(loaded), loaded.read(TEXT)
    close(reading.logits, model(tokens)[0])
    close(reading.losses, F.cross_entropy(reading.logits[:-1], tokens[0, 1:], reduction="none"))
    assert reading.loss() == pytest.approx(reading.losses.mean().item())
    assert reading.loss(3) == pytest.approx(reading.losses[:2].mean().item())
    close(reading.attention, capture(model, tokens).attention[:, 0])
    close(reading.residual, torch.stack(inputs_of(model.blocks, model, tokens)))
    combined = inputs_of([layer.out_proj for layer in model.attentions], model, tokens)
    for layer, attention in enumerate(model.attentions):
        outputs = combined[layer].unflatten(-1, (attention.heads, -1))  # (T, H, D)
        bias = attention.out_proj(torch.zeros_like(combined[layer]))
        for head in range(attention.heads):
            alone = outputs * (torch.arange(attention.heads) == head)[:, None]
            close(reading.heads[layer, head], attention.out_proj(alone.flatten(-2)) - bias)
        close(reading.rest[layer], bias)
        added = reading.heads[layer].sum(0) + reading.rest[layer] + reading.feed_forward[layer]
        close(reading.residual[layer] + added, reading.residual[layer + 1])
    assert not any(getattr(reading, name).requires_grad for name in PARTS)


PARTS = ["tokens", "logits", "losses", "attention", "scores", "residual", "heads", "feed_forward"]
PARTS += ["rest", "lens"]


def test_several_texts_are_read_at_once(gpt2):
    both = gpt2.read([TEXT, "he WeWe "])
    ones = [gpt2.read(text) for text in (TEXT, "he WeWe ")]
    for name in PARTS:
        close(getattr(both, name), torch.stack([getattr(one, name) for one in ones]))
    assert both.loss() == pytest.approx(sum(one.loss() for one in ones) / 2)
    for name in ("attribution", "deciders", "predictions", "to_bertviz"):
        with refused("several texts"):
            getattr(both, name)()
    assert "several texts" in both._repr_html_()


def test_what_cannot_be_read_written_or_ablated_is_refused(gpt2):
    reading = gpt2.read(TEXT)
    assert reading.attribution(2, "e") == reading.attribution(2, gpt2.tokens("e")[0])
    best = int(gpt2.logits(TEXT)[-1].argmax())
    assert reading.attribution() == reading.attribution(len(TEXT) - 1, best)
    for message, call in [
        ("the texts have [2, 3] tokens", lambda: gpt2.read(["ab", "abc"])),
        ("empty", lambda: gpt2.read("")),
        ("position=8", lambda: reading.attribution(8)),
        ("token='ab'", lambda: reading.attribution(0, "ab")),
        ("position=-9", lambda: gpt2.deciders(TEXT, -9)),
        ("token='ab'", lambda: gpt2.deciders(TEXT, token="ab")),
        ("by='half'", lambda: gpt2.deciders(TEXT, by="half")),
        ("position='x'", lambda: gpt2.deciders(TEXT, "x")),
        ("query=1.5", lambda: gpt2.why("L1H0", TEXT, 1.5)),
        ("text=None", lambda: gpt2.read(None)),
        ("text=3.2", lambda: gpt2.loss(3.2)),
        ("count='x'", lambda: gpt2.predictions(TEXT, count="x")),
        ("count=-1", lambda: reading.writes("L0H0", count=-1)),
        ("windows=1", lambda: gpt2.ablations(windows=1)),
        ("by='half'", lambda: gpt2.ablations(by="half")),
        ("seed='x'", lambda: gpt2.generate(TEXT, seed="x")),
        ("temperature='x'", lambda: gpt2.generate(TEXT, do_sample=True, temperature="x")),
        ("part='x'", lambda: reading.gradient(reading.logits[0, 0], "x")),
        ("heads=5", lambda: gpt2.ablate(5).__enter__()),
        ("5: this model has no such head", lambda: gpt2.needs(5, TEXT)),
        ("@1.5: there is no", lambda: headscope.load(gpt2.path, step=1.5)),
        ("L2H0", lambda: reading.writes("L2H0")),
        ("heads='L0H0'", lambda: gpt2.ablate("L0H0").__enter__()),
        ("L0H9", lambda: gpt2.ablate(["L0H9"]).__enter__()),
        ("by='mean'", lambda: gpt2.ablate(["L0H0"], by="mean").__enter__()),
        ("by='zero'", lambda: gpt2.ablate(["L0H0"], text=TEXT).__enter__()),
    ]:
        with refused(message):
            call()


def test_losses_and_predictions_are_those_of_the_logits(loaded):
    tokens, likely = loaded.tokens(TEXT), loaded.logits(TEXT).log_softmax(-1)
    close(loaded.loss(TEXT), -likely[range(len(TEXT) - 1), tokens[1:]])
    table, best = loaded.predictions(TEXT, count=2), likely.exp().topk(2)
    assert table["next_token"][:-1].tolist() == loaded.tokenizer.labels(tokens)[1:]
    close(torch.tensor(table["probability"][:-1]), loaded.loss(TEXT).neg().exp().double())
    for place in range(2):
        labels = [*map(loaded.tokenizer.label, best.indices[:, place].tolist())]
        assert table[f"top_{place + 1}"].tolist() == labels
        close(torch.tensor(table[f"probability_{place + 1}"]), best.values[:, place].double())
    shown = [repr(each) for each in (loaded, loaded.read(TEXT), loaded.read(TEXT).predictions())]
    assert max(map(len, shown)) < 300


def ablated_logits(loaded, text):
    with loaded.ablate(["L0H0"], by="mean", text=text):
        return loaded.logits(TEXT).tolist()


@pytest.mark.parametrize(
    "method",
    [
        lambda loaded, text: loaded.logits(loaded.tokens(text)).tolist(),
        lambda loaded, text: loaded.read([text, text]).logits.tolist(),
        lambda loaded, text: loaded.loss(text).tolist(),
        lambda loaded, text: loaded.predictions(text).to_csv(),
        lambda loaded, text: loaded.deciders(text).to_csv(),
        lambda loaded, text: loaded.needs("L1H0", text, corrupted=text[::-1]).to_csv(),
        ablated_logits,
    ],
)
def test_of_a_long_text_every_method_uses_the_first_tokens_and_warns(gpt2, method):
    with pytest.warns(UserWarning, match="16 tokens: only the first 8 .block_size"):
        shortened = method(gpt2, TEXT + TEXT)
    with warnings.catch_warnings(action="error"):
        assert shortened == method(gpt2, TEXT)


def test_gradients_reach_the_weights_and_the_parts(loaded):
    reading, embedding = loaded.read(TEXT, gradients=True), loaded.model.embedding.weight
    [gradient] = torch.autograd.grad(reading.scores[1].sum(), embedding, retain_graph=True)
    assert gradient.abs().max() > 0
    logit = reading.logits[-1, 5]
    by_head = reading.gradient(logit, "heads")
    for name in ("heads", "residual", "feed_forward"):
        assert reading.gradient(logit, name).shape == getattr(reading, name).shape
    step = 1e-3 * torch.randn(by_head.shape[2:], generator=torch.Generator().manual_seed(0))
    layer = loaded.model.attentions[0]
    with layer.register_forward_hook(lambda module, read, out: (out[0] + step, out[1])):
        change = (loaded.read(TEXT).logits[-1, 5] - logit).item()
    assert change == pytest.approx((by_head[0, 0] * step).sum().item(), rel=0.1, abs=1e-4)


@pytest.mark.parametrize(("by", "off"), [("mean", []), ("zero", []), ("zero", ["L0H0"])])
def test_a_decider_is_a_part_that_is_switched_off(loaded, by, off):
    """Also while other heads are switched off."""
    with loaded.ablate(off):
        model, tokens, reading = loaded.model, tokens_of(loaded), loaded.read(TEXT)
        rows = loaded.deciders(TEXT, -2, by=by).to_dict("records")
        assert rows == reading.deciders(-2, by=by).to_dict("records")
        assert rows == sorted(rows, key=lambda row: row["without"])
        likely = reading.logits[-2].softmax(-1)
        probability, token = likely.max(-1)

        def replaced(network, read, output):
            return output.mean(1, keepdim=True).expand_as(output) if by == "mean" else 0 * output

        def without(part):
            with part:
                return model(tokens)[0, -2].softmax(-1)[token].item()

        expected, text = {}, TEXT if by == "mean" else None
        for layer, block in enumerate(model.blocks):
            for head in (f"L{layer}H{head}" for head in range(block.attention.heads)):
                expected[head] = without(loaded.ablate([head], by=by, text=text))
            if network := block.feed_forward:
                hook = network.register_forward_hook(replaced)
                expected[f"L{layer} feed-forward"] = without(hook)
        assert {row["part"]: row["without"] for row in rows} == pytest.approx(expected, abs=1e-5)
        for row in rows:
            assert row["probability"] == pytest.approx(float(probability), abs=1e-5)


@contextmanager
def held(loaded):
    """Holds head L0H0 at zero."""
    mask = add_hold(loaded.model, 0, "attention.out_proj").mask
    mask[: loaded.model.attentions[0].head_dim] = 1
    yield
    mask.zero_()


def louder(part):
    return part.register_forward_hook(lambda part, read, output: 3 * output)


STATES = {
    "nothing": lambda loaded: nullcontext(),
    "zero": lambda loaded: loaded.ablate(["L0H0"]),
    "mean": lambda loaded: loaded.ablate(["L0H0"], by="mean", text=TEXT[::-1]),
    "half": lambda loaded: loaded.ablate(["L0H1"], by="half"),
    "held": held,
    "patched": lambda loaded: replaced_heads(loaded.model.attentions[0], 1, torch.ones(1)),
    "network": lambda loaded: louder(loaded.model.blocks[0].feed_forward),
    "norms": lambda loaded: louder(loaded.model.blocks[1].attention_norm),
    "last norm": lambda loaded: louder(loaded.model.norm),
    "embedding": lambda loaded: louder(loaded.model.embedding),
}
"""What can be switched off, held, replaced or hooked in a model while a text is read."""

ASKED = {
    "deciders_so_far": lambda reading: list(reading.deciders_so_far()),
    "gradient": lambda reading: reading.gradient(reading.logits[-1, 5], "heads"),
    "heads_at": lambda reading: reading.heads_at(2),
    "position": None,  # asks no model
    "most_pushed": lambda reading: reading.most_pushed(
        reading.pushes(reading.heads[0, 1, 2], 2), 3
    ),
    "pushes": lambda reading: reading.pushes(reading.heads[0, 1, 2], 2),
    "save_html": None,  # `snapshot` in a page
    "scores_of": lambda reading: reading.scores_of(1),
    "record": None,  # of the weights, whatever is switched off
    "snapshot": lambda reading: reading.snapshot(reading.statistics).blobs(),
    "recorded": None,
    "terms": lambda reading: reading.terms(2),
    "why": lambda reading: reading.why("L1H0"),
    "writes": lambda reading: reading.writes("L0H0"),
    "explanation": lambda reading: explanation(reading, "L1H0", 5, 2),
}
"""How to ask for what needs arguments, or is a function of a reading."""


def answers(reading):
    """What a reading says in all its public methods and properties, as plain data."""
    found = {}
    for name in sorted({*ASKED, *(name for name in dir(Reading) if not name.startswith("_"))}):
        ask = ASKED.get(name, lambda reading, name=name: getattr(reading, name))
        if ask:
            try:
                value = ask(reading)
                found[name] = plain(value() if callable(value) else value)
            except UserError as error:  # a sum that these hooks change
                found[name] = str(error)
    return found


def plain(value):
    if isinstance(value, torch.Tensor | np.ndarray):
        return [repr(number) for number in value.flatten().tolist()]  # NaN equals NaN
    if hasattr(value, "to_csv"):
        return value.to_csv()
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return plain(vars(value)) if hasattr(value, "__dict__") and not callable(value) else repr(value)


@pytest.mark.parametrize("name", STATES)
def test_a_reading_always_describes_the_model_that_read_the_text(gpt2, name):
    """Wherever it is asked: where it was made, later, or while other heads are switched off."""
    state = STATES[name](gpt2)
    readings = []
    with state:
        for _ in range(4):
            readings.append(gpt2.read(TEXT, gradients=True))
        expected = answers(readings[0])
    others = [nullcontext(), gpt2.ablate(["L0H1", "L1H1"]), held(gpt2)]
    for reading, other in zip(readings[1:], others, strict=True):
        with other:
            found = answers(reading)
        assert [key for key in expected if found[key] != expected[key]] == []


def test_a_record_is_that_of_the_whole_model(gpt2):
    with gpt2.ablate(["L0H1", "L1H1"]):
        measured = gpt2.record()
    assert str(vars(gpt2.record())) == str(vars(measured)) == str(vars(gpt2.known_record()))
    recorder = head_recorder(gpt2.model, gpt2.tokenizer, *gpt2.text_to_measure())
    assert recorder(gpt2.model, step=0).header() == measured.header()


def test_the_lens_is_what_a_model_without_the_later_layers_says(loaded):
    model, tokens = loaded.model, tokens_of(loaded)
    found, blocks = loaded.read(TEXT).lens, model.blocks
    for layer in range(len(blocks) + 1):
        model.blocks = nn.ModuleList(blocks[:layer])
        expected = model.unembed(model.hidden(tokens))[0]
        model.blocks = blocks
        close(found[layer], expected)


def test_the_shares_of_a_logit_add_up_to_it(loaded):
    model, reading = loaded.model, loaded.read(TEXT)
    x = reading.residual[-1, 3]
    shares = reading.attribution(3, 7)
    logit = (model.norm(x) @ model.head.weight[7]).item()  # before a cap
    assert sum(shares.values()) == pytest.approx(logit, abs=1e-4)
    if model.logit_cap is None:
        assert logit == pytest.approx(float(loaded.logits(TEXT)[3, 7]), abs=1e-4)
    parts = {
        f"L{n}H{h}": reading.heads[n, h, 3] for n in range(2) for h in range(reading.heads.size(1))
    }
    if model.blocks[0].feed_forward is not None:
        parts |= {f"L{n} feed-forward": reading.feed_forward[n, 3] for n in range(2)}
    if reading.rest.abs().max() > 0:
        parts |= {f"L{n} attention bias": reading.rest[n, 3] for n in range(2)}
    parts["embedding"] = model.embedding.weight[reading.tokens[3]] * model.embedding_scale
    expected = {
        name: float(normalized(model.norm, x, part) @ model.head.weight[7])
        for name, part in parts.items()
    }
    assert {name: shares[name] for name in expected} == pytest.approx(expected, abs=1e-4)
    assert shares.keys() - expected.keys() <= {"n-grams", "positions", "final norm bias"}


def pushes_of(model, reading, layer, head, position):
    """The pushes (V,) of a head on all tokens, by the formula of the norm."""
    part = reading.heads[layer, head, position]
    effect = model.head.weight @ normalized(model.norm, reading.residual[-1, position], part)
    return effect - effect.mean()


@torch.no_grad()
def test_the_direct_effect_is_the_mean_push_on_the_next_token(loaded):
    windows = torch.randint(97, 123, (3, 8), generator=torch.Generator().manual_seed(1))
    found = measure_heads(loaded.model, windows).metrics["direct_effect"]
    pushes = [
        float(pushes_of(loaded.model, loaded.read(window.tolist()), 1, 0, t)[window[t + 1]])
        for window in windows
        for t in range(7)
    ]
    assert float(found[1, 0]) == pytest.approx(sum(pushes) / 21, abs=1e-5)


@torch.no_grad()
def test_an_ablated_head_writes_nothing_or_its_mean(loaded):
    every = loaded.read(TEXT)
    with loaded.ablate(["L0H0"]):
        zero = loaded.read(TEXT)
        close(zero.logits, loaded.logits(TEXT))
    close(zero.heads[0, 0], torch.zeros_like(zero.heads[0, 0]))
    with loaded.ablate(["L1H0"], by="mean", text=TEXT):
        mean = loaded.read(TEXT)
    close(mean.heads[1, 0], every.heads[1, 0].mean(0).expand_as(mean.heads[1, 0]))
    close(loaded.read(TEXT).logits, every.logits)


@pytest.mark.parametrize(("alphabet", "others"), [("ab", 4), ("abcdef", 4), ("abcdef", 40)])
def test_of_few_tokens_those_without_a_text_are_listed_last(alphabet, others):
    """Rows of the embedding that belong to no token are such ones too."""
    model = gpt(vocab_size=len(alphabet) + others, block_size=8)  # with unknown and end of text
    reading = Reading(model, [0, 1, 1, 0], CharTokenizer(alphabet))
    readable = len(alphabet)
    assert reading.with_text.tolist() == [True] * readable + [False] * others
    for tokens, pushes in reading.predictions().raised.values():
        assert tokens.shape[-1] == pushes.shape[-1] == 5
        assert (tokens[..., :readable] < readable).all()
        assert (np.diff(pushes[..., :readable]) <= 0).all()
    assert len(reading.writes("L0H0", count=9).raised) == readable


@torch.no_grad()
def test_predictions_are_the_lens_and_the_pushes_of_every_token(loaded, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 3)  # not a divisor of the number of rows
    model, reading = loaded.model, loaded.read(TEXT)
    found, likely = reading.predictions(), reading.lens.softmax(-1)
    best = likely.topk(5)
    targets = [*reading.tokens[1:].tolist(), int(best.indices[-1, -1, 0])]
    assert (found.positions, found.targets.tolist()) == (list(range(8)), targets)
    assert found.follows.tolist() == [True] * 7 + [False]
    close(torch.tensor(found.probabilities), best.values)
    close(likely.gather(-1, torch.tensor(found.tokens)), best.values)
    close(torch.tensor(found.target_probabilities), likely[:, torch.arange(8), targets])
    every = range(loaded.tokenizer.vocab_size)
    readable = [token for token in every if loaded.tokenizer.token_bytes(token)]
    assert len(readable) == len(every) - 1  # the end-of-text token is never listed as raised
    assert all({*tokens.flatten()} <= {*readable} for tokens, _ in found.raised.values())
    for layer, head, t in ((0, 0, 0), (1, 0, 7), (1, reading.heads.size(1) - 1, 3)):
        pushed = pushes_of(model, reading, layer, head, t)
        written = reading.writes(f"L{layer}H{head}", t, count=3)
        shown = pushed[readable]
        close(torch.tensor([push for _, push in written.raised]), shown.topk(3).values)
        close(torch.tensor([push for _, push in written.lowered]), -(-shown).topk(3).values)
        lowest = loaded.tokenizer.labels([readable[int(shown.argmin())]])[0]
        all_written = reading.writes(f"L{layer}H{head}", t, count=len(every))
        assert [len(pairs) for pairs in (all_written.raised, all_written.lowered)] == [256, 256]
        assert written.lowered[0][0] == lowest
        close(torch.tensor(found.target_pushes[layer, head, t]), pushed[targets[t]])
        tokens, pushes = (torch.tensor(each[head, t]) for each in found.raised[layer])
        close(pushes, shown.topk(5).values)
        close(pushed[tokens], pushes)
    few = reading.predictions({6: 7, 2: targets[2]}, count=2, layers=[1])
    assert (few.positions, few.follows.tolist()) == ([6, 2], [targets[6] == 7, True])
    close(torch.tensor(few.probabilities), best.values[:, [6, 2], :2])
    close(torch.tensor(few.target_probabilities), likely[:, [6, 2], [7, targets[2]]])
    assert few.raised.keys() == {1}
    close(torch.tensor(few.raised[1][1]), torch.tensor(found.raised[1][1][:, [6, 2], :2]))
    monkeypatch.setattr(module, "MAX_PRODUCTS", 1)
    assert reading.predictions().raised == {}
