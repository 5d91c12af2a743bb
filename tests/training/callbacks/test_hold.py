"""Heads and feed-forward networks that are held in training: what is held stays, and nothing else
is touched, also over a stop and in what is loaded."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_layers import attention, every_attention, some_input
from checkpoint_files import assert_same_weights, opened
from lightning.pytorch import Callback
from refusals import refused
from running import snapshot_headers
from small_gpt import PAIRS, gpt, loss_of, some_tokens, variant
from torch import Tensor

import headscope
from headscope.analysis.ablation import ablated_heads
from headscope.analysis.head_outputs import head_outputs
from headscope.analysis.head_statistics import measure_heads
from headscope.nn.capture import capture
from headscope.nn.held import held_heads, held_outputs
from headscope.nn.precision import in_precision

TINY = [
    *("tokenizer=byte", "model.block_size=16", "model.embed_dim=16", "model.layers=2"),
    *("model.heads=2", "trainer.batch_size=8", "trainer.max_steps=12", "trainer.val_every_steps=4"),
    *("trainer.compile=false", "callbacks=plain", "optimizer.weight_decay=0.3"),
]
HOLD = ["callbacks.hold.from_step=3", "callbacks.hold.until_step=9"]
PARTS = ["callbacks.hold.heads=[L1H1]", "callbacks.hold.feed_forward=[0]"]
WAYS = ["zero", "mean", "frozen"]


@pytest.fixture
def trained(speeches, tmp_path_factory) -> Any:
    """Trains a small run in this process. Returns its folder."""
    store = tmp_path_factory.mktemp("tokens")

    def run(name: str, *words: str, callbacks: Any = (), log: bool = False) -> Path:
        own = [f"data.path={speeches}", f"store_dir={store}", f"hydra.run.dir={name}"]
        return headscope.train([*TINY, *own, *words], callbacks=callbacks, logger=log).folder

    return run


class Watch(Callback):
    """Keeps the weights and the held outputs after each step, and stops at one."""

    def __init__(self, stop_at: int = -1) -> None:
        self.stop_at = stop_at
        self.weights: dict[int, dict[str, Tensor]] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        state = pl_module.model.state_dict()
        self.weights[trainer.global_step] = {name: own.clone() for name, own in state.items()}
        if trainer.global_step == self.stop_at:
            os.kill(os.getpid(), signal.SIGINT)


# --- the model ---


@every_attention
def test_own_weights_are_those_that_no_other_head_uses(name):
    layer = attention(name)
    x, shared = some_input(), ("q_norm", "k_norm")
    before = layer.compute_heads(x).outputs.unflatten(-1, (layer.heads, -1))
    touched = {key: torch.zeros_like(each) for key, each in layer.named_parameters()}
    for heads in [[0], [layer.heads - 1], [*range(layer.heads)]]:
        views = layer.own_weights(heads)
        kept = {key: each.clone() for key, each in layer.named_parameters()}
        with torch.no_grad():
            for view in views:
                view.add_(1)
        after = layer.compute_heads(x).outputs.unflatten(-1, (layer.heads, -1))
        others = [head for head in range(layer.heads) if head not in heads]
        assert torch.equal(after[:, :, others], before[:, :, others])
        assert not torch.equal(after[:, :, heads], before[:, :, heads])
        with torch.no_grad():
            for key, each in layer.named_parameters():
                touched[key] += each != kept[key]
                each.copy_(kept[key])
    for key, times in touched.items():  # all heads together own everything but what they share
        assert times.all() or any(each in key for each in shared), key


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_held_head_acts_as_if_it_were_switched_off_and_learns_nothing(pair):
    model, tokens = gpt(**variant(pair)), some_tokens()
    head = model.attentions[1].heads - 1
    width = model.attentions[1].head_dim
    own = slice(head * width, (head + 1) * width)
    plain = model(tokens)
    held = held_outputs(model, 1, "attention.out_proj")
    assert torch.equal(model(tokens), plain)  # until the mask is set
    held.mask[own] = 1
    with ablated_heads(model, [(1, head)]):
        wanted = model(tokens)
    assert torch.equal(model(tokens), wanted)
    loss_of(model, tokens).backward()
    for view in model.attentions[1].own_weights([head]):
        owner: Any = view if view._base is None else view._base
        grad = owner.grad.as_strided(view.shape, view.stride(), view.storage_offset())
        assert not grad.any()
    held.values[own] = 0.5
    assert (head_outputs(model, tokens)[1][:, :, head] == 0.5).all()
    names = [kind.name for kind in measure_heads(model, tokens).types]
    assert held_heads(model).index(True) == len(names) - 1
    for precision in ("bf16", "int8"):  # in which `sample` and `evaluate` compute
        assert held_heads(in_precision(model, precision)) == held_heads(model)
    assert names[-1] == "-"


# --- training ---


def test_a_hold_of_nothing_equals_no_hold(trained):
    without = trained("without", "callbacks.hold=null")
    assert_same_weights(trained("nothing", *HOLD), without)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("by", WAYS)
def test_what_is_held_stays_in_the_interval_and_changes_outside(by, optimizer, trained):
    watch = Watch()
    words = [*PARTS, *HOLD, f"callbacks.hold.by={by}", f"optimizer={optimizer}"]
    loaded = headscope.load(trained("run", *words, "optimizer.lr=0.01", callbacks=watch))
    model, validation = loaded.model, loaded.validation_windows()
    assert loaded.step > 9
    assert not any("held" in name for name in model.state_dict())
    if by != "frozen":
        held_outputs(model, 1, "attention.out_proj")
        held_outputs(model, 0, "feed_forward")
    outputs, own = {}, {}
    for step, weights in watch.weights.items():
        model.load_state_dict(weights)
        captured = capture(model, validation)
        outputs[step] = [captured.outputs[1][:, :, 1], captured.fed[0]]
        views = [*model.attentions[1].own_weights([1]), *model.blocks[0].feed_forward.parameters()]
        own[step] = torch.cat([view.detach().flatten() for view in views])
    if by == "frozen":
        assert all(torch.equal(own[step], own[3]) for step in range(3, 10))
        assert not torch.equal(own[2], own[3])
        assert not torch.equal(own[9], own[10])
        return
    for number, of_3 in enumerate(outputs[3]):
        wanted = of_3.mean(dim=(0, 1)) if by == "mean" else torch.zeros(of_3.size(-1))
        for step in range(4, 10):
            assert torch.allclose(outputs[step][number], wanted.expand_as(of_3), atol=1e-6), step
        assert outputs[10][number].std(dim=(0, 1)).min() > 0


@pytest.mark.parametrize("stop_at", [2, 6, 10])
@pytest.mark.parametrize("by", WAYS)
def test_a_stopped_run_with_a_hold_continues_bit_by_bit(by, stop_at, trained):
    words = [*PARTS, *HOLD, f"callbacks.hold.by={by}", "model.dropout=0.1"]
    whole = trained("whole", *words)
    with pytest.raises(KeyboardInterrupt):
        trained("run", *words, callbacks=Watch(stop_at))
    assert opened(Path("run/checkpoints/last.safetensors"))["step"] == stop_at
    assert_same_weights(headscope.train(["resume=run"], logger=False).folder, whole)


@pytest.mark.parametrize("by", WAYS)
def test_a_head_is_marked_while_it_is_held_and_has_no_name_if_its_output_is(by, trained):
    words = [*PARTS, *HOLD, f"callbacks.hold.by={by}", "callbacks.attention.steps=12"]
    words += ["callbacks.heads.thresholds.even=0.001"]  # so that all other heads have names
    run = trained(
        "run", *words, "callbacks=default", "callbacks.samples.max_new_tokens=0", log=True
    )
    for header in snapshot_headers(run):
        held = header["step"] in range(4, 10)
        assert header["held"] == [0, 0, 0, int(held)]
        assert (header["names"][3] == "-") == (held and by != "frozen"), header["step"]


def test_what_is_held_is_in_the_checkpoint_but_not_in_a_new_run_or_another_tool(trained, tmp_path):
    folder = trained("run", *PARTS, "callbacks.hold.by=mean")
    loaded = headscope.load(folder / "checkpoints" / "last.safetensors")
    assert held_heads(loaded.model) == [False, False, False, True]
    with refused("held", "to=safetensors"):
        loaded.save_pretrained(tmp_path / "exported")
    new = headscope.load(trained("new", f"init_from={folder}", "trainer.max_steps=1"))
    assert held_heads(new.model) == [False] * 4


def test_wrong_words_are_refused_in_one_line(trained):
    for word, said in {
        "callbacks.hold.heads=[L5H0]": "L0H0 to L1H1",
        "callbacks.hold.feed_forward=[2]": "layer 2",
        "callbacks.hold.until_step=0": "from_step=0",
    }.items():
        with refused(said):
            trained("run", word)
    with refused("from_step=12", "max_steps=12"):
        trained("run", *PARTS, "callbacks.hold.from_step=12")
