"""Event files are on the disk before a checkpoint, and damage in them is reported on resume."""

import os
import random
import re
from pathlib import Path

import pytest
from running import SMALL, events

import headscope
from headscope.training.loggers import lost_steps
from headscope.training.resume import newest_checkpoint
from headscope.training.run_folder import EVENT_TIME

RUN = [*SMALL, "callbacks.heads.windows=1", "trainer.val_batch_size=2", "trainer.batch_size=2"]
RUN += ["trainer.val_every_steps=9"]


def event_files(run: Path) -> list[Path]:
    """Those with losses. At its end, a run writes a small one for the tab HParams."""
    found = sorted(run.glob("tensorboard/events*.headscope"))
    return [file for file in found if file.stat().st_size > 2000]


def shown(run: Path) -> set[tuple[str, int]]:
    """The scalars that TensorBoard shows, and their steps."""
    log = events(run)
    return {(tag, each.step) for tag in log.Tags()["scalars"] for each in log.Scalars(tag)}


def named(line: str | None) -> int:
    """The step that the warning names."""
    found = re.search(r"up to step (\d+):", line or "")
    return int(found[1]) if found else 0


def test_damage_up_to_the_checkpoint_is_reported_and_nothing_else(speeches, tmp_path):
    whole = Path("outputs/whole")
    words = [*RUN, f"data.path={speeches}", f"hydra.run.dir={whole}", "trainer.log_every_steps=1"]
    for last in (12, 20):  # two sessions, so two event files
        headscope.train([*words, f"trainer.max_steps={last}"])
        words = [f"resume={whole}"]
    logged = newest_checkpoint(whole).data["training"]["callbacks"]["CheckpointSaver"]["logged"]
    logs, complete, rng = whole / "tensorboard", shown(whole), random.Random(1)
    assert lost_steps(logs, logged) is None
    of_training = [file for file in event_files(whole) if file.name[EVENT_TIME:] in logged]
    assert len(of_training) == 2
    for file in of_training:
        content = file.read_bytes()
        for place in [0, len(content) // 4, len(content) - 1, rng.randrange(len(content))]:
            wrong = content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
            for damaged in (content[:place], wrong):
                file.write_bytes(damaged)
                last = logged[file.name[EVENT_TIME:]][1]
                assert named(lost_steps(logs, logged)) == last, place
                assert all(step <= last for tag, step in complete - shown(whole) if step <= 20)
        file.write_bytes(content)


def test_a_resumed_run_says_what_tensorboard_will_not_show(script, speeches):
    """Half of a record after the checkpoint is no damage."""
    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=9", "hydra.run.dir=run"]
    headscope.train([*words, "trainer.log_every_steps=1"])
    [file] = event_files(Path("run"))
    whole = file.read_bytes()
    for steps, content in enumerate((whole + b"half of a record", whole[: len(whole) // 4]), 10):
        file.write_bytes(content)
        said = script("train", "resume=run", f"trainer.max_steps={steps}").succeeded()
        found = re.findall(r"^TensorBoard will .* step 9: .*run/tensorboard", said.out, re.M)
        assert len(found) == (len(content) < len(whole))


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
