"""scripts/sample.py: several texts at once, precisions, and compiled steps."""

from pathlib import Path

import pytest
import torch
from checkpoint_files import configuration, content
from choices import EACH
from running import Script
from small_gpt import gpt, some_tokens, variant
from torch import Tensor

import headscope
from headscope.generation import Read, compile_reading, generate_text, generate_texts
from headscope.generation.compiled import (
    PARTS,
    ExplicitProducts,
    OneToken,
    compile_at_call,
    export,
    inputs,
)
from headscope.nn import GPT, Alibi, Cache, Position, Rotary
from headscope.nn.cache import make_cache
from headscope.nn.precision import LARGE, Int8Linear, RowLinear, faster_precision, in_precision
from headscope.seeds import mixed_seed

PROMPT = "My fellow"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    saved, _ = content(configuration())
    for name, weight in saved["state_dict"].items():  # makes some tokens much more likely
        saved["state_dict"][name] = 6 * weight
    torch.save(saved, tmp_path / "some.ckpt")
    return f"checkpoint={tmp_path / 'some.ckpt'}"


def test_several_samples_equal_single_samples(script: Script, checkpoint: str) -> None:
    words = ["sample", checkpoint, f"prompt={PROMPT}", "max_new_tokens=12", "top_p=null"]
    several = script(*words, "num_samples=3", "seed=5")
    assert several.code == 0, several.err
    loaded = headscope.load(checkpoint.partition("=")[2])
    alone = [
        PROMPT
        + "".join(
            generate_text(
                loaded.model,
                loaded.tokenizer,
                PROMPT,
                max_new_tokens=12,
                temperature=0.8,
                seed=mixed_seed(5, number),
            )
        )
        + "\n"
        for number in range(3)
    ]
    assert several.out == "".join(alone)
    assert len(set(alone)) == 3
    assert script(*words, "seed=5").out == alone[0]
    places = [several.err.index(f"sample {number} of 3") for number in (1, 2, 3)]
    assert places == sorted(places)


def test_samples_of_consecutive_seeds_are_different(script: Script, checkpoint: str) -> None:
    words = ["sample", checkpoint, "prompt=", "max_new_tokens=40", "num_samples=3"]
    first, second = (script(*words, f"seed={seed}") for seed in (5, 6))
    assert first.code == second.code == 0, first.err
    assert not set(first.out.splitlines()) & set(second.out.splitlines()) - {""}


def test_texts_of_different_lengths_equal_single_texts(tmp_path: Path, checkpoint: str) -> None:
    loaded = headscope.load(checkpoint.partition("=")[2])
    options = {"max_new_tokens": 40, "stop": ["e", "the"]}
    seeds = list(range(8))
    made = list(generate_texts(loaded.model, loaded.tokenizer, PROMPT, seeds=seeds, **options))
    texts = ["".join(pieces) for pieces in zip(*made, strict=True)]
    for seed, text in zip(seeds, texts, strict=True):
        pieces = generate_text(loaded.model, loaded.tokenizer, PROMPT, seed=seed, **options)
        assert text == "".join(pieces)
    assert len({len(text) for text in texts}) > 1


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_fewer_bits_change_the_loss_a_little(
    script: Script, checkpoint: str, precision: str
) -> None:
    loaded = headscope.load(checkpoint.partition("=")[2])
    tokens = torch.arange(8)[None]
    exact = loaded.model(tokens).log_softmax(-1)
    fewer = in_precision(loaded.model, precision)(tokens).float().log_softmax(-1)
    apart = (exact - fewer).abs().max()
    assert 0 < apart < 0.1 * exact.abs().max()
    said = script("sample", checkpoint, "max_new_tokens=5", f"precision={precision}")
    assert said.code == 0, said.err


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_the_callers_model_keeps_its_precision(precision: str) -> None:
    model = gpt()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    logits = model(TEXTS)
    made = in_precision(model, precision)
    assert (made is model) == (precision == "fp32")
    after = model.state_dict()
    assert list(after) == list(before)
    for name, weight in before.items():
        assert after[name].dtype == weight.dtype
        assert torch.equal(after[name], weight)
    assert torch.equal(model(TEXTS), logits)


def test_a_precision_that_is_none_is_refused(script: Script, checkpoint: str) -> None:
    for name, known in {
        "sample": "auto, fp32, bf16, int8",
        "evaluate": "auto, fp32, bf16-mixed, bf16, int8",
    }.items():
        said = script(name, checkpoint, "precision=fp4")
        assert said.code == 1
        assert said.err == f"Error: precision=fp4 must be one of {known}\n"


def test_a_row_in_bf16_is_multiplied_as_many_rows_are() -> None:
    model = in_precision(gpt(), "bf16")
    for part in model.modules():
        if isinstance(part, torch.nn.Linear):
            assert type(part) is RowLinear
            x = torch.randn(1, 1, part.in_features).bfloat16()
            rows = torch.nn.functional.linear(x.expand(1, 3, -1), part.weight, part.bias)
            torch.testing.assert_close(part(x), rows[:, :1])


def test_auto_is_bf16_for_large_models_where_the_device_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = torch.nn.Embedding(4, LARGE // 4, device="meta")
    small = torch.nn.Embedding(4, LARGE // 4 - 1, device="meta")
    for here in (True, False):
        monkeypatch.setattr("headscope.nn.precision.supports_bf16", lambda device, here=here: here)
        assert faster_precision(large) == ("bf16" if here else "fp32")
        assert faster_precision(small) == "fp32"


def test_computed_positions_keep_their_digits_in_bf16() -> None:
    _, model = content(configuration("model/position=rotary"))
    made = in_precision(model, "bf16")
    assert made.embedding.weight.dtype == torch.bfloat16
    assert made.position.cos.dtype == torch.float32


TEXTS = some_tokens()


def cache_of_three(model: GPT, batch: int) -> Cache:
    """What a model has of the first three tokens."""
    cache = make_cache(model, batch)
    model.next_logits(TEXTS[:batch, :3], cache)
    return cache


def read_others(read: Read, cache: Cache) -> Tensor:
    """The logits after each of the others."""
    batch = len(cache.tokens)
    tokens = (TEXTS[:batch, number : number + 1].clone() for number in range(3, 10))
    return torch.stack([read(token, cache) for token in tokens])


CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@torch.no_grad()
@pytest.mark.parametrize(("batch", "position"), [(1, Rotary), (2, Alibi)])
def test_a_compiled_step_has_the_logits_of_the_plain_one(
    batch: int, position: type[Position]
) -> None:
    model = gpt(position=position, ngrams=3)
    plain = read_others(model.next_logits, cache_of_three(model, batch))
    read = compile_reading(model, batch=batch)
    other = 3 - batch  # is read as it is
    expected = read_others(model.next_logits, cache_of_three(model, other))
    torch.testing.assert_close(read_others(read, cache_of_three(model, other)), expected)
    cache = cache_of_three(model, batch)
    model.blocks = None  # all that is left to read with is what was compiled
    torch.testing.assert_close(read_others(read, cache), plain, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_compiled_step_in_fewer_bits_is_as_near_as_the_plain_one(precision: str) -> None:
    exact = gpt()
    model = in_precision(exact, precision)
    expected = read_others(exact.next_logits, cache_of_three(exact, 1))
    plain, compiled = (
        (read_others(read, cache_of_three(model, 1)).float() - expected).abs().max()
        for read in (model.next_logits, compile_reading(model))
    )
    assert 0 < compiled < 2 * plain


@torch.no_grad()
@pytest.mark.parametrize("pair", EACH, ids=str)
def test_a_step_that_would_be_compiled_has_the_logits_of_the_plain_one(
    pair: tuple[str, str],
) -> None:
    model = gpt(**variant(pair))
    first = max(2, model.ngrams)
    step = export(OneToken(model), make_cache(model, 1), first=first).module()
    cache = cache_of_three(model, 1)
    for number in range(3, 10):
        given = [part.clone() for part in inputs(TEXTS[:1, : number + 1], cache)]
        expected = model.next_logits(TEXTS[:1, number : number + 1], cache)
        if number >= first:
            torch.testing.assert_close(step(*given), expected, **CLOSE)


@torch.no_grad()
def test_an_int8_step_that_would_be_compiled_reads_several_texts() -> None:
    exact = gpt()
    model = in_precision(exact, "int8")
    step = export(OneToken(model), make_cache(model, 2), first=2).module()
    cache = cache_of_three(exact, 2)
    made = step(*(part.clone() for part in inputs(TEXTS[:2, :4], cache)))
    expected = exact.next_logits(TEXTS[:2, 3:4], cache)
    assert 0 < (made - expected).abs().max() < 0.05 * expected.abs().max()


def test_a_context_too_short_to_compile_for_is_read_as_it_is() -> None:
    model = gpt(block_size=3)
    assert compile_reading(model) == model.next_logits


def test_what_is_compiled_writes_the_same(script: Script, checkpoint: str) -> None:
    words = [checkpoint, "num_samples=2", "max_new_tokens=12", "temperature=0"]
    plain, compiled = (script("sample", *words, *more) for more in ([], ["compile=true"]))
    assert compiled.code == 0, compiled.err
    assert compiled.out == plain.out


@torch.no_grad()
def test_a_step_for_a_gpu_has_the_logits_of_the_plain_one() -> None:
    torch._dynamo.reset()
    model = gpt(position=Rotary, ngrams=3)
    step = compile_at_call(OneToken(model), make_cache(model, 2), first=3)
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
    assert torch._dynamo.utils.counters["frames"]["ok"] == frames > 0  # compiled once


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [3, 3 * PARTS, 3 * PARTS + 5])
def test_the_explicit_product_of_a_row_is_that_of_many_rows(
    dtype: torch.dtype, bias: bool, width: int
) -> None:
    torch.manual_seed(0)
    part = torch.nn.Linear(24, width, bias=bias).to(dtype)
    row = torch.randn(1, 1, 24, dtype=dtype)
    with ExplicitProducts():
        made = part(row)
    assert made.dtype == dtype
    # Outside a compiled step, every product is rounded to bf16 before the sum.
    apart = {"rtol": 0.016, "atol": 0.01} if dtype == torch.bfloat16 else CLOSE
    torch.testing.assert_close(made, part(row.expand(1, 3, 24))[:, :1], **apart)


@pytest.mark.parametrize("bias", [True, False])
def test_an_int8_weight_is_off_by_half_a_step_of_its_row_at_most(bias: bool) -> None:
    torch.manual_seed(0)
    exact = torch.nn.Linear(24, 7, bias=bias)
    with torch.no_grad():
        exact.weight[0] *= 100  # its scale is its own
        exact.weight[1] = 0
    made = Int8Linear(exact)
    apart = (made.weight * made.scale[:, None] - exact.weight).abs()
    assert (apart <= exact.weight.abs().amax(dim=1, keepdim=True) / 127 / 2 + 1e-6).all()
    x = torch.randn(20, 3, 24)
    error = (made(x) - exact(x)).norm(dim=(0, 1))
    assert (error <= 0.05 * exact(x).norm(dim=(0, 1))).all()


def test_where_nothing_can_be_compiled_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given, **options):
        raise RuntimeError("no C compiler\nand more")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    _, model = content(configuration())
    with pytest.raises(ValueError, match=r"compile=true: .* \(no C compiler\)"):
        compile_reading(model)
