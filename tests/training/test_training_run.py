"""Training, evaluation, sampling and starting from a checkpoint, end to end on real text."""

import json
import math
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path
from shlex import quote

import pytest
import torch
from checkpoint_files import assert_same_weights, opened
from refusals import refused
from running import ROOT, SMALL, events, summary
from test_chinese import TEXT as CHINESE

import headscope
from headscope import trained
from headscope.data.store import open_store
from headscope.trained import checkpoint


@pytest.mark.slow
def test_train_evaluate_and_sample(script, speeches):
    small = [*SMALL, f"data.path={speeches}", "model.embed_dim=64"]
    words = ["trainer.max_steps=300", "trainer.val_every_steps=100"]
    words += ["optimizer.lr=3e-3", "schedule.warmup_steps=20"]
    said = script("train", *small, *words)
    assert (said.code, said.err) == (0, "")
    [run] = Path("outputs").iterdir()
    found = summary(run)

    # The model learned more than token frequencies.
    [store] = Path("data").glob("*/")
    tokens = open_store(store).validation[1:].tolist()
    counts = Counter(tokens)
    [example] = headscope.load(run / "checkpoints/best.safetensors").texts
    assert example in open_store(store).tokenizer.decode(tokens)
    unigram = -sum(n / len(tokens) * math.log(n / len(tokens)) for n in counts.values())
    assert found["val_loss"] < unigram - 0.5

    assert found["steps"] == 300
    assert found["tokens"] == 300 * 12 * 32
    assert found["wall_seconds"] > found["train_seconds"] > 0
    analyze = quote(str(ROOT / "scripts" / "analyze.py"))
    assert f"python {analyze} checkpoint={run}/checkpoints/best.safetensors" in said.out
    log = events(run)
    for logged in (log.Scalars("val/loss"), log.Tensors("samples/text_summary")):
        assert [event.step for event in logged] == [100, 200, 300]

    # Evaluation equals the summary up to rounding, because the batch size differs.
    last = json.loads(script("evaluate", f"checkpoint={run}/checkpoints/last.safetensors").out)
    assert last["loss_nats_per_token"] == pytest.approx(found["val_loss"], rel=1e-5)
    assert last["bits_per_byte"] == pytest.approx(found["val_bits_per_byte"], rel=1e-5)
    assert last["perplexity"] == pytest.approx(math.exp(last["loss_nats_per_token"]))
    text = b"".join(file.read_bytes() for file in sorted(speeches.glob("*.txt"))[9::10])
    assert last["bytes"] == len(text.replace(b"\r\n", b"\n"))

    # By default, sampling uses the newest run, and prints only text to standard output.
    words = ("max_new_tokens=60", "prompt=My fellow citizens, ")
    one, again = (script("sample", *words).succeeded() for _ in range(2))
    assert one.out.startswith("My fellow citizens, ")
    assert one.out == again.out != script("sample", *words, "seed=2").out


def test_a_run_is_resumed_only_with_the_same_text(speeches):
    shutil.copytree(speeches, "texts")
    words = [*SMALL[1:], "data.path=texts", "trainer.max_steps=2", "callbacks=plain"]
    headscope.train([*words, "tokenizer.vocab_size=320", "hydra.run.dir=outputs/run"])
    more = ["resume=outputs/run", "trainer.max_steps=4"]
    with next(Path("texts").iterdir()).open("a") as file:
        file.write("One more sentence.")
    with refused("the text has changed"):
        headscope.train(more)
    Path("texts").rename("moved")
    with refused("data.path=texts names no file"):
        headscope.train(more)
    Path("moved").rename("texts")

    # A new run can continue from the weights with another text, but keeps the old tokenizer.
    init = "init_from=outputs/run/checkpoints/last.safetensors"
    headscope.train([*words, init, "hydra.run.dir=outputs/new"])
    headscope.train(["resume=outputs/new", "trainer.max_steps=9"])
    old, new = (opened(f"outputs/{run}/checkpoints/last.safetensors") for run in ("run", "new"))
    assert old["tokenizer"] == new["tokenizer"]
    assert old["store"] != new["store"]


def test_the_final_validation_announces_what_it_uses(script, speeches):
    """The console prints the losses of the steps that it names."""
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=6", "trainer.val_every_steps=3"]
    words += ["trainer.log_every_steps=2", "trainer.batch_size=1"]
    losses = {}
    for choice in ("whole", "part"):
        run = Path("outputs") / choice
        more = [f"trainer.final_validation={choice}", f"hydra.run.dir={run}"]
        said = script("train", *words, *more).succeeded()
        printed = re.findall(r"step (\d+) of 6  loss ([\d.]+)", said.out)
        logged = events(run).Scalars("train/loss")
        assert printed == [(str(each.step), f"{each.value:.4f}") for each in logged]
        # At the end, part gives the loss of the last validation during training.
        during = events(run).Scalars("val/loss")[-1].value
        losses[choice] = summary(run)["val_loss"]
        assert (losses[choice] == pytest.approx(during, rel=1e-6)) == (choice == "part")
        assert ("Validating on the whole split: " in said.out) == (choice == "whole")
    said = script("evaluate", "checkpoint=outputs/part/checkpoints/last.safetensors")
    assert json.loads(said.out)["loss_nats_per_token"] == pytest.approx(losses["whole"], rel=1e-5)


SHORT = {"English": (ROOT / "README.md").read_text("utf-8")[:3000], "Chinese": CHINESE * 20}


@pytest.mark.parametrize("kind", SHORT)
def test_a_short_text_needs_no_other_key_and_its_sample_begins_with_its_words(script, kind):
    """The vocabulary is what the text supports. A resumed run and a run from its weights take it.
    The key of the store keeps the wish, so the same command opens the same store."""
    Path("my.txt").write_text(SHORT[kind], encoding="utf-8")
    words = [*SMALL[1:], "data.path=my.txt", "hydra.run.dir=run", "trainer.max_steps=2"]
    said = script("train", *words, "callbacks.saving.keep_steps=[1,900]").succeeded()
    [store] = Path("data").glob("*/")
    found = open_store(store).tokenizer.vocab_size
    assert found < 8192
    assert f"tokenizer.vocab_size=8192: this text supports {found:,} tokens" in said.out
    assert "[900] are skipped: trainer.max_steps=2" in said.out
    assert ("will memorize" in said.out) == (len(open_store(store).train) < 10_000)
    [text] = trained.load("run/checkpoints/last.safetensors").texts
    start = text.partition("\n")[0]
    assert len(start) >= 4
    assert text in SHORT[kind]
    assert said.out.count(start) > 1  # a sample, and the command for more
    assert shlex.quote(f"prompt={start}") in said.out

    resumed = script("train", "resume=run", "trainer.max_steps=3").succeeded()
    assert "Using store_dir=data: name another" in resumed.out
    again = ["init_from=run", "data.path=my.txt", "trainer.max_steps=1", "hydra.run.dir=again"]
    headscope.train([*SMALL[4:], *again])
    for run in ("run", "again"):
        loaded = trained.load(f"{run}/checkpoints/last.safetensors")
        assert loaded.model.vocab_size == found
    assert len(list(Path("data").glob("*/"))) == 2  # the second has the tokenizer of the checkpoint


def test_a_snapshot_has_the_weights_of_its_step(script, speeches):
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=5", "callbacks=plain"]
    for folder, steps in (("snapshots", "[0,2,5]"), ("plain", "[]")):
        keep = f"callbacks.saving.keep_steps={steps}"
        headscope.train([*words, "trainer.accumulate=2", keep, f"hydra.run.dir={folder}"])
    assert_same_weights("snapshots", "plain")
    files = sorted(Path("snapshots/checkpoints").glob("step_*"))
    assert [file.name for file in files] == [f"step_{step:06}.safetensors" for step in (0, 2, 5)]
    loaded = [headscope.load(file) for file in files]
    assert [each.step for each in loaded] == [0, 2, 5]
    torch.manual_seed(1)
    fresh = checkpoint.build_model(loaded[0].config.model, vocab_size=320)
    last = headscope.load("snapshots/checkpoints/last.safetensors").model
    start = ["callbacks.saving.keep_steps=[0]", "trainer.max_steps=1", "hydra.run.dir=new"]
    headscope.train([*words, f"init_from={files[1]}", *start])
    new = headscope.load("new/checkpoints/step_000000.safetensors").model
    pairs = (loaded[0].model, fresh), (loaded[1].model, new), (loaded[2].model, last)
    for model, expected in pairs:
        torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert "training" not in checkpoint.read(files[0]).data

    assert script("sample", f"checkpoint={files[1]}", "max_new_tokens=3").code == 0
