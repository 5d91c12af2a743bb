"""The laws of what saves memory: the same numbers, with less of them held at once."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from choices import EACH
from small_gpt import gpt, some_tokens, variant
from torch import Tensor, nn

from headscope.errors import ran_out_of_memory
from headscope.nn import GPT, relu_squared
from headscope.training.compiling import compile_in_place
from headscope.training.objective import LOGIT_BYTES, Objective, logit_bytes

every_part = pytest.mark.parametrize("pair", EACH, ids="-".join)
BATCH = (some_tokens()[:, :-1], some_tokens()[:, 1:])


def step(model: GPT, *, chunk_tokens: int | None = None, anew: bool = False) -> list[Tensor]:
    """The loss of `BATCH`, then the gradient of every parameter."""
    torch.manual_seed(2)
    model.train().checkpoint_activations = anew
    loss = Objective(model, chunk_tokens=chunk_tokens).loss(*BATCH)
    parameters = list(model.parameters())
    return [loss.detach(), *torch.autograd.grad(loss, parameters, materialize_grads=True)]


def the_same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- activations computed anew ---


@every_part
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_activations_computed_anew_are_the_same_bit_for_bit(pair, dropout):
    model = gpt(**variant(pair), dropout=dropout)
    kept = step(model)
    assert the_same_bits(kept, step(model, anew=True))
    if dropout:
        torch.manual_seed(3)
        assert kept[0] != Objective(model, chunk_tokens=None).loss(*BATCH)


def test_in_bf16_too():
    model = gpt(dropout=0.3)
    with torch.autocast("cpu", torch.bfloat16):
        kept = step(model)
        assert the_same_bits(kept, step(model, anew=True))
    model.bfloat16()
    assert the_same_bits(step(model), step(model, anew=True))


def calls(model: GPT, *, grad: bool) -> int:
    """How often the first block runs, forward and back."""
    seen = []
    hook = model.blocks[0].attention.register_forward_hook(lambda *given: seen.append(1))
    with torch.set_grad_enabled(grad):
        loss = Objective(model, chunk_tokens=None).loss(*BATCH)
    if grad:
        loss.backward()
    hook.remove()
    return len(seen)


def test_they_are_computed_anew_in_training_alone():
    model = gpt()
    assert calls(model.train(), grad=True) == 1
    model.checkpoint_activations = True
    assert calls(model.train(), grad=True) == 2
    assert calls(model.train(), grad=False) == 1
    assert calls(model.eval(), grad=True) == 1


def test_a_block_keeps_what_it_reads_alone():
    """What autograd holds on to between the way forward and the way back."""

    def held(anew: bool) -> int:
        model = gpt(layers=6).train()
        model.checkpoint_activations = anew
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = Objective(model, chunk_tokens=None).loss(*BATCH)
        loss.backward()
        return sum(kept.values())

    assert held(anew=True) < 0.5 * held(anew=False)


# --- the loss in chunks ---


@every_part
@pytest.mark.parametrize("rows", [1, 5, 17])
def test_a_loss_in_chunks_is_the_plain_one_and_so_are_its_gradients(pair, rows):
    """`variant` has tied heads and others."""
    model = gpt(**variant(pair))
    torch.testing.assert_close(step(model, chunk_tokens=rows), step(model), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("logit_cap", [None, 3.0])
@pytest.mark.parametrize("anew", [True, False])
def test_so_with_capped_logits_and_with_activations_computed_anew(tied_head, logit_cap, anew):
    model = gpt(tied_head=tied_head, logit_cap=logit_cap, dropout=0.2)
    chunked = step(model, chunk_tokens=4, anew=anew)
    torch.testing.assert_close(chunked, step(model), rtol=1e-5, atol=1e-6)


def logits_made(objective: Objective) -> tuple[int, int]:
    """Rows of logits that are made at once, at most, and of all on the way there and back."""
    seen = []
    hook = objective.model.head.register_forward_hook(
        lambda module, given, out: seen.append(out.numel() // out.size(-1))
    )
    objective.loss(*BATCH).backward()
    hook.remove()
    return max(seen), sum(seen)


@pytest.mark.parametrize(("chunk_tokens", "rows"), [(4, 4), (17, 9)])
def test_logits_are_made_in_chunks_that_are_not_kept(chunk_tokens, rows):
    assert logits_made(Objective(gpt(), chunk_tokens=chunk_tokens)) == (rows, 2 * 18)


@pytest.mark.parametrize("chunk_tokens", [18, 0, None, "auto"])
def test_logits_that_may_all_be_there_are_made_once(chunk_tokens):
    assert logits_made(Objective(gpt(), chunk_tokens=chunk_tokens)) == (18, 18)


def test_auto_makes_chunks_of_64_mib_of_logits_and_leaves_small_ones_whole():
    objective = Objective(gpt(), chunk_tokens="auto")
    assert objective.chunk_rows(torch.zeros(12, 64)) is None
    objective.model.head = nn.Linear(8, 50257)
    rows = objective.chunk_rows(torch.zeros(1, 1024))
    assert 0.99 * 64 * 2**20 < rows * 50257 * 4 <= 64 * 2**20


@pytest.mark.parametrize(("gib", "mib"), [(1, 64), (24, 384), (80, 1280)])
def test_a_chunk_on_a_gpu_follows_its_memory(monkeypatch, gib, mib):
    device = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda which: device)
    assert logit_bytes(torch.device("cuda")) == mib * 2**20
    assert logit_bytes(torch.device("cpu")) == LOGIT_BYTES == 64 * 2**20


@pytest.mark.gpu
def test_a_chunk_on_this_gpu_follows_its_memory():
    total = torch.cuda.get_device_properties(0).total_memory
    model = gpt().cuda()
    rows = Objective(model, chunk_tokens="auto").chunk_rows(torch.zeros(2**14, 2**14).cuda())
    assert rows == max(LOGIT_BYTES, total // 64) // (4 * model.head.out_features)


@pytest.mark.parametrize("chunk_tokens", [None, 5])
def test_validation_counts_all_nats(chunk_tokens):
    objective = Objective(gpt(), chunk_tokens=chunk_tokens)
    torch.testing.assert_close(
        objective.loss_sum(*BATCH) / BATCH[1].numel(), objective.loss(*BATCH), rtol=1e-6, atol=0
    )


# --- compiled ---


@pytest.mark.parametrize(("chunk_tokens", "anew"), [(None, True), (9, False)])
def test_what_is_called_is_compiled_and_gives_the_same(chunk_tokens, anew):
    model = gpt(layers=1, activation=relu_squared).train()
    model.checkpoint_activations = anew
    objective = Objective(model, chunk_tokens=chunk_tokens)
    plain = step(model, chunk_tokens=chunk_tokens, anew=anew)
    names = list(model.state_dict())
    torch._dynamo.reset()
    assert compile_in_place(objective, BATCH, nullcontext()) is None
    frames = torch._dynamo.utils.counters["frames"]["ok"]
    assert frames >= (1 if chunk_tokens is None else 2)
    loss = objective.loss(*BATCH)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert torch._dynamo.utils.counters["frames"]["ok"] == frames  # compiled once and for all
    torch.testing.assert_close([loss.detach(), *gradients], plain, rtol=1e-4, atol=1e-5)
    assert list(model.state_dict()) == names


def failing_backend(error: Exception):
    """`torch.compile` with a backend that raises `error`."""

    def backend(graph, inputs):
        raise error

    return partial(torch.compile, backend=backend)


def test_where_it_cannot_be_compiled_all_is_left_as_it_was(monkeypatch):
    objective = Objective(gpt().train(), chunk_tokens=9)
    plain = objective.loss(*BATCH)
    with monkeypatch.context() as broken:
        broken.setattr("torch.compile", failing_backend(ValueError("no compiler here")))
        problem = compile_in_place(objective, BATCH, nullcontext())
    assert "no compiler here" in problem
    assert "\n" not in problem
    assert torch.equal(objective.loss(*BATCH), plain)
    assert objective.model._compiled_call_impl is None


def test_a_missing_compiler_is_an_error_of_the_backend(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    objective = Objective(gpt().train(), chunk_tokens=None)
    with torch._inductor.utils.fresh_cache():
        assert compile_in_place(objective, BATCH, nullcontext()) is not None


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_out_of_memory_while_compiling_is_not_called_not_compiled(monkeypatch):
    torch._dynamo.reset()
    objective = Objective(gpt().train(), chunk_tokens=None)
    monkeypatch.setattr("torch.compile", failing_backend(OUT_OF_MEMORY))
    with pytest.raises(RuntimeError, match="out of memory") as raised:
        compile_in_place(objective, BATCH, nullcontext())
    assert ran_out_of_memory(raised.value)


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, RuntimeError("a mistake of ours")])
def test_other_errors_of_the_first_step_are_raised(monkeypatch, error):
    def fail(*given):
        raise error

    objective = Objective(gpt().train(), chunk_tokens=None)
    monkeypatch.setattr(objective, "loss", fail)
    with pytest.raises(type(error)) as raised:
        compile_in_place(objective, BATCH, nullcontext())
    assert raised.value is error
