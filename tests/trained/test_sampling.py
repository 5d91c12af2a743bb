"""Tests of scripts/sample.py: several texts in one batch, precisions, and compiled steps."""

import copy
from functools import partial

import pytest
import torch
from checkpoint_files import configuration, content, save
from choices import EACH, every_part
from small_gpt import gpt, some_tokens, variant
from torch import Tensor

import headscope
from headscope.nn import GPT, Alibi, Cache, Rotary
from headscope.seeds import mixed_seed
from headscope.trained.generation import compiled
from headscope.trained.generation.compiled import OneToken, compile_decoding, export, inputs
from headscope.trained.generation.generate import DecodeStep, generate_text
from headscope.trained.generation.precision import (
    LARGE,
    Int8Linear,
    faster_precision,
    in_precision,
)

PROMPT = "My fellow"


@pytest.fixture
def checkpoint(tmp_path) -> str:
    saved, _ = content(configuration())
    for name, weight in saved["tensors"].items():  # makes some tokens much more likely
        saved["tensors"][name] = 6 * weight
    save(saved, tmp_path / "some.safetensors")
    return f"checkpoint={tmp_path / 'some.safetensors'}"


def test_samples_of_one_batch_equal_samples_generated_one_by_one(script, checkpoint):
    """Also if they end at different lengths."""
    words = ["sample", checkpoint, f"prompt={PROMPT}", "max_new_tokens=40", "top_p=null"]
    words += ['stop=["e","the"]']
    several = script(*words, "num_samples=8", "seed=5")
    assert several.code == 0, several.err
    loaded = headscope.load(checkpoint.partition("=")[2])
    generate = partial(generate_text, loaded.model, loaded.tokenizer, PROMPT)
    options = {"max_new_tokens": 40, "temperature": 0.8, "stop": ["e", "the"]}
    seeds = [mixed_seed(5, number) for number in range(8)]
    alone = [f"{PROMPT}{''.join(generate(seed=seed, **options))}\n" for seed in seeds]
    assert several.out == "".join(alone)
    assert len({len(text) for text in alone}) > 2
    assert script(*words, "seed=5").out == alone[0]
    places = [several.err.index(f"sample {number} of 8") for number in range(1, 9)]
    assert places == sorted(places)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_precision_changes_probabilities_slightly_and_not_the_given_model(
    script, checkpoint, precision
):
    model, tokens = headscope.load(checkpoint.partition("=")[2]).model, torch.arange(8)[None]
    before, exact = copy.deepcopy(model.state_dict()), model(tokens).log_softmax(-1)
    made = in_precision(model, precision)
    apart = (exact - made(tokens).float().log_softmax(-1)).abs().max()
    assert apart < 0.1 * exact.abs().max()
    assert (made is model) == (apart == 0) == (precision == "fp32")
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)  # dtypes too
    assert torch.equal(model(tokens).log_softmax(-1), exact)
    said = script("sample", checkpoint, "max_new_tokens=5", f"precision={precision}")
    assert said.code == 0, said.err


@pytest.mark.parametrize("name", ["sample", "evaluate"])
def test_an_unknown_precision_is_rejected(script, name):
    assert "precision=fp4 must be one of auto, fp32, bf16" in script(name, "precision=fp4").err


def test_auto_precision_is_bf16_for_large_models_if_the_device_supports_bf16(monkeypatch):
    large = torch.nn.Embedding(4, LARGE // 4, device="meta")
    small = torch.nn.Embedding(4, LARGE // 4 - 1, device="meta")
    for here in (True, False):
        monkeypatch.setattr("headscope.nn.precision.supports_bf16", lambda device, here=here: here)
        assert faster_precision(large) == ("bf16" if here else "fp32")
        assert faster_precision(small) == "fp32"


TEXTS = some_tokens()


def cache_of_three(model: GPT, batch: int) -> Cache:
    """A key-value cache that contains the first three tokens of `TEXTS`."""
    cache = Cache(model, batch)
    model.next_logits(TEXTS[:batch, :3], cache)
    return cache


def read_others(read: DecodeStep, cache: Cache) -> Tensor:
    """The logits of `read` after each of the tokens 3 to 9, which are read one by one."""
    batch = len(cache.tokens)
    tokens = (TEXTS[:batch, number : number + 1].clone() for number in range(3, 10))
    return torch.stack([read(token, cache) for token in tokens])


CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(("batch", "position"), [(1, Rotary), (2, Alibi)])
def test_the_compiled_step_gives_the_logits_of_next_logits(batch, position):
    model = gpt(position=position, ngrams=3, layers=1)
    plain = read_others(model.next_logits, cache_of_three(model, batch))
    read = compile_decoding(model, batch=batch)
    other = 3 - batch  # for this number of texts, `read` is not compiled
    expected = read_others(model.next_logits, cache_of_three(model, other))
    torch.testing.assert_close(read_others(read, cache_of_three(model, other)), expected)
    cache = cache_of_three(model, batch)
    model.blocks = None  # from here on, only the compiled step works
    torch.testing.assert_close(read_others(read, cache), plain, **CLOSE)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(("precision", "batch"), [("bf16", 1), ("int8", 2)])
def test_the_compiled_step_in_lower_precision_is_about_as_exact_as_next_logits(precision, batch):
    exact = gpt(layers=1)
    model = in_precision(exact, precision)
    expected = read_others(exact.next_logits, cache_of_three(exact, batch))
    plain, lower = (
        (read_others(read, cache_of_three(model, batch)).float() - expected).abs().max()
        for read in (model.next_logits, compile_decoding(model, batch=batch))
    )
    assert 0 < lower < 2 * plain


@torch.no_grad()
@every_part
def test_the_exported_step_of_every_model_choice_gives_the_logits_of_next_logits(pair):
    number = EACH.index(pair)
    documents = {"document_mask": number % 2 == 1, "end_of_text": int(TEXTS[0, 5])}
    model = gpt(**variant(pair), **documents, layers=1 + number // 2 % 2)
    first = max(2, model.ngrams)
    step = export(OneToken(model), Cache(model, 1), first=first).module()
    cache = cache_of_three(model, 1)
    for number in range(3, 10):
        given = [part.clone() for part in inputs(TEXTS[:1, : number + 1], cache)]
        expected = model.next_logits(TEXTS[:1, number : number + 1], cache)
        if number >= first:
            torch.testing.assert_close(step(*given), expected, **CLOSE)


@pytest.mark.slow
def test_compile_does_not_change_the_output_of_the_script(script, checkpoint):
    words = ["sample", checkpoint, "num_samples=2", "max_new_tokens=12", "temperature=0"]
    fast = script(*words, "compile=true")
    assert fast.code == 0, fast.err
    assert fast.out == script(*words).out


@pytest.mark.slow
@torch.no_grad()
def test_the_step_compiled_for_gpus_gives_the_logits_of_next_logits():
    torch._dynamo.reset()
    model = gpt(position=Rotary, ngrams=3, layers=1)
    step = compiled.compile_at_call(OneToken(model), Cache(model, 2), first=3)
    frames = torch._dynamo.utils.counters["frames"]["ok"]

    def read(token: Tensor, cache: Cache) -> Tensor:
        logits = step(inputs(cache.append(token), cache))
        cache.length += 1
        return logits

    torch.testing.assert_close(
        read_others(read, cache_of_three(model, 2)),
        read_others(model.next_logits, cache_of_three(model, 2)),
        **CLOSE,
    )
    assert torch._dynamo.utils.counters["frames"]["ok"] == frames > 0  # nothing is compiled again


@pytest.mark.parametrize("bias", [True, False])
def test_the_product_of_one_row_equals_the_product_of_many_rows(bias):
    """In a model in bf16, and in a compiled step."""
    row = torch.randn(1, 1, 24, generator=torch.Generator().manual_seed(0))
    # Outside a compiled step, every product is rounded to bf16 before the sum.
    for dtype, close in ((torch.float32, CLOSE), (torch.bfloat16, {"rtol": 0.016, "atol": 0.01})):
        for width in (3, 3 * compiled.BLOCKS, 3 * compiled.BLOCKS + 5):
            part = torch.nn.Linear(24, width, bias=bias).to(dtype)
            rows = part(row.to(dtype).expand(1, 3, 24))[:, :1]
            with compiled.ExplicitProducts():
                made = part(row.to(dtype))
            torch.testing.assert_close(made, rows, **close)
            torch.testing.assert_close(part(row.to(dtype)), rows)


@pytest.mark.parametrize("bias", [True, False])
def test_the_rounding_error_of_int8_is_at_most_half_a_step_of_the_row(bias):
    torch.manual_seed(0)
    exact = torch.nn.Linear(24, 7, bias=bias)
    with torch.no_grad():
        exact.weight[0] *= 100  # each row has its own scale
        exact.weight[1] = 0
    made = Int8Linear(exact)
    apart = (made.weight * made.scale[:, None] - exact.weight).abs()
    assert (apart <= exact.weight.abs().amax(dim=1, keepdim=True) / 127 / 2 + 1e-6).all()
    x = torch.randn(20, 3, 24)
    error = (made(x) - exact(x)).norm(dim=(0, 1))
    assert (error <= 0.05 * exact(x).norm(dim=(0, 1))).all()


def test_a_failed_compilation_raises_an_error_with_the_reason(monkeypatch):
    def fail(*given, **options):
        raise RuntimeError("no kernel\nand more")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    with pytest.raises(ValueError, match=r"compile=true: .* \(no kernel\)"):
        compile_decoding(gpt(layers=1))
    short = gpt(block_size=3, layers=1)  # nothing is compiled for a very short context
    assert compile_decoding(short) == short.next_logits
