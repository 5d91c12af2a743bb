"""Generation: the choice of tokens, the tokens that the model reads, and the decoded text."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refused
from small_gpt import gpt

from headscope.data.tokenizer import bpe, byte
from headscope.nn import GPT, Learned
from headscope.trained.generation import choose_token
from headscope.trained.generation.choose_token import (
    choose_tokens,
    most_precise_dtype,
    uniform_numbers,
)
from headscope.trained.generation.generate import generate_text, generate_tokens

BYTES = byte([])
WORDS = bpe(["the cat sat on the mat, the hat sat on the cat\n\n"], vocab_size=270)


class Scripted(GPT):
    """A model that generates the tokens of `script` in order, and records the tokens it reads."""

    def __init__(self, script, *, vocab_size: int = 257, block_size: int = 1000) -> None:
        sizes = {"block_size": block_size, "embed_dim": 1, "layers": 1, "heads": 1}
        super().__init__(vocab_size=vocab_size, position=Learned, **sizes)
        self.script = [int(token) for token in script]
        self.read: list[list[int]] = []

    def next_logits(self, tokens, cache=None):
        logits = torch.zeros(1, self.embedding.num_embeddings)
        logits[0, self.script[len(self.read)]] = 1.0
        self.read.append(tokens[0].tolist())
        return logits


def tokens_of(model, prompt, *, count, **options) -> list[int]:
    steps = generate_tokens(model, prompt, max_new_tokens=count, seeds=[0], **options)
    return [token for (token,) in steps]


def generated(script, *, tokenizer=BYTES, **options) -> tuple[list[str], Scripted]:
    """The pieces of text that a `Scripted` model generates, and the model."""
    model = Scripted(script, vocab_size=tokenizer.vocab_size)
    options = {"max_new_tokens": len(script), "seed": 0, "temperature": 0.0} | options
    return list(generate_text(model, tokenizer, "", **options)), model


def token_counts(logits, *, draws=400, **options) -> Counter:
    """How often each token is sampled in `draws` draws."""
    uniform = torch.rand(draws, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chosen = choose_tokens(torch.tensor([logits] * draws), uniform=uniform, **options)
    return Counter(chosen.tolist())


# --- the choice of tokens ---


def test_greedy_is_a_loop_of_argmax():
    model, expected = gpt(vocab_size=257, block_size=16), [5, 6]
    for _ in range(14):
        expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    assert len({*expected}) > 4
    assert tokens_of(model, [5, 6], count=14, temperature=0.0) == expected[2:]


LOGITS = [math.log(p) for p in (0.15, 0.5, 0.1, 0.25)]


def test_top_k_and_top_p_keep_the_fewest_tokens():
    for top_k, top_p, expected in [
        *((None, None, {0, 1, 2, 3}), (None, 1.0, {0, 1, 2, 3}), (99, None, {0, 1, 2, 3})),
        *((2, None, {1, 3}), (None, 0.01, {1}), (None, 0.49, {1}), (None, 0.51, {1, 3})),
        *((None, 0.74, {1, 3}), (None, 0.76, {0, 1, 3}), (None, 0.91, {0, 1, 2, 3})),
        (3, 0.82, {1, 3}),  # of the three most likely tokens, these two have probability 5/6
        (3, 0.85, {0, 1, 3}),
    ]:
        assert set(token_counts(LOGITS, top_k=top_k, top_p=top_p)) == expected
    assert len(token_counts([0.0] * 6, top_k=2)) == 2  # also of tokens that are equally likely
    assert len(token_counts([0.0] * 6, top_p=0.4)) == 3


@pytest.mark.parametrize("limit", [{}, {"top_k": 3}, {"top_p": 0.8}])
def test_token_frequencies_follow_softmax(limit):
    for temperature in (0.5, 1.0, 2.0):
        logits = torch.tensor(LOGITS) / temperature
        drawn = token_counts(LOGITS, temperature=temperature, draws=4000, **limit)
        logits[[token for token in range(4) if token not in drawn]] = -math.inf
        for token, probability in enumerate(logits.softmax(0).tolist()):
            assert drawn[token] / 4000 == pytest.approx(probability, abs=0.03)  # four sigma
    for temperature in (5e-324, 1e308):  # probabilities stay finite
        several = len(token_counts(LOGITS, temperature=temperature, **limit)) > 1
        assert several == (temperature > 1)


def test_settings_out_of_range_are_refused():
    for name, values in {
        "max_new_tokens": [-1],
        "temperature": [-0.1, math.inf, math.nan],
        "top_k": [0, -3],
        "top_p": [0.0, 1.1, -1.0, math.nan],
        "stop": [[""]],
    }.items():
        for value in values:
            with refused(f"{name}={value[0]!r}" if name == "stop" else f"{name}={value}"):
                generated([65], **{name: value})


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 0.0}])
def test_choosing_tokens_needs_no_gpu_synchronization_and_equals_the_cpu(options):
    logits = torch.randn(64, 500, generator=torch.Generator().manual_seed(0))
    tokens = []
    for name in ("cpu", "cuda"):
        device = torch.device(name)
        there, uniform = logits.to(device), next(uniform_numbers(range(64), device))
        torch.cuda.set_sync_debug_mode("error")
        try:
            tokens.append(choose_tokens(there, uniform=uniform, **options))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert tokens[0].tolist() == tokens[1].tolist()


def test_a_seed_gives_the_same_random_numbers_for_every_device(monkeypatch):
    assert most_precise_dtype(torch.device("mps")) == torch.float32
    numbers = uniform_numbers([3, 4], torch.device("cpu"))
    for _ in range(300):  # more than are generated at a time
        last = next(numbers)
    for number, seed in zip(last, (3, 4), strict=True):
        generator = torch.Generator().manual_seed(seed)
        assert number == torch.rand(512, dtype=torch.float64, generator=generator)[299]
    # A number below 1 is not rounded to 1.
    almost = torch.full((256,), 1 - 2**-53, dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *size, **options: almost)
    monkeypatch.setattr(choose_token, "most_precise_dtype", lambda device: torch.float32)
    uniform = next(uniform_numbers([1], torch.device("cpu")))
    assert choose_tokens(torch.zeros(1, 5), uniform=uniform).item() == 4


# --- the tokens that the model reads ---


@pytest.mark.parametrize("block", [8, 7, 2, 1])
def test_a_full_context_continues_with_its_last_half(block):
    for prompt in [1, 5, 8, 9, 30]:
        script = [100 + step for step in range(25)]
        model, first = Scripted(script, block_size=block), list(range(prompt))
        assert tokens_of(model, first, count=25, temperature=0.0, cached=False) == script
        lengths = [prompt if prompt <= block else max(1, block // 2)]
        while len(lengths) < 25:
            lengths.append(lengths[-1] + 1 if lengths[-1] < block else max(1, block // 2))
        for step, (read, length) in enumerate(zip(model.read, lengths, strict=True)):
            assert read == (first + script[:step])[-length:]


def test_an_empty_prompt_starts_a_document():
    assert generated([65])[1].read == [[BYTES.end_of_text]]


# --- the decoded text ---


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("🦜é中"), max_size=12))
def test_pieces_join_to_the_text_and_consist_of_whole_characters(text):
    pieces, _ = generated(text.encode())
    assert "".join(pieces) == text  # an incomplete character would become U+FFFD
    assert len(pieces) >= len(text)  # each character is a separate piece


@pytest.mark.parametrize(
    ("script", "options", "read", "text"),
    [
        ([*b"so", BYTES.end_of_text, *b"never"], {}, 3, "so"),
        (b"so\n\ntwo", {"stop": ["\n\n"]}, 4, "so"),
        (b"so", {"max_new_tokens": 0}, 0, ""),
        (b"a\xffb\xf0\x9fc", {}, 6, "a\ufffdb\ufffdc"),  # not UTF-8
        ("a🦜".encode()[:-1], {}, 4, "a\ufffd"),  # an incomplete character
    ],
)
def test_a_text_that_ends_ends_the_computation(script, options, read, text):
    pieces, model = generated(script, **options)
    assert "".join(pieces) == text
    assert len(model.read) == read


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS])
@settings(max_examples=60, deadline=None)
@given(
    st.text("the cas🦜\n", max_size=20),
    st.lists(st.text("the cas🦜\n", min_size=2, max_size=2), max_size=3),
)
@example("the cat sat", ["at s"])  # starts in one token and ends in another
@example("the cat sat", ["cat sat on"])  # incomplete at the end of the text
@example("aaab", ["aab"])  # its first characters also occur before it
@example("the mat, the hat", ["hat", ", "])  # the earlier of two stop texts
@example("on the mat", ["e", "h"])  # two stop texts in one token
def test_text_ends_before_the_first_stop_text(tokenizer, text, stop):
    pieces, _ = generated(tokenizer.encode(text), tokenizer=tokenizer, stop=stop)
    ends = [text.find(end) for end in stop if end in text]
    assert "".join(pieces) == text[: min(ends, default=len(text))]
