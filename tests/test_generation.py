"""The laws of sampling: what is drawn, what the model reads, and what a person gets to see."""

import math
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_gpt import make_gpt

from headscope.data.tokenizer import CharTokenizer, bpe, byte
from headscope.generation import choose_tokens, generate_text, generate_tokens
from headscope.generation.choose_token import most_precise_dtype, uniform_numbers
from headscope.nn import GPT, Learned, multi_head

BYTES = byte([])
WORDS = bpe(["the cat sat on the mat, the hat sat on the cat\n\n"], vocab_size=270)


class Scripted(GPT):
    """Says the tokens of a script one after the other, and notes what it was given to read."""

    def __init__(self, script, *, vocab_size: int = 257, block_size: int = 1000) -> None:
        attention = partial(multi_head, heads=1)
        sizes = {"block_size": block_size, "embed_dim": 1, "layers": 1}
        super().__init__(vocab_size=vocab_size, attention=attention, **sizes)
        self.script = [int(token) for token in script]
        self.read: list[list[int]] = []

    def next_logits(self, tokens, cache=None):
        logits = torch.zeros(1, self.embedding.num_embeddings)
        logits[0, self.script[len(self.read)]] = 1.0
        self.read.append(tokens[0].tolist())
        return logits


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    model = make_gpt(
        vocab_size=257, block_size=16, embed_dim=16, layers=2, heads=2, position=Learned
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 8  # far from even odds
    return model


def tokens_of(model, prompt=(5, 6), *, seed=0, count=40, **options) -> list[int]:
    made = generate_tokens(model, [list(prompt)], max_new_tokens=count, seeds=[seed], **options)
    return [token for (token,) in made]


def said(script, *, tokenizer=BYTES, stop=(), **options) -> tuple[list[str], Scripted]:
    """The pieces of text that come of a script, and the model that said it."""
    model = Scripted(script, vocab_size=tokenizer.vocab_size)
    options = {"max_new_tokens": len(script), "seed": 0, "temperature": 0.0} | options
    return list(generate_text(model, tokenizer, "", stop=stop, **options)), model


def support(logits, *, draws=400, **options) -> Counter:
    chance = torch.rand(draws, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Counter(
        choose_tokens(torch.tensor([logits] * draws), uniform=chance, **options).tolist()
    )


# --- what is drawn ---


def test_greedy_is_a_loop_of_argmax(model):
    expected = [5, 6]
    for _ in range(14):
        expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    assert tokens_of(model, count=14, temperature=0.0) == expected[2:]


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"top_k": 1, "top_p": 0.5}])
def test_keeping_one_token_is_greedy(model, options):
    assert tokens_of(model, **options) == tokens_of(model, temperature=0.0)


def test_a_seed_is_a_text(model):
    options = {"max_new_tokens": 40, "temperature": 1.5}
    texts = [
        "".join(generate_text(model, BYTES, "Go", seed=seed, **options)) for seed in (1, 1, 2, 3)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_global_random_numbers_are_left_alone(model):
    before = torch.get_rng_state()
    tokens_of(model)
    assert torch.equal(torch.get_rng_state(), before)


LOGITS = [math.log(p) for p in (0.15, 0.5, 0.1, 0.25)]


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (None, None, {0, 1, 2, 3}),
        (None, 1.0, {0, 1, 2, 3}),
        (2, None, {1, 3}),
        (99, None, {0, 1, 2, 3}),
        (None, 0.01, {1}),
        (None, 0.49, {1}),
        (None, 0.51, {1, 3}),
        (None, 0.74, {1, 3}),
        (None, 0.76, {0, 1, 3}),
        (None, 0.89, {0, 1, 3}),
        (None, 0.91, {0, 1, 2, 3}),
        (3, 0.82, {1, 3}),  # of the three that are left, two are 5/6
        (3, 0.85, {0, 1, 3}),
    ],
)
def test_the_fewest_tokens_are_kept(top_k, top_p, kept):
    assert set(support(LOGITS, top_k=top_k, top_p=top_p)) == kept


def test_of_equally_likely_tokens_no_more_are_kept():
    assert len(support([0.0] * 6, top_k=2)) == 2
    assert len(support([0.0] * 6, top_p=0.4)) == 3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("keep", [{}, {"top_k": 3}, {"top_p": 0.8}])
def test_tokens_come_as_often_as_softmax_says(temperature, keep):
    logits = torch.tensor(LOGITS) / temperature
    drawn = support(LOGITS, temperature=temperature, draws=4000, **keep)
    logits[[token for token in range(4) if token not in drawn]] = -math.inf
    for token, probability in enumerate(logits.softmax(0).tolist()):
        assert drawn[token] / 4000 == pytest.approx(probability, abs=0.03)  # four sigma


@pytest.mark.parametrize("temperature", [1e-308, 5e-324, 1e308])
def test_no_temperature_makes_a_probability_infinite(temperature):
    tokens = support([1.0, 3.0, 2.0, -50.0], temperature=temperature)
    if temperature < 1:
        assert set(tokens) == {1}
    else:
        assert set(tokens) == {0, 1, 2, 3}
    assert support([1.0, 3.0], temperature=temperature, top_k=1) == {1: 400}


@pytest.mark.parametrize(
    "setting",
    [
        *({"max_new_tokens": -1}, {"temperature": -0.1}, {"temperature": math.inf}),
        *({"temperature": math.nan}, {"top_k": 0}, {"top_k": -3}),
        *({"top_p": 0.0}, {"top_p": 1.1}, {"top_p": -1.0}, {"top_p": math.nan}),
    ],
)
def test_settings_out_of_range_are_refused_by_name(model, setting):
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        list(generate_text(model, BYTES, "Go", **({"max_new_tokens": 1, "seed": 0} | setting)))


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 0.0}])
def test_picking_stays_on_the_device(options):
    """Tensors on the meta device have no values: a copy to the CPU raises."""
    device = torch.device("meta")
    logits = torch.zeros(2, 9, device=device)
    chance = torch.zeros(2, device=device, dtype=torch.float64)
    assert choose_tokens(logits, uniform=chance, **options).device == device


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 0.0}])
def test_picking_never_waits_for_the_gpu_and_picks_as_the_cpu_does(options):
    logits = torch.randn(64, 500, generator=torch.Generator().manual_seed(0))
    here, there = (next(uniform_numbers(range(64), torch.device(name))) for name in ("cpu", "cuda"))
    on_gpu = logits.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        tokens = choose_tokens(on_gpu, uniform=there, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert tokens.tolist() == choose_tokens(logits, uniform=here, **options).tolist()


def test_every_step_copies_the_new_tokens_alone_from_the_device(model, monkeypatch):
    copied = []
    for name in ("tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__"):
        kept = getattr(torch.Tensor, name)

        def copy(tensor, *given, name=name, kept=kept):
            copied.append((name, tuple(tensor.shape)))
            return kept(tensor, *given)

        monkeypatch.setattr(torch.Tensor, name, copy)
    made = generate_tokens(model, [[5], [6], [7, 8]], max_new_tokens=30, seeds=[1, 2, 3], top_p=0.9)
    assert len(list(made)) == 30
    assert copied == 30 * [("tolist", (2,)), ("tolist", (1,))]


@pytest.mark.parametrize(("name", "dtype"), [("cpu", "float64"), ("mps", "float32")])
def test_a_seed_draws_the_same_numbers_for_every_device(name, dtype):
    assert most_precise_dtype(torch.device(name)) == getattr(torch, dtype)
    numbers = uniform_numbers([3, 4], torch.device("cpu"))
    for _ in range(300):  # past those drawn at once
        last = next(numbers)
    expected = [
        torch.rand(512, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))[299]
        for seed in (3, 4)
    ]
    assert torch.equal(last, torch.stack(expected))


# --- what the model reads ---


@pytest.mark.parametrize("prompt", [1, 5, 8, 9, 30])
@pytest.mark.parametrize("block", [8, 7, 2, 1])
def test_a_full_context_goes_on_from_its_newer_half(block, prompt):
    script = [100 + step for step in range(25)]
    model, first = Scripted(script, block_size=block), list(range(prompt))
    assert tokens_of(model, first, count=25, temperature=0.0, cached=False) == script
    lengths = [prompt if prompt <= block else max(1, block // 2)]
    while len(lengths) < 25:
        lengths.append(lengths[-1] + 1 if lengths[-1] < block else max(1, block // 2))
    for step, (read, length) in enumerate(zip(model.read, lengths, strict=True)):
        assert read == (first + script[:step])[-length:]


def test_a_prompt_is_read_and_an_empty_one_begins_a_document():
    for prompt, tokens in (("Hé", [0x48, 0xC3, 0xA9]), ("", [BYTES.end_of_text])):
        model = Scripted([65])
        list(generate_text(model, BYTES, prompt, max_new_tokens=1, seed=0))
        assert model.read == [tokens]


def test_a_character_that_the_vocabulary_lacks_is_refused():
    tokenizer = CharTokenizer("abc")
    model = Scripted([0], vocab_size=tokenizer.vocab_size)
    with pytest.raises(ValueError, match="'z'"):
        list(generate_text(model, tokenizer, "abz", max_new_tokens=1, seed=0))
    assert model.read == []


# --- what a person sees ---


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("🦜é中"), max_size=12))
def test_pieces_join_to_the_text_and_none_is_half_a_character(text):
    pieces, _ = said(text.encode())
    assert "".join(pieces) == text  # half a character would come as U+FFFD
    assert len(pieces) >= len(text)  # one by one, as they are made


def test_half_a_character_at_the_end_and_bytes_that_are_no_utf_8_are_replaced():
    assert "".join(said("a🦜".encode()[:-1])[0]) == "a\ufffd"
    assert "".join(said(b"a\xffb\xf0\x9fc")[0]) == "a\ufffdb\ufffdc"


def test_the_end_of_text_ends_it():
    pieces, model = said([*b"so", BYTES.end_of_text, *b"never"])
    assert "".join(pieces) == "so"
    assert len(model.read) == 3


def test_no_more_tokens_than_asked_for():
    for count in range(4):
        pieces, model = said(b"abcd", max_new_tokens=count)
        assert "".join(pieces) == "abcd"[:count]
        assert len(model.read) == count


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS])
@settings(max_examples=60, deadline=None)
@given(
    st.text("the cas🦜\n", max_size=20),
    st.lists(st.text("the cas🦜\n", min_size=2, max_size=2), max_size=3),
)
def test_nothing_of_a_stop_text_or_after_it_leaks(tokenizer, text, stop):
    pieces, _ = said(tokenizer.encode(text), tokenizer=tokenizer, stop=stop)
    ends = [text.find(end) for end in stop if end in text]
    assert "".join(pieces) == text[: min(ends, default=len(text))]


@pytest.mark.parametrize(
    ("text", "stop", "seen"),
    [
        ("the cat sat", ["at s"], "the c"),  # from the middle of a token into another
        ("the cat sat", ["cat sat on"], "the cat sat"),  # begun and never finished
        ("aaab", ["aab"], "a"),  # a false beginning
        ("the mat, the hat", ["hat", ", "], "the mat"),  # the first to come, of any length
        ("on the mat", ["e", "h"], "on t"),  # both in one token
    ],
)
@pytest.mark.parametrize("tokenizer", [BYTES, WORDS])
def test_stop_texts_are_cut_before(tokenizer, text, stop, seen):
    script = tokenizer.encode(text)
    pieces, model = said(script, tokenizer=tokenizer, stop=stop)
    assert "".join(pieces) == seen
    assert len(model.read) <= len(script)


def test_a_stop_text_ends_the_work_too():
    _, model = said(b"one\n\ntwo", stop=["\n\n"])
    assert len(model.read) == len("one\n\n")


def test_an_empty_stop_text_is_refused(model):
    with pytest.raises(ValueError, match="stop=''"):
        list(generate_text(model, BYTES, "Go", max_new_tokens=1, seed=0, stop=["a", ""]))
