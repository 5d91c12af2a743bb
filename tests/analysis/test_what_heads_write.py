"""What each part of a model writes, and what it says about the next token: every number equals one
that hooks, or formulas written here, compute from the model itself."""

import warnings

import pytest
import torch
from conversion.models import CHOICES, saved
from refusals import refused
from torch import nn

import headscope
from headscope.analysis import predictions as module
from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.predictions import predictions
from headscope.nn.capture import attention_weights

TEXT = "We the p"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Opens a model by its words, once."""
    found = {}

    def opened(words):
        if words not in found:
            folder = tmp_path_factory.mktemp("model")
            saved(folder, words)
            found[words] = headscope.load(folder / "best.safetensors")
        return found[words]

    return opened


@pytest.fixture(params=CHOICES, ids=lambda words: words.replace("model", ""))
def loaded(request, models):
    return models(request.param)


def tokens_of(loaded):
    return torch.tensor([loaded.tokens(TEXT)])


def block_inputs(model, tokens):
    """What each block reads, and what the last one returns, by hooks."""
    found = []
    handles = [
        block.register_forward_pre_hook(lambda block, read: found.append(read[0][0]))
        for block in model.blocks
    ]
    found.append(model.hidden(tokens)[0])
    for handle in handles:
        handle.remove()
    return found


def normalized(model, x, part):
    """The share of `part` in the final norm of x, by its formula. Both (C,)."""
    norm, eps = model.norm, getattr(model.norm, "eps", 0)
    if isinstance(norm, nn.LayerNorm):
        part = (part - part.mean()) / (((x - x.mean()) ** 2).mean() + eps).sqrt()
    elif isinstance(norm, nn.RMSNorm):
        part = part / ((x**2).mean() + eps).sqrt()
    return part if getattr(norm, "weight", None) is None else part * norm.weight


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_a_trace_has_what_every_part_adds(loaded):
    model, tokens, trace = loaded.model, tokens_of(loaded), loaded.trace(TEXT)
    close(trace.logits, model(tokens)[0])
    close(trace.attention, attention_weights(model, tokens)[:, 0])
    close(trace.residual, torch.stack(block_inputs(model, tokens)))
    for layer, block in enumerate(model.blocks):
        read = []
        handle = block.attention.out_proj.register_forward_pre_hook(
            lambda module, outputs, read=read: read.append(outputs[0])
        )
        block(trace.residual[layer][None], model.position, mask=model.document_mask(tokens))
        handle.remove()
        bias = block.attention.out_proj(torch.zeros_like(read[0]))
        for head, outputs in enumerate(
            read[0].unflatten(-1, (block.attention.heads, -1)).unbind(2)
        ):
            alone = torch.zeros_like(read[0]).unflatten(-1, (block.attention.heads, -1))
            alone[:, :, head] = outputs
            written = block.attention.out_proj(alone.flatten(-2)) - bias
            close(trace.heads[layer, head], written[0])
        close(trace.rest[layer], bias[0])
        added = trace.heads[layer].sum(0) + trace.rest[layer] + trace.feed_forward[layer]
        close(trace.residual[layer] + added, trace.residual[layer + 1])


def test_several_texts_are_traced_at_once(models):
    loaded = models("model=gpt2")
    both = loaded.trace([TEXT, "he WeWe "])
    for number, text in enumerate([TEXT, "he WeWe "]):
        one = loaded.trace(text)
        for name in ("logits", "attention", "residual", "heads", "feed_forward", "rest"):
            close(getattr(both, name)[number], getattr(one, name))
    close(loaded.lens([TEXT, "he WeWe "])[0], loaded.lens(TEXT))
    close(loaded.trace(loaded.tokens(TEXT)).heads, loaded.trace(TEXT).heads)
    with refused("the texts have [2, 3] tokens"):
        loaded.trace(["ab", "abc"])
    with refused("empty"):
        loaded.trace("")


@pytest.mark.parametrize("words", ["model=gpt2", "model/feed_forward=none model/norm=none"])
def test_gradients_reach_the_weights_and_the_parts(models, words):
    loaded = models(words)
    trace = loaded.trace(TEXT)
    [gradient] = torch.autograd.grad(
        trace.heads[1].square().sum(), loaded.model.embedding.weight, retain_graph=True
    )
    assert gradient.abs().max() > 0
    logit = trace.logits[-1, 5]
    by_head = trace.gradient(logit, "heads")
    assert by_head.shape == trace.heads.shape
    step = 1e-2 * torch.randn(by_head.shape[2:], generator=torch.Generator().manual_seed(0))
    layer = loaded.model.attentions[0]
    handle = layer.register_forward_hook(lambda module, read, out: moved(out, step))
    change = (loaded.trace(TEXT).logits[-1, 5] - logit).item()
    handle.remove()
    assert change == pytest.approx((by_head[0, 2] * step).sum().item(), rel=0.1, abs=1e-4)


def moved(output, step):
    return (output[0] + step, output[1])


def test_the_lens_is_what_a_model_without_the_later_layers_says(loaded):
    model, tokens = loaded.model, tokens_of(loaded)
    found, blocks = loaded.lens(TEXT), model.blocks
    for layer in range(len(blocks) + 1):
        model.blocks = nn.ModuleList(blocks[:layer])
        expected = model.unembed(model.hidden(tokens))[0]
        model.blocks = blocks
        close(found[layer], expected)


def test_the_shares_of_a_logit_add_up_to_it(loaded):
    model, trace = loaded.model, loaded.trace(TEXT)
    x = trace.residual[-1, 3]
    shares = loaded.attribution(TEXT, 3, 7)
    logit = (model.norm(x) @ model.head.weight[7]).item()  # before a cap
    assert sum(shares.values()) == pytest.approx(logit, abs=1e-4)
    if model.logit_cap is None:
        assert logit == pytest.approx(float(loaded.logits(TEXT)[3, 7]), abs=1e-4)
    parts = {
        f"L{n}H{h}": trace.heads[n, h, 3] for n in range(2) for h in range(trace.heads.size(1))
    }
    if model.blocks[0].feed_forward is not None:
        parts |= {f"L{n} feed-forward": trace.feed_forward[n, 3] for n in range(2)}
    if trace.rest.abs().max() > 0:
        parts |= {f"L{n} attention bias": trace.rest[n, 3] for n in range(2)}
    parts["embedding"] = model.embedding.weight[trace.tokens[3]] * model.embedding_scale
    expected = {
        name: float(normalized(model, x, part) @ model.head.weight[7])
        for name, part in parts.items()
    }
    others = {"n-grams", "positions", "final norm bias"}
    assert {name: shares[name] for name in expected} == pytest.approx(expected, abs=1e-4)
    assert shares.keys() - expected.keys() <= others
    assert ("n-grams" in shares) == (model.ngrams > 1)
    assert ("final norm bias" in shares) == (getattr(model.norm, "bias", None) is not None)


def test_the_default_token_of_an_attribution_is_the_most_likely_one(models):
    loaded = models("model=gpt2")
    best = int(loaded.logits(TEXT)[-1].argmax())
    assert loaded.attribution(TEXT) == loaded.attribution(TEXT, len(TEXT) - 1, best)
    assert loaded.attribution(TEXT, 2, "e") == loaded.attribution(TEXT, 2, loaded.tokens("e")[0])
    assert {"positions", "L0 attention bias", "final norm bias"} <= loaded.attribution(TEXT).keys()
    with refused("position=8"):
        loaded.attribution(TEXT, 8)
    with refused("token='ab' has 2 tokens"):
        loaded.attribution(TEXT, 0, "ab")
    with refused("L2H0: this model has no such head"):
        loaded.writes("L2H0", TEXT)


def pushes_of(model, trace, layer, head, position):
    """The pushes (V,) of a head on all tokens, by the formula of the norm."""
    part = trace.heads[layer, head, position]
    effect = model.head.weight @ normalized(model, trace.residual[-1, position], part)
    return effect - effect.mean()


@torch.no_grad()
def test_a_head_writes_the_tokens_that_it_raises_and_lowers_most(loaded):
    expected = pushes_of(loaded.model, loaded.trace(TEXT), 1, 0, 4)
    found = loaded.writes("L1H0", TEXT, 4, count=3)
    labels = [loaded.tokenizer.labels([token])[0] for token in range(len(expected))]
    for pairs, order in ((found.raised, expected), (found.lowered, -expected)):
        best = order.topk(3)
        assert [label for label, _ in pairs] == [labels[token] for token in best.indices]
        values = [value for _, value in pairs]
        assert values == pytest.approx(expected[best.indices].tolist(), abs=1e-5)


@torch.no_grad()
def test_the_direct_effect_is_the_mean_push_on_the_next_token(loaded):
    windows = torch.randint(97, 123, (3, 8), generator=torch.Generator().manual_seed(1))
    found = measure_heads(loaded.model, windows).metrics["direct_effect"]
    pushes = [
        float(pushes_of(loaded.model, loaded.trace(window.tolist()), 1, 0, t)[window[t + 1]])
        for window in windows
        for t in range(7)
    ]
    assert float(found[1, 0]) == pytest.approx(sum(pushes) / 21, abs=1e-5)


@torch.no_grad()
def test_predictions_are_the_lens_and_the_pushes_of_every_token(loaded, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 3)  # not a divisor of the number of rows
    model, trace = loaded.model, loaded.trace(TEXT)
    found = predictions(model, trace, [str(token) for token in range(257)])
    likely = loaded.lens(TEXT).softmax(-1)
    best = likely.topk(5)
    close(torch.tensor(found.lens_probabilities), best.values)
    close(likely.gather(-1, torch.tensor(found.lens_tokens)), best.values)
    following = trace.tokens[1:]
    for layer in range(3):
        of_next = likely[layer, torch.arange(7), following]
        close(torch.tensor(found.next_probabilities[layer]), of_next)
    for layer, head, t in ((0, 0, 0), (1, 0, 6), (1, trace.heads.size(1) - 1, 3)):
        pushed = pushes_of(model, trace, layer, head, t)
        assert float(found.next_pushes[layer, head, t]) == pytest.approx(
            float(pushed[following[t]]), abs=1e-5
        )
        close(torch.tensor(found.push_values[layer, head, t]), pushed.topk(5).values)
        close(pushed[torch.tensor(found.push_tokens[layer, head, t])], pushed.topk(5).values)
    monkeypatch.setattr(module, "MAX_PRODUCTS", 1)
    assert predictions(model, trace, []).push_tokens is None


def test_an_ablated_head_writes_nothing_or_its_mean(loaded):
    every = loaded.trace(TEXT)
    with loaded.ablate(["L0H0"]):
        zero = loaded.trace(TEXT)
        close(zero.logits.detach(), loaded.logits(TEXT))
        text = loaded.generate(TEXT[:4], max_new_tokens=3)
        assert loaded.attention(TEXT).weights[0].equal(every.attention[0].detach())
    assert zero.heads[0, 0].abs().max() == 0
    close(
        zero.residual[1] - zero.feed_forward[0],
        (every.residual[1] - every.feed_forward[0]) - every.heads[0, 0],
    )
    with loaded.ablate(["L1H0", "L0H0"], by="mean", text=TEXT):
        mean = loaded.trace(TEXT)
    close(mean.heads[0, 0], every.heads[0, 0].mean(0).expand_as(mean.heads[0, 0]))
    close(mean.heads[1, 0], every.heads[1, 0].mean(0).expand_as(mean.heads[1, 0]))
    close(loaded.trace(TEXT).logits, every.logits)
    assert isinstance(text, str)


def ablated_logits(loaded, text):
    with loaded.ablate(["L0H0"], by="mean", text=text):
        return loaded.logits(TEXT).tolist()


READ = {
    "logits": lambda loaded, text: loaded.logits(text).tolist(),
    "token ids": lambda loaded, text: loaded.logits(loaded.tokens(text)).tolist(),
    "attention": lambda loaded, text: loaded.attention(text).weights.tolist(),
    "trace": lambda loaded, text: loaded.trace(text).heads.tolist(),
    "several": lambda loaded, text: loaded.trace([text, text]).logits.tolist(),
    "lens": lambda loaded, text: loaded.lens(text).tolist(),
    "attribution": lambda loaded, text: loaded.attribution(text),
    "writes": lambda loaded, text: loaded.writes("L1H0", text),
    "needs": lambda loaded, text: loaded.needs("L1H0", text, corrupted=text[::-1]),
    "ablate": ablated_logits,
}
"""What each method of a loaded model says about a text."""


@pytest.mark.parametrize("method", READ)
def test_of_a_long_text_every_method_uses_the_first_tokens_and_warns(models, method):
    loaded = models("model=gpt2")
    with pytest.warns(UserWarning, match="16 tokens: only the first 8 .block_size"):
        shortened = READ[method](loaded, TEXT + TEXT)
    with warnings.catch_warnings(action="error"):
        assert shortened == READ[method](loaded, TEXT)


def test_what_cannot_be_ablated_is_refused(models):
    loaded = models("model=gpt2")
    for message, heads, options in [
        ("heads='L0H0': give a list", "L0H0", {}),
        ("L0H9", ["L0H9"], {}),
        ("by='mean'", ["L0H0"], {"by": "mean"}),
        ("by='zero'", ["L0H0"], {"text": TEXT}),
    ]:
        with refused(message), loaded.ablate(heads, **options):
            pass
