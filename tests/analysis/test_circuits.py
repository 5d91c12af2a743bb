"""What heads do by their weights, and what they need from earlier heads: equal to products of whole
matrices, and to forward passes with hooks. Circuits built by hand are found."""

from contextlib import ExitStack
from functools import partial

import pytest
import torch
from choices import EACH
from conversion.models import saved
from refusals import refused
from small_gpt import VOCAB, fresh, gpt, induction_circuit, some_tokens, variant

import headscope
from headscope.analysis.circuits import compositions, copying_scores, random_composition
from headscope.analysis.head_outputs import head_outputs, parse_head
from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.in_context import in_context_score
from headscope.analysis.path_patching import WAYS, patch_paths
from headscope.nn import (
    AdditiveAttention,
    MultiHead,
    MultiHeadAttention,
    NoNorm,
    RMSNorm,
    Rotary,
    StackedHeads,
    no_feed_forward,
)
from headscope.nn.capture import changed_outputs
from headscope.nn.loss import next_token_loss

OPTIONS = [
    *({"norm": norm} for norm in (RMSNorm, partial(RMSNorm, gain=False))),
    {"attention": partial(MultiHead, scale=0.3, out_proj=False), "position": Rotary},
    {"feed_forward": no_feed_forward, "norm": NoNorm, "head_dim": 6, "bias": True},
    {"document_mask": True, "end_of_text": 10, "ngrams": 2},
]


@pytest.fixture(params=[*map(variant, EACH), *OPTIONS])
def model(request):
    return gpt(**request.param, layers=3)


def folded(norm):
    """The linear part of a norm, (C, C)."""
    if isinstance(norm, NoNorm):
        return torch.eye(16)
    mean = 1 / 16 if isinstance(norm, torch.nn.LayerNorm) else 0.0
    gain = torch.ones(16) if norm.weight is None else norm.weight
    return gain[:, None] * (torch.eye(16) - mean)


def matrices(block, head):
    """W_Q, W_K, W_V and W_O of a head, with gains."""
    layer, width = block.attention, block.attention.head_dim
    if isinstance(layer, StackedHeads):
        own = layer.stack[head]
        q, k, v = own.query.weight, own.key.weight, own.value.weight
        norms = (own.q_norm, own.k_norm)
    else:
        shared = head // (layer.heads // layer.kv_heads)
        starts = (head, layer.heads + shared, layer.heads + layer.kv_heads + shared)
        q, k, v = (layer.qkv.weight[n * width : (n + 1) * width] for n in starts)
        norms = (layer.q_norm, layer.k_norm)
    if layer.qk_norm:
        q, k = (norm.weight[:, None] * each for norm, each in zip(norms, (q, k), strict=True))
    reads = folded(block.attention_norm)
    columns = slice(head * width, (head + 1) * width)
    everything = layer.out_proj.weight if layer.has_out_proj else torch.eye(layer.embed_dim)
    return q @ reads, k @ reads, v @ reads, everything[:, columns]


@torch.no_grad()
def test_a_copying_score_is_that_of_the_whole_matrix(model):
    scores, unembed = copying_scores(model), model.head.weight @ folded(model.norm)
    for layer, head in ((0, 0), (2, scores.size(1) - 1)):
        _, _, v, o = matrices(model.blocks[layer], head)
        whole = unembed @ o @ v @ model.embedding.weight.T  # (V, V)
        values = torch.linalg.eigvals(whole.double())
        expected = (values.real.sum() / values.abs().sum()).float()
        torch.testing.assert_close(scores[layer, head], expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_compositions_are_those_of_whole_matrices(model):
    found, heads, norm = compositions(model), model.attentions[0].heads, torch.linalg.norm
    for late, head, early, other in ((1, 0, 0, heads - 1), (2, heads - 1, 0, 0), (2, 0, 1, 0)):
        q, k, v, o = matrices(model.blocks[late], head)
        _, _, before_v, before_o = matrices(model.blocks[early], other)
        written = before_o @ before_v
        additive = isinstance(model.attentions[0], AdditiveAttention)
        read = {"q": q, "k": k} if additive else {"q": k.T @ q, "k": q.T @ k}
        for kind, matrix in (read | {"v": o @ v}).items():
            expected = norm(matrix @ written) / (norm(matrix) * norm(written))
            torch.testing.assert_close(found[kind][late, head, early, other], expected)


@torch.no_grad()
def test_the_composition_of_random_heads():
    model = fresh(embed_dim=32, layers=8)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    expected = random_composition(model)
    assert expected == pytest.approx(32**-0.5)
    for found in compositions(model).values():
        of_earlier = found[found > 0]
        assert float(of_earlier.square().mean().sqrt()) == pytest.approx(expected, rel=0.05)


@torch.no_grad()
def test_a_circuit_built_by_hand_is_found():
    """The keys of the second head read the token before, which the first head writes."""
    model = induction_circuit()
    found = compositions(model)
    # Its keys read all that the first head writes: the largest value for matrices of rank VOCAB.
    assert found["k"][1, 0, 0, 0] == pytest.approx(VOCAB**-0.5)
    assert found["q"][1, 0, 0, 0] == found["v"][1, 0, 0, 0] == 0
    model.norm = torch.nn.Identity()
    assert copying_scores(model)[1, 0] == pytest.approx(1, abs=1e-4)
    assert copying_scores(model)[0, 0] == 0  # it writes beside the token
    model.blocks[1].attention.out_proj.weight.neg_()
    assert copying_scores(model)[1, 0] == pytest.approx(-1, abs=1e-4)


def receiving(new, head):
    """The outputs (N, T, H, D) of a layer, with `new` for one head."""

    def change(outputs):
        outputs = outputs.clone()
        outputs[:, :, head] = new
        return outputs

    return change


def plainly_patched(model, tokens, receiver, sender, way, new):
    """The weights and the last block's output, from three passes of the whole model with hooks."""
    (late, head), (early, other) = receiver, sender
    clean, inputs = head_outputs(model, tokens), []
    for changed in ((), range(early, late)):
        with ExitStack() as stack:
            norm = model.blocks[late].attention_norm
            keep = norm.register_forward_hook(lambda norm, read, normal: inputs.append(normal))
            stack.enter_context(keep)
            for layer in changed:
                frozen = receiving(new, other)(clean[layer]) if layer == early else clean[layer]
                hook = changed_outputs(model.attentions[layer], lambda _, frozen=frozen: frozen)
                stack.enter_context(hook)
            model.hidden(tokens)
    layer, mask = model.attentions[late], model.document_mask(tokens)
    read = [inputs[way in (kind, "all")] for kind in "qkv"]
    found = layer.compute_heads(*read, position=model.position, mask=mask, explicit=True)
    outputs = found.outputs.unflatten(-1, (layer.heads, -1))[:, :, head]
    with changed_outputs(layer, receiving(outputs, head)):
        return found.weights[:, head], model.hidden(tokens)


@torch.no_grad()
def test_path_patching_equals_three_passes_with_hooks(model):
    tokens, heads, seen = some_tokens(7), model.attentions[0].heads, []

    def measure(weights, x):
        seen.append((weights, x))
        return 0.0

    for other in (None, tokens.flip(0)):
        seen.clear()
        patch_paths(model, tokens, (2, heads - 1), measure, other)
        outputs = None if other is None else head_outputs(model, other)
        for early, sender, way in ((0, 0, "all"), (0, heads - 1, "k"), (1, 0, "q"), (1, 0, "v")):
            new = 0.0 if outputs is None else outputs[early][:, :, sender]
            expected = plainly_patched(model, tokens, (2, heads - 1), (early, sender), way, new)
            index = (early * heads + sender) * len(WAYS) + WAYS.index(way)
            torch.testing.assert_close(seen[index], expected, rtol=1e-4, atol=1e-4)


def test_needs_are_changes_of_the_loss_or_of_a_metric(tmp_path):
    saved(tmp_path, "model=gpt2 model.layers=3")
    loaded = headscope.load(tmp_path / "best.safetensors")
    changes = loaded.needs("L2H1", "We the p")["all_paths"].abs().tolist()
    assert len(changes) == 8
    assert changes == sorted(changes, reverse=True)
    same = loaded.needs("L2H1", "We the p", corrupted="We the p")
    assert same["all_paths"].abs().max() < 1e-5
    assert loaded.needs("L0H1", "We the p")["all_paths"].tolist() == []
    # With a document mask, a query sees the first token of its own document.
    saved(tmp_path, "model.document_mask=true model.layers=3")
    masked = headscope.load(tmp_path / "best.safetensors")
    tokens = [97, 98, masked.tokenizer.end_of_text, 99, 100, 101]

    def first_of_document(weights, x):
        return float(weights[0, [1, 3, 4, 5], [0, 2, 2, 2]].mean())

    batch = torch.tensor([tokens])
    before, after = patch_paths(masked.model, batch, (2, 1), first_of_document)
    for row in masked.needs("L2H1", tokens, metric="first").to_dict("records"):
        expected = float(after["all"][parse_head(row["head"], masked.model)]) - before
        assert row["all_paths"] == pytest.approx(expected, abs=1e-6)
        assert abs(row["v_path"]) < 1e-6  # values do not change weights
    for message, arguments in [
        ("one token", {"text": "a"}),
        ("metric='x'", {"text": "ab", "metric": "x"}),
        ("metric='induction'", {"text": "ab", "metric": "induction"}),
        ("corrupted has 3 tokens", {"text": "ab", "corrupted": "abc"}),
    ]:
        with refused(message):
            loaded.needs("L2H1", **arguments)


@torch.no_grad()
def test_the_in_context_learning_score():
    model = fresh(block_size=40)
    windows = torch.randint(11, (20, 32), generator=torch.Generator().manual_seed(3))
    each = next_token_loss(model(windows[:, :-1]), windows[:, 1:], reduction="none").view(20, 31)
    expected = float(each[:, 28:].mean() - each[:, 3:6].mean())
    assert in_context_score(model, windows) == pytest.approx(expected, abs=1e-5)
    assert in_context_score(model, windows[:, :10]) != in_context_score(model, windows[:, :10])


class Squared(MultiHeadAttention):
    """An attention of a user, whose queries are not linear in its input."""

    def make_projections(self):
        self.own = torch.nn.Linear(self.embed_dim, self.embed_dim)

    def project(self, query, key, value):
        return tuple(self.split(self.own(x).square()) for x in (query, key, value))


def test_an_own_attention_without_matrices_is_measured_by_what_it_does():
    model = fresh(attention=Squared)
    found = measure_heads(model, torch.randint(11, (2, 10))).metrics
    assert {"direct_effect", "previous"} <= found.keys()
    assert not {"copying", "composition"} & found.keys()
    with refused("Squared"):
        copying_scores(model)
