"""Activation patching equals a forward pass in which a hook, written here, replaces a head. The
second part: the texts that are given, and the metric that they name."""

from pathlib import Path

import pytest
import torch
from checkpoint_files import configuration, content, save
from choices import every_part
from induction_circuit import VOCAB, induction_circuit
from small_gpt import gpt, variant
from torch import Tensor

import headscope
from headscope.analysis.patch_texts import PatchTexts, patch_texts
from headscope.analysis.patching import ContinuationLoss, LogitDifference, patch_heads
from headscope.checkpoint import Checkpoint
from headscope.data.tokenizer import bpe
from headscope.errors import UserError
from headscope.nn import GPT

CLEAN = torch.tensor([3, 1, 4, 1, 5, 9, 2])
CORRUPTED = torch.tensor([3, 1, 4, 8, 5, 9, 2])
METRIC = LogitDifference(right=6, wrong=7)


def by_hand(model: GPT, text: Tensor, other: Tensor, layer: int, head: int, positions) -> Tensor:
    """The logits (1, T, V) of `text` when the head has its output of `other` at `positions`."""
    part = model.attentions[layer]
    columns = slice(head * part.head_dim, (head + 1) * part.head_dim)
    read: list[Tensor] = []

    def exchange(module, inputs: tuple[Tensor]) -> Tensor:
        read.append(inputs[0].clone())
        read[-1][:, positions, columns] = read[0][:, positions, columns]
        return read[-1]

    handle = part.out_proj.register_forward_pre_hook(exchange)
    model(other[None])
    logits = model(text[None])
    handle.remove()
    return logits


@torch.no_grad()
@every_part
def test_each_head_is_replaced_as_by_hand(pair):
    for position in [None, 3, 6]:
        model = gpt(**variant(pair))
        found = patch_heads(model, CLEAN, CORRUPTED, METRIC, position=position, max_batch=3)
        places = range(7) if position is None else [position]
        assert found.clean == pytest.approx(float(METRIC(model(CLEAN[None]))), rel=1e-4, abs=1e-5)
        for layer, part in enumerate(model.attentions):
            for head in range(part.heads):
                for result, text, other in (
                    (found.noised, CLEAN, CORRUPTED),
                    (found.denoised, CORRUPTED, CLEAN),
                ):
                    logits = by_hand(model, text, other, layer, head, places)
                    expected = float(logits[0, -1, 6] - logits[0, -1, 7])
                    assert float(result[layer, head]) == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert (found.denoised - found.corrupted).abs().max() > 1e-4


@torch.no_grad()
def test_the_loss_of_the_continuation_is_that_of_its_tokens():
    model = gpt()
    tokens = CLEAN[-3:]
    shares = model(CLEAN[None])[0].log_softmax(dim=-1)
    expected = -sum(float(shares[3 + n, token]) for n, token in enumerate(tokens)) / 3
    found = patch_heads(model, CLEAN, CORRUPTED, ContinuationLoss(tuple(tokens.tolist())))
    assert found.clean == pytest.approx(expected, rel=1e-5)
    assert found.corrupted != pytest.approx(expected, rel=1e-3)


def test_the_same_text_changes_nothing_and_has_no_score():
    found = patch_heads(gpt(), CLEAN, CLEAN, METRIC)
    for changed in (found.denoised, found.noised):
        torch.testing.assert_close(changed, torch.full_like(changed, found.clean))
    assert found.clean == found.corrupted
    assert found.denoising.isnan().all()
    assert found.noising.isnan().all()


def test_in_an_induction_circuit_the_two_heads_of_the_circuit_are_needed_and_each_restores_it():
    """clean: A B ... A, which makes the model predict B. corrupted: D B ... A."""
    model = induction_circuit(heads=2)
    model.norm = torch.nn.Identity()
    with torch.no_grad():  # the induction head also copies the token that it looks at
        attention = model.attentions[1]
        attention.qkv.weight.chunk(3)[2][:VOCAB, :VOCAB] = torch.eye(VOCAB)
        attention.out_proj.weight[:VOCAB, :VOCAB] = torch.eye(VOCAB)
    clean, corrupted = torch.tensor([1, 2, 5, 6, 7, 1]), torch.tensor([4, 2, 5, 6, 7, 1])
    found = patch_heads(model, clean, corrupted, LogitDifference(right=2, wrong=5))
    ones = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(found.denoising, ones, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.noising, 1 - ones, rtol=0, atol=1e-3)


def test_texts_and_metrics_that_do_not_fit_are_refused():
    for corrupted, position, words in (
        (CORRUPTED[:-1], None, r"\(7,\).*\(6,\).*same number of tokens"),
        (CORRUPTED[None], None, r"\(1, 7\)"),
        (CORRUPTED, 7, "position=7.*0 to 6"),
        (CORRUPTED, -1, "position=-1.*0 to 6"),
    ):
        with pytest.raises(UserError, match=words):
            patch_heads(gpt(), CLEAN, corrupted, METRIC, position=position)
    for metric, words in (
        (ContinuationLoss(()), "has 0 tokens"),
        (ContinuationLoss(tuple(range(7))), "has 7 tokens, and the texts have 7"),
        (LogitDifference(1, -1), "the token -1 must be from 0 to"),
    ):
        with pytest.raises(UserError, match=words):
            patch_heads(gpt(), CLEAN, CORRUPTED, metric)
    with pytest.raises(UserError, match="at least one"):
        patch_heads(gpt(), CLEAN[:0], CORRUPTED[:0], METRIC)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A model of 8 bytes of context."""
    file = tmp_path_factory.mktemp("patch") / "some.safetensors"
    save(content()[0], file)
    return headscope.load(file)


def test_answers_are_the_two_tokens_of_a_logit_difference(loaded: Checkpoint):
    texts = patch_texts(loaded, clean="abc abc", corrupted="abd abc", answers=["x", " "])
    assert texts.metric == LogitDifference(right=ord("x"), wrong=ord(" "))
    assert (texts.clean, texts.corrupted) == (list(b"abc abc"), list(b"abd abc"))
    assert texts.clean_labels == list("abc·abc")
    assert texts.metric_name == "the logit of x minus the logit of · at the last token"
    tokens = torch.tensor(texts.clean), torch.tensor(texts.corrupted)
    direct = patch_heads(loaded.model, *tokens, LogitDifference(right=120, wrong=32))
    torch.testing.assert_close(vars(texts.run(loaded)), vars(direct))


def test_a_continuation_follows_both_texts(loaded: Checkpoint):
    texts = patch_texts(loaded, clean="abca", corrupted="abda", continuation="bc", position=5)
    assert texts.metric == ContinuationLoss((98, 99))
    assert (texts.clean, texts.corrupted) == (list(b"abcabc"), list(b"abdabc"))
    assert texts.position == 5


def test_tokens_count_and_not_characters(tmp_path: Path):
    tokenizer = bpe([" cat dog" * 50], vocab_size=263)
    assert len(tokenizer.encode_prompt(" cat")) == len(tokenizer.encode_prompt(" dog")) == 1
    save(content(configuration(), tokenizer)[0], tmp_path / "some.safetensors")
    loaded = headscope.load(tmp_path / "some.safetensors")
    texts = patch_texts(loaded, clean=" cat", corrupted="x", answers=[" cat", " dog"])
    assert len(texts.clean) == len(texts.corrupted) == 1


GOOD = {"clean": "abc ab", "corrupted": "abd ab", "answers": ["c", "d"]}


def test_a_mistake_is_told_in_one_line(loaded: Checkpoint):
    for changed, words in (
        ({"corrupted": "abd abc"}, ["have 6 and 7 tokens", "change a text", "['c', '·', "]),
        ({"corrupted": "多 abc"}, ["have 6 and 7 tokens", "['多 1/3', "]),
        ({"corrupted": "abc ab"}, ["same text"]),
        ({"clean": None}, ["patch.clean is missing"]),
        ({"answers": None}, ["patch.answers", "patch.continuation", "one of them"]),
        ({"answers": ["c"]}, ["patch.answers=['c']", "two different"]),
        ({"answers": ["c", "c"]}, ["two different"]),
        ({"answers": ["c", "de"]}, ["'de' has 2 tokens (d, e)", "one"]),
        ({"answers": None, "continuation": ""}, ["patch.continuation is empty"]),
        ({"answers": None, "continuation": "cde"}, ["9 tokens", "block_size=8"]),
        ({"position": 6}, ["patch.position=6", "0 to 5"]),
    ):
        with pytest.raises(UserError) as caught:
            patch_texts(loaded, **(GOOD | changed))
        assert "\n" not in str(caught.value)
        assert all(word in str(caught.value) for word in words)


def test_without_a_difference_of_the_metric_there_is_no_score(loaded: Checkpoint):
    texts = patch_texts(loaded, **GOOD)
    same = PatchTexts(**{**vars(texts), "corrupted": texts.clean})
    with pytest.raises(UserError, match="no difference that a head could carry"):
        same.run(loaded)
