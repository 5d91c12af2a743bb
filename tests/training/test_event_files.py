"""Event files are on the disk before a checkpoint."""

import os
import re
from pathlib import Path

import pytest
from running import SMALL

import headscope

RUN = [*SMALL, "callbacks.heads.windows=1", "trainer.val_batch_size=2", "trainer.batch_size=2"]
RUN += ["trainer.val_every_steps=9"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_events_are_on_the_disk_before_a_checkpoint(script, speeches, monkeypatch):
    synced, fsync = [], os.fsync

    def recorded(number: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
        fsync(number)

    monkeypatch.setattr(os, "fsync", recorded)
    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=12", "hydra.run.dir=outputs/run"]
    headscope.train([*words, "callbacks.saving.every_minutes=0"])
    kinds = {"events": "e", "best.safetensors": "b", "last.safetensors": "l"}
    order = "".join(letter for name in synced for kind, letter in kinds.items() if kind in name)
    assert order.count("l") > 5
    assert re.fullmatch("(e+b?l)+", order), order
