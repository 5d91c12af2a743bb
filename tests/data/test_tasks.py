"""The corpora of tasks: every answer is right, and nothing of the validation is in training."""

import json

import numpy as np
import pytest
import torch
from composing import training_config
from refusals import refused
from running import SMALL, events, summary
from torch.nn.functional import cross_entropy

import headscope
from headscope.config import build_part
from headscope.data.batches import TrainingBatches
from headscope.data.tasks import SYMBOLS, Modular, Names


def splits(corpus):
    found = list(corpus.examples())
    assert found == list(corpus.examples())
    train, validation = (
        [text for each, text in found if each == name] for name in ("train", "validation")
    )
    assert not set(train) & set(validation)
    return train, validation


def test_sums_are_right_and_every_pair_occurs_once():
    train, validation = splits(Modular(prime=59, share=0.4, seed=1))
    assert len({frozenset(text[:2]) for text in train}) == round(0.4 * 59 * 60 / 2)
    assert not {frozenset(text[:2]) for text in train} & {
        frozenset(text[:2]) for text in validation
    }
    pairs = set()
    for text in train + validation:
        a, b, c = (SYMBOLS.index(text[place]) for place in (0, 1, 3))
        assert text[2] == "="
        assert c == (a + b) % 59 < 59
        pairs.add((a, b))
    assert len(pairs) == len(train + validation) == 59**2


def test_the_answer_is_the_name_that_occurs_once_and_pairs_are_held_out():
    train, validation = splits(Names(names=20, seed=1))
    assert len(train + validation) == 4 * 190
    for text in train + validation:
        [answer] = {name for name in text[:3] if text[:3].count(name) == 1}
        assert text[3:] == f"={answer}"
    assert not {frozenset(text[:3]) for text in train} & {
        frozenset(text[:3]) for text in validation
    }


def test_other_seeds_divide_differently_and_have_other_fingerprints():
    for one, other in (
        (Modular(prime=7, share=0.5, seed=1), Modular(prime=7, share=0.5, seed=2)),
        (Names(names=9, seed=1), Names(names=9, seed=2)),
        (Names(names=9, seed=1), Names(names=10, seed=1)),
    ):
        assert splits(one) != splits(other)
        assert one.fingerprint() != other.fingerprint()


@torch.no_grad()
def losses_of_answers(loaded, inputs, targets):
    """The losses of the tokens after "=", one by one."""
    logits, [sign] = loaded.model(inputs), loaded.tokens("=")
    places = (inputs == sign).nonzero().tolist()
    assert places
    return [float(cross_entropy(logits[row, t], targets[row, t])) for row, t in places]


@pytest.mark.parametrize("chunk", ["null", "7"])
def test_the_losses_of_sums_count_only_answers(script, tmp_path, chunk):
    words = "data=modular data.prime=13 tokenizer=char model.document_mask=true"
    words += f" trainer.max_steps=1 trainer.log_every_steps=1 trainer.loss_chunk_tokens={chunk}"
    words += f" callbacks.keep_steps=[0] hydra.run.dir={tmp_path}/run"
    assert script("train", *SMALL[1:], *words.split()).code == 0
    first = headscope.load(*tmp_path.glob("run/checkpoints/step_*.safetensors"))
    last = headscope.load(f"{tmp_path}/run")
    corpus, end = build_part(last.config.data), last.tokenizer.end_of_text
    train, validation = (
        np.array([token for text in texts for token in (end, *last.tokens(text))], dtype=np.uint16)
        for texts in splits(corpus)
    )
    [inputs, targets] = next(
        iter(TrainingBatches(train, block_size=32, batch_size=12, seed=last.config.seed))
    )
    expected = losses_of_answers(first, inputs, targets)
    logged = events(f"{tmp_path}/run").Scalars("train/loss")[0]
    assert logged.value == pytest.approx(sum(expected) / len(expected), abs=1e-5)
    tokens, expected = torch.tensor(validation.astype(int)), []
    for start in range(0, len(tokens) - 1, 32):
        window = tokens[None, start : start + 33]
        expected += losses_of_answers(last, window[:, :-1], window[:, 1:])
    assert len(expected) == len(splits(corpus)[1])
    mean = sum(expected) / len(expected)
    assert summary(f"{tmp_path}/run")["val_loss"] == pytest.approx(mean, abs=1e-5)
    said = script("evaluate", f"checkpoint={tmp_path}/run")
    found = json.loads(said.out[said.out.index("{") :])
    assert found["tokens"] == found["bytes"] == len(expected)
    assert found["loss_nats_per_token"] == pytest.approx(mean, abs=1e-5)


def test_a_batch_without_answers_is_refused(script, tmp_path):
    words = "data=modular tokenizer=char model.block_size=1 trainer.batch_size=1"
    said = script("train", *SMALL[2:], *words.split(), f"hydra.run.dir={tmp_path}/run")
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert "no answer to learn from" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data=modular data.prime=60", "data.prime=60"),
        ("data=modular data.prime=97", "data.prime=97"),
        ("data=modular data.share=1", "data.share=1"),
        ("data=names data.names=4", "data.names=4"),
        ("data=names data.names=94", "data.names=94"),
    ],
)
def test_values_out_of_range_are_refused(words, message):
    with refused(message):
        build_part(training_config(*words.split()).data)
