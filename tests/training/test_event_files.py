"""Event files are on the disk before a checkpoint, and damage in them is reported on resume."""

import os
import random
import re
import shutil
from pathlib import Path

import pytest
from running import SMALL, Script, events

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


def steps_in(line: str | None) -> set[int]:
    """The steps that the warning names."""
    ranges = re.findall(r"(\d+)(?: to (\d+))?", (line or "").partition(" steps ")[2].split(":")[0])
    return {step for first, end in ranges for step in range(int(first), int(end or first) + 1)}


def test_damage_up_to_the_checkpoint_is_reported_and_nothing_else(
    script: Script, speeches: Path, tmp_path: Path
) -> None:
    whole = Path("outputs/whole")
    words = [*RUN, f"data.path={speeches}", f"hydra.run.dir={whole}", "trainer.log_every_steps=1"]
    for last in (12, 20):  # two sessions, so two event files
        said = script("train", *words, f"trainer.max_steps={last}")
        assert (said.code, "TensorBoard will" in said.out) == (0, False), said.err
        words = [f"resume={whole}"]
    logged = newest_checkpoint(whole).data["training"]["callbacks"]["CheckpointSaver"]["logged"]
    assert lost_steps(whole / "tensorboard", logged) is None
    complete, rng = shown(whole), random.Random(1)
    of_training = [file for file in event_files(whole) if file.name[EVENT_TIME:] in logged]
    assert len(of_training) == 2
    for file in of_training:
        size = file.stat().st_size
        for place in [0, size // 4, size - 1, *rng.sample(range(size), 3)]:
            for cut in (True, False):  # the file ends here, or has a wrong byte here
                copy = tmp_path / f"{file.name} {place} {cut}"
                shutil.copytree(whole, copy)
                content = bytearray(file.read_bytes())
                content[place] ^= 4
                damaged = content[: place if cut else None]
                (copy / "tensorboard" / file.name).write_bytes(damaged)
                named = steps_in(lost_steps(copy / "tensorboard", logged))
                lost = {step for tag, step in complete - shown(copy) if 0 < step <= 20}
                assert lost <= named
                assert named, place
                assert not {("train/loss", step) for step in named - {min(named)}} & shown(copy)


def test_a_resumed_run_says_what_tensorboard_will_not_show(script: Script, speeches: Path) -> None:
    """Half of a record after the checkpoint is no damage."""
    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=9", "hydra.run.dir=outputs/run"]
    assert script("train", *words, "trainer.log_every_steps=1").code == 0
    shutil.copytree("outputs/run", "outputs/torn")
    for file in event_files(Path("outputs/torn")):
        with file.open("ab") as log:
            log.write(b"half of a record")
    file, _ = event_files(Path("outputs/run"))  # the second begins after the checkpoint
    os.truncate(file, file.stat().st_size // 4)
    shutil.copytree("outputs/run", "outputs/without")
    for run, more, lines in (("torn", [], 0), ("without", ["~logger"], 0), ("run", [], 1)):
        said = script("train", f"resume=outputs/{run}", "trainer.max_steps=10", *more)
        assert said.code == 0, said.err
        warning = rf"^TensorBoard will .* steps \d to 9: .*outputs/{run}/tensorboard"
        assert len(re.findall(warning, said.out, re.MULTILINE)) == lines


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_events_are_on_the_disk_before_a_checkpoint(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = [], os.fsync

    def recorded(number: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
        fsync(number)

    monkeypatch.setattr(os, "fsync", recorded)
    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=12", "hydra.run.dir=outputs/run"]
    assert script("train", *words, "callbacks.saving.every_minutes=0").code == 0
    kinds = {"events": "e", "best.safetensors": "b", "last.safetensors": "l"}
    order = "".join(letter for name in synced for kind, letter in kinds.items() if kind in name)
    assert order.count("l") > 5
    assert re.fullmatch("(e+b?l)+", order), order
