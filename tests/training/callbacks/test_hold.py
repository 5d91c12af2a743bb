"""Heads and feed-forward networks that are held in training: what is held stays, and nothing else
is touched, also over a stop and in what is loaded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from attention_layers import attention, every_attention, some_input
from checkpoint_files import assert_same_weights, opened
from many_processes import TINY
from refusals import refused
from running import snapshot_headers
from small_gpt import PAIRS, gpt, loss_of, some_tokens, variant
from test_every_pair import pressing_ctrl_c

import headscope
from headscope.analysis.ablation import ablated_heads
from headscope.analysis.head_outputs import head_outputs
from headscope.analysis.head_statistics import measure_heads
from headscope.nn.capture import capture
from headscope.nn.held import add_hold, held_heads
from headscope.trained.generation.precision import in_precision
from headscope.training.module import LanguageModel

SHORT = [*TINY, "data=repeats", "data.characters=2000", "trainer.max_steps=12"]
SHORT += ["trainer.val_every_steps=4", "optimizer.weight_decay=0.3"]
HOLD = ["callbacks.hold.from_step=3", "callbacks.hold.until_step=9"]
PARTS = ["callbacks.hold.heads=[L1H1]", "callbacks.hold.feed_forward=[0]"]
WAYS = ["zero", "mean", "frozen"]


def trained(folder: str, *words: str) -> Path:
    """The folder of a small run."""
    return headscope.train([*SHORT, *words, f"hydra.run.dir={folder}"]).folder


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
    held = add_hold(model, 1, "attention.out_proj")
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


def test_a_hold_of_nothing_equals_no_hold():
    without = trained("without", "callbacks.hold=null")
    assert_same_weights(trained("nothing", *HOLD), without)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("by", WAYS)
def test_what_is_held_stays_in_the_interval_and_changes_outside(by, optimizer):
    words = [*PARTS, *HOLD, f"callbacks.hold.by={by}", f"optimizer={optimizer}"]
    keep = ["callbacks.saving.keep_steps=[2,3,4,6,9,10]", "optimizer.lr=0.01"]
    outputs, own = {}, {}
    for file in sorted(trained("run", *words, *keep).glob("checkpoints/step_*")):
        loaded = headscope.load(file)
        captured = capture(loaded.model, loaded.windows_elsewhere()[0])
        outputs[loaded.step] = [captured.outputs[1][:, :, 1], captured.fed[0]]
        views = loaded.model.attentions[1].own_weights([1])
        views += loaded.model.blocks[0].feed_forward.parameters()
        own[loaded.step] = torch.cat([view.detach().flatten() for view in views])
    assert not any("held" in name for name in loaded.model.state_dict())
    assert (by == "zero") != all(torch.equal(own[step], own[3]) for step in (4, 6, 9))
    assert not torch.equal(own[2], own[3])
    assert not torch.equal(own[9], own[10])
    for number, of_3 in enumerate(outputs[3] if by != "frozen" else ()):
        wanted = of_3.mean(dim=(0, 1)) if by == "mean" else torch.zeros(of_3.size(-1))
        for step in (4, 6, 9):
            assert torch.allclose(outputs[step][number], wanted.expand_as(of_3), atol=1e-6), step
        assert outputs[10][number].std(dim=(0, 1)).min() > 0


@pytest.fixture(scope="module", params=WAYS)
def whole(request, tmp_path_factory):
    """The words of a run that holds, and the run with these words that nothing stops."""
    words = [*PARTS, *HOLD, f"callbacks.hold.by={request.param}", "model.dropout=0.1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        return words, trained("run", *words).absolute()


@pytest.mark.parametrize("stop_at", [2, 6, 10])
def test_a_stopped_run_with_a_hold_continues_bit_by_bit(whole, stop_at, monkeypatch):
    words, uninterrupted = whole
    monkeypatch.setattr(LanguageModel, "training_step", pressing_ctrl_c(step=stop_at - 1))
    with pytest.raises(KeyboardInterrupt):
        trained("run", *words)
    assert opened("run/checkpoints/last.safetensors")["step"] == stop_at
    assert_same_weights(headscope.train(["resume=run"]).folder, uninterrupted)


@pytest.mark.parametrize(
    ("words", "held"),
    [
        (["callbacks.hold=null"], [False] * 4),
        (["callbacks.hold.heads=[L0H0]"], [True, False, False, False]),
        (["callbacks.hold.until_step=12"], [False] * 4),
        ([], [False, False, False, True]),
    ],
)
def test_a_resumed_run_holds_what_its_own_settings_say(words, held):
    folder = trained("run", "callbacks.hold.heads=[L1H1]", "callbacks.hold.by=mean")
    headscope.train([f"resume={folder}", *words, "trainer.max_steps=13"])
    assert held_heads(headscope.load(folder / "checkpoints/last.safetensors").model) == held


@pytest.mark.parametrize("by", WAYS)
def test_a_head_is_marked_while_it_is_held_and_has_no_name_if_its_output_is(by):
    words = [*PARTS, *HOLD, f"callbacks.hold.by={by}", "callbacks.attention.steps=12"]
    # So that all other heads have names, also before training.
    words += ["callbacks.heads.thresholds.even=0.001", "model/position=alibi"]
    trained("run", "callbacks=default", *words, "callbacks.samples.max_new_tokens=0")
    for header in snapshot_headers("run"):
        held = header["step"] in range(4, 10)
        assert header["held"] == [0, 0, 0, int(held)]
        assert (header["names"][3] == "-") == (held and by != "frozen"), header["step"]


def test_what_is_held_is_in_the_checkpoint_but_not_in_a_new_run_or_another_tool(tmp_path):
    folder = trained("run", *PARTS, "callbacks.hold.by=mean")
    loaded = headscope.load(folder / "checkpoints" / "last.safetensors")
    assert held_heads(loaded.model) == [False, False, False, True]
    with refused("held", "to=safetensors"):
        loaded.save_pretrained(tmp_path / "exported")
    new = headscope.load(trained("new", f"init_from={folder}", "trainer.max_steps=1"))
    assert held_heads(new.model) == [False] * 4


def test_wrong_words_are_refused_in_one_line():
    for words, said in {
        "heads=[L5H0]": ["L0H0 to L1H1"],
        "feed_forward=[2]": ["layer 2"],
        "until_step=0": ["callbacks.hold.until_step=0", "from_step=0"],
        "heads=[] +callbacks.b={_target_:headscope.Hold,until_step:0}": ["callbacks.b.until_step"],
        "heads=[L1H1] callbacks.hold.from_step=12": ["from_step=12", "max_steps=12"],
        "heads=[L1H1] +callbacks.b={_target_:headscope.Hold,heads:[L1H1],from_step:3}": ["two"],
    }.items():
        with refused("callbacks.", *said):
            trained("run", *f"callbacks.hold.{words}".split())
