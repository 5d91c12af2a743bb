"""The laws of generated corpora: the same arguments give the same text, every answer is right, and
nothing of the validation is in training. With `answer_after`, losses count only answers."""

import json
import math
import re
from itertools import islice

import numpy as np
import pytest
import torch
from composing import training_config
from corpora import texts
from refusals import refused
from running import SMALL, events, summary
from torch.nn.functional import cross_entropy

import headscope
from headscope.config.parts import build_part
from headscope.data.batches import TrainingBatches
from headscope.data.encode import validation_text
from headscope.data.generated import CHARACTERS, SYMBOLS
from headscope.data.windows import spread_windows
from headscope.show.explore.answers import Explorer
from headscope.show.explore.models import Models
from headscope.show.explore.protocol import parse_request
from headscope.trained.ablations import measure_ablation
from headscope.trained.evaluation import evaluate, evaluate_lengths


def corpus(name, **keys):
    return build_part(training_config(f"data={name}").data | keys, "data")


CHANGES = {
    "repeats": {"alphabet": 63, "min_length": 9, "max_length": 25, "min_copies": 3}
    | {"max_copies": 5, "characters": 21_000, "seed": 2},
    "modular": {"prime": 11, "share": 0.6, "seed": 2},
    "names": {"names": 12, "seed": 2},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_text_and_its_fingerprint_are_functions_of_every_key(name):
    less = {"characters": 20_000} if name == "repeats" else {}
    found = corpus(name, **less)
    changed = [corpus(name, **less | {key: value}) for key, value in CHANGES[name].items()]
    assert {*CHANGES[name]} == {*training_config(f"data={name}").data} - {"_target_"}
    assert len({each.fingerprint() for each in (found, *changed)}) == len(changed) + 1
    train, validation = texts(found)
    assert (train, validation) == texts(corpus(name, **less))
    assert corpus(name, **less).fingerprint() == found.fingerprint()
    assert not {*train} & {*validation}
    for each in changed:
        assert texts(each) != (train, validation)


def test_sums_are_right_and_every_pair_occurs_once():
    train, validation = texts(corpus("modular", prime=59, share=0.4))
    pairs = [{frozenset(text[:2]) for text in split} for split in (train, validation)]
    assert len(pairs[0]) == round(0.4 * 59 * 60 / 2)
    assert not pairs[0] & pairs[1]
    found = set()
    for text in train + validation:
        a, b, c = (SYMBOLS.index(text[place]) for place in (0, 1, 3))
        assert text[2] == "="
        assert c == (a + b) % 59 < 59
        found.add((a, b))
    assert len(found) == len(train + validation) == 59**2


def test_the_answer_is_the_name_that_occurs_once_and_pairs_are_held_out():
    train, validation = texts(corpus("names", names=20))
    assert len(train + validation) == 4 * 190
    for text in train + validation:
        [answer] = {name for name in text[:3] if text[:3].count(name) == 1}
        assert text[3:] == f"={answer}"
    assert not {frozenset(text[:3]) for text in train} & {*map(frozenset, validation)}


RANGES = {"min_length": 8, "max_length": 24, "min_copies": 2, "max_copies": 3}


def drawn(**keys):
    """The training and the validation text of `repeats`."""
    keys = RANGES | {"alphabet": 64, "characters": 20_000, "seed": 1} | keys
    [train], [validation] = texts(corpus("repeats", **keys))
    return train, validation


@pytest.mark.parametrize(("lengths", "copies"), [((8, 24), (2, 3)), ((24, 24), (5, 5))])
def test_strings_have_a_length_and_copies_in_range_and_all_values_occur(lengths, copies):
    train, _ = drawn(**dict(zip(RANGES, (*lengths, *copies), strict=True)))
    # With 64 characters, two strings begin with the same seven by chance once in 10^12.
    found = re.findall(r"((.{7}.*?)\2+)", train)
    assert train.startswith("".join(whole for whole, _ in found))
    found.pop()  # it is cut
    strings = [(len(once), len(whole) // len(once)) for whole, once in found]
    assert {length for length, _ in strings} == {*range(lengths[0], lengths[1] + 1)}
    assert {times for _, times in strings} == {*range(copies[0], copies[1] + 1)}
    assert sum(length * times for length, times in strings) >= len(train) - lengths[1] * copies[1]


def test_the_texts_of_repeats_have_their_lengths_and_characters_and_share_no_string():
    for alphabet in (2, len(CHARACTERS)):
        for text in drawn(alphabet=alphabet, characters=10**5):
            counts = [text.count(char) for char in {*text}]
            assert len(counts) == alphabet
            assert max(counts) < 3 * min(counts)
            assert all(char.isprintable() and char.isascii() and char != " " for char in {*text})
    train, validation = drawn()
    assert (len(train), len(validation)) == (20_000, 2_000)
    passages = {train[start : start + 8] for start in range(len(train))}
    assert not passages & {validation[start : start + 8] for start in range(len(validation))}
    assert drawn(characters=30_000)[0].startswith(train)  # the last string may have been cut
    assert [len(text) for text in drawn(characters=720)] == [720, 72]  # one string


REFUSED = [
    *(("modular", {"prime": 60}), ("modular", {"prime": 97}), ("modular", {"share": 1})),
    *(("names", {"names": 4}), ("names", {"names": 94})),
    *(("repeats", {"alphabet": 95}), ("repeats", {"characters": 0})),
    *(("repeats", {"min_length": 0}), ("repeats", {"min_length": 25, "max_length": 24})),
    *(("repeats", {"min_copies": 4, "max_copies": 3}), ("repeats", RANGES | {"characters": 719})),
]


@pytest.mark.parametrize(("name", "keys"), REFUSED)
def test_a_value_out_of_range_is_refused(name, keys):
    key, value = [*keys.items()][0 if len(keys) < 3 else -1]
    with refused(f"data.{key}={value}"):
        corpus(name, **keys)


# --- answers ---


def answers_in(loaded, inputs, targets):
    """The place (window, position) and loss of each token after "=" if its sum is in the window."""
    logits, [sign] = loaded.model(inputs), loaded.tokens("=")
    return {
        (row, t): cross_entropy(logits[row, t], targets[row, t])
        for row, t in (inputs == sign).nonzero().tolist()
        if loaded.tokenizer.end_of_text in inputs[row, :t]
    }


def losses_of_answers(loaded, inputs, targets):
    return list(answers_in(loaded, inputs, targets).values())


def norm_of_gradient(loaded, loss):
    gradients = torch.autograd.grad(loss, list(loaded.model.parameters()), allow_unused=True)
    return torch.stack([each.norm() for each in gradients if each is not None]).norm()


@pytest.fixture
def trained(script, tmp_path):
    """trained(WORDS) trains on sums, and returns the run's folder."""

    def train(words, *, small=SMALL[1:]):
        words = f"data=modular data.prime=13 tokenizer=char trainer.max_steps=1 {words}"
        script("train", *small, *words.split(), f"hydra.run.dir={tmp_path}/run").succeeded()
        return tmp_path / "run"

    return train


@pytest.mark.parametrize(
    ("chunk", "batches", "batch_size", "block_size"),
    [("7", 1, 12, 32), ("null", 3, 3, 11), ("5", 5, 1, 4)],
)
def test_the_losses_of_sums_count_only_answers(
    script, trained, chunk, batches, batch_size, block_size
):
    """They are the mean over all answers of a step or of a split, however it is divided into
    batches. Windows of 4 tokens often have no answer."""
    run = trained(
        "model.document_mask=true model.dropout=0 trainer.log_every_steps=1 trainer.gradient_clip=0"
        f" trainer.loss_chunk_tokens={chunk} trainer.accumulate={batches}"
        f" trainer.batch_size={batch_size} model.block_size={block_size}"
        " callbacks.saving.keep_steps=[0]",
        small=SMALL[2:],
    )
    first = headscope.load(*run.glob("checkpoints/step_*.safetensors"))
    last = headscope.load(run)
    corpus, end = build_part(last.config.data, "data"), last.tokenizer.end_of_text
    train, validation = (
        np.array([token for text in each for token in (end, *last.tokens(text))], dtype=np.uint16)
        for each in texts(corpus)
    )
    sizes = {"block_size": block_size, "batch_size": batch_size}
    windows = TrainingBatches(train, **sizes, seed=last.config.seed)
    of_batches = [losses_of_answers(first, *batch) for batch in islice(windows, batches)]
    expected = torch.stack([loss for each in of_batches for loss in each]).mean()
    loss, norm = (events(run).Scalars(f"train/{name}")[0].value for name in ("loss", "grad_norm"))
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    assert norm == pytest.approx(norm_of_gradient(first, expected).item(), rel=1e-4)
    tokens, expected = torch.tensor(validation.astype(int)), []
    for start in range(0, len(tokens) - 1, block_size):
        window = tokens[None, start : start + block_size + 1]
        expected += losses_of_answers(last, window[:, :-1], window[:, 1:])
    assert 0 < len(expected) < len(texts(corpus)[1])
    mean = torch.stack(expected).mean().item()
    assert summary(run)["val_loss"] == pytest.approx(mean, abs=1e-5)
    said = script("evaluate", f"checkpoint={run}")
    found = json.loads(said.out[said.out.index("{") :])
    assert found["tokens"] == found["bytes"] == len(expected)
    assert found["loss_nats_per_token"] == pytest.approx(mean, abs=1e-5)


def test_a_step_without_answers_is_refused(script):
    words = "data=modular tokenizer=char model.block_size=3 trainer.batch_size=1"
    said = script("train", *SMALL[2:], *words.split()).refused("no answer to learn from")
    assert said.err.count("\n") == 1


@pytest.mark.usefixtures("pictures_not_drawn")
def test_reports_and_texts_count_only_answers(script, trained):
    run = trained("data.share=0.2")
    words = "ablation=true gradients=true windows=8 ablation_windows=8 tensorboard=false"
    assert script("analyze", f"checkpoint={run}", *words.split()).code == 0
    report = json.loads((run / "analysis/heads.json").read_text())
    loaded = headscope.load(run)
    text = validation_text(build_part(loaded.config.data, "data"), loaded.tokenizer)
    windows = spread_windows(text.tokens, windows=8, length=33)
    inputs, targets = windows[:, :-1], windows[:, 1:]

    def loss():
        return torch.stack(losses_of_answers(loaded, inputs, targets)).mean().item()

    whole = loss()
    assert report["ablation"]["loss"] == pytest.approx(whole, abs=1e-5)
    for row in report["heads"]:
        with loaded.ablate([f"L{row['layer']}H{row['head']}"]):
            assert row["loss_change"] == pytest.approx(loss() - whole, abs=1e-5)
        expected = row["loss_change"] / math.log(2)  # a number is one byte
        assert row["bits_per_byte_change"] == pytest.approx(expected, rel=1e-4)
    windows = spread_windows(text.tokens, windows=8, length=32)
    answers = answers_in(loaded, windows[:, :-1], windows[:, 1:]).items()
    late = torch.stack([loss for (_, t), loss in answers if t >= 28]).mean()
    early = torch.stack([loss for (_, t), loss in answers if 3 <= t < 6]).mean()
    assert report["in_context_score"] == pytest.approx((late - early).item(), abs=1e-5)
    # A text of the user begins with a document: its first answer counts.
    explorer = Explorer(Models(str(run), None, "cpu"))
    for own in ("ab=c", loaded.tokenizer.decode(text.tokens[1:20].tolist()), "ab"):
        tokens, [sign] = torch.tensor([loaded.tokens(own)]), loaded.tokens("=")
        logits = loaded.model(tokens)
        places = (tokens[0, :-1] == sign).nonzero()[:, 0].tolist()
        each = [cross_entropy(logits[0, t], tokens[0, t + 1]).item() for t in places]
        expected = pytest.approx(sum(each) / len(each), abs=1e-5) if each else None
        assert explorer.read(parse_request("read", {"text": own}))["loss"] == expected
        assert loaded.read(own).loss() == expected
        counted = loaded.loss(own)
        assert [*counted.isfinite().nonzero()[:, 0]] == places
        assert expected == (counted.nanmean() if each else None)
    assert loaded.needs("L1H0", "ab=c")["all_paths"][0] != 0
    with refused("no answer that counts"):
        loaded.needs("L1H0", "ab")
    with refused("block_size=3"):
        evaluate(loaded.model, text, batch_size=4, block_size=3)
    [row, _] = evaluate_lengths(loaded, text, batch_size=4, block_sizes=[3, 5])
    assert "no answer fits" in row["not_possible"]
    with refused("ablation_windows=4"):
        measure_ablation(loaded.with_block_size(3), text, "zero", windows=4)
