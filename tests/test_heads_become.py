"""Trained on real text for long enough, a head looks at the token before, and the metrics tell."""

import csv
from pathlib import Path

import pytest
import torch
from running import events, snapshot_headers

import headscope
from headscope.nn.capture import capture

RECIPE = [
    *("model/position=rotary", "model.layers=2", "model.block_size=32", "model.embed_dim=64"),
    *("model.scale_embedding=true", "model.attention.qk_norm=true"),
    "model.attention.scale=2.0",  # lets heads be sharp early
    *("tokenizer.vocab_size=1024", "optimizer=adamw", "optimizer.lr=1e-2", "schedule=cosine"),
    *("trainer.batch_size=16", "trainer.max_steps=800", "trainer.val_every_steps=800"),
    *("callbacks=plain", "callbacks.heads.every_steps=200", "callbacks.attention.steps=5"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_not_drawn")
def test_a_head_becomes_a_previous_token_head_and_its_metrics_tell(script) -> None:
    run = "outputs/run"
    training = script("train", *RECIPE, f"hydra.run.dir={run}")
    assert training.code == 0, training.err
    said = script("analyze", f"checkpoint={run}", "ablation=true")
    assert said.code == 0, said.err
    with Path(run, "analysis", "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    named = [row for row in rows if row["type"] == "previous-token"]
    assert 1 <= len(named) < len(rows)
    best = max(rows, key=lambda row: float(row["previous"]))
    assert best in named
    assert float(best["previous"]) > 0.5
    layer, head = int(best["layer"]), int(best["head"])

    # It came with training, and TensorBoard showed how.
    came = [event.value for event in events(run).Scalars(f"watch/previous/L{layer}H{head}")]
    assert came[0] < 0.2
    assert came[-1] > 0.5
    snapshots = snapshot_headers(run)
    assert "previous-token" not in snapshots[0]["names"]
    assert snapshots[-1]["names"][layer * 4 + head] == "previous-token"
    assert f"L{layer}H{head} is now a previous-token head" in training.out

    # The head also looks back in random tokens, more than any other.
    loaded = headscope.load(run)
    generator = torch.Generator().manual_seed(5)
    noise = torch.randint(loaded.tokenizer.vocab_size, (64, 32), generator=generator)
    weights = capture(loaded.model, noise).attention[..., 2:, :]  # (L, N, H, T - 2, T)
    looks_back = weights.argmax(dim=-1) == torch.arange(1, 31)
    share = looks_back.float().mean(dim=(1, 3))  # (L, H)
    assert share[layer, head] == share.max() > 0.5

    # The model needs it: without it, the loss rises by many standard errors.
    assert float(best["loss_change"]) > 5 * float(best["loss_change_error"])
