"""Event files are on the disk before a checkpoint, and damage in them is reported on resume."""

import os
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import SMALL, Script, events

from headscope.training.callbacks.tensorboard_log import lost_steps
from headscope.training.resume import ResumeCheckpoint, newest_checkpoint

RUN = [*SMALL, "callbacks.heads.windows=1", "trainer.val_batch_size=2", "trainer.batch_size=2"]
RUN += ["trainer.val_every_steps=9"]


def event_files(run: Path) -> list[Path]:
    """Those with losses. At its end, a run writes a small one for the tab HParams."""
    found = sorted(run.glob("tensorboard/events*.headscope"))
    return [file for file in found if file.stat().st_size > 2000]


def shown(run: Path) -> tuple[set[int], set[int]]:
    """The steps with a training loss and the steps with a validation loss in TensorBoard."""
    log = events(run)
    train, validation = (
        {each.step for each in log.Scalars(tag)} if tag in log.Tags()["scalars"] else set()
        for tag in ("train/loss", "val/loss")
    )
    return train, validation


def lost_of(logs: Path, resume: ResumeCheckpoint) -> str | None:
    return lost_steps(logs, resume.stored.data["training"]["logged"])


def everything(run: Path) -> dict[str, list[int]]:
    """All that TensorBoard shows: the steps of each tag."""
    log = events(run)
    tags = {
        kind: log.Tags()[name] for kind, name in (("Scalars", "scalars"), ("Tensors", "tensors"))
    }
    return {
        tag: [each.step for each in getattr(log, kind)(tag)]
        for kind, names in tags.items()
        for tag in names
    }


def steps_in(line: str | None) -> set[int]:
    """The steps that the warning names."""
    ranges = re.findall(r"(\d+)(?: to (\d+))?", (line or "").partition(" steps ")[2].split(":")[0])
    return {step for first, end in ranges for step in range(int(first), int(end or first) + 1)}


def boundaries(file: Path) -> Iterator[int]:
    content, place = file.read_bytes(), 0
    while place < len(content):
        yield place
        (length,) = struct.unpack_from("<Q", content, place)
        place += length + 16


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 4
    file.write_bytes(content)


def damages(file: Path) -> Iterator[Callable[[Path], None]]:
    """Ways to damage this event file."""
    size, rng = file.stat().st_size, random.Random(1)
    yield Path.unlink
    for place in [0, size // 4, size // 2, size - 1, *rng.sample([*boundaries(file)], 3)]:
        yield lambda file, place=place: os.truncate(file, place)
    for place in [size - 1, *rng.sample(range(size), 3)]:
        yield lambda file, place=place: flip(file, place)


def test_damage_up_to_the_checkpoint_is_reported_and_nothing_else(
    script: Script, speeches: Path, tmp_path: Path
) -> None:
    whole = Path("outputs/whole")
    words = [*RUN, f"data.path={speeches}", f"hydra.run.dir={whole}"]
    expected: set[int] = set()
    for sessions, (last, every) in enumerate(((12, 1), (20, 4), (27, 2)), start=1):
        change = [f"trainer.max_steps={last}", f"trainer.log_every_steps={every}"]
        said = script("train", *words, *change)
        assert said.code == 0, said.err
        assert "TensorBoard will" not in said.out
        words = [f"resume={whole}"]
        expected |= {
            step for step in range(max(expected, default=0) + 1, last + 1) if step % every == 0
        }
        resume, logs = newest_checkpoint(whole), whole / "tensorboard"
        assert resume.step == last
        assert lost_of(logs, resume) is None
        assert shown(whole)[0] == expected
        complete = everything(whole)
        for file in event_files(whole):
            for damage in damages(file):
                copy = tmp_path / "copy"
                shutil.copytree(whole, copy)
                damage(copy / "tensorboard" / file.name)
                named, left = steps_in(lost_of(copy / "tensorboard", resume)), everything(copy)
                lost = {
                    step
                    for tag, steps in complete.items()
                    for step in {*steps} - {*left.get(tag, [])}
                    if 0 < step <= last
                }
                assert lost <= named
                assert not {step for step in shown(copy)[0] & named if step > min(named)}
                assert bool(named) == (lost != set() or (bool(named) and left != complete))
                shutil.rmtree(copy)
        assert len(event_files(whole)) == sessions


def test_a_torn_record_after_the_checkpoint_is_not_damage(script: Script, speeches: Path) -> None:
    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=9", "hydra.run.dir=outputs/run"]
    assert script("train", *words, "trainer.log_every_steps=1").code == 0
    for file in event_files(Path("outputs/run")):
        with file.open("ab") as log:
            log.write(b"half of a record")
    said = script("train", "resume=outputs/run", "trainer.max_steps=10")
    assert said.code == 0, said.err
    assert "TensorBoard will" not in said.out


def test_a_resumed_run_says_what_tensorboard_will_not_show(script: Script, speeches: Path) -> None:
    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=9", "hydra.run.dir=outputs/run"]
    assert script("train", *words, "trainer.log_every_steps=1").code == 0
    [file] = event_files(Path("outputs/run"))
    os.truncate(file, file.stat().st_size // 4)
    shutil.copytree("outputs/run", "outputs/without")
    for run, more, lines in (("without", ["~logger"], 0), ("run", [], 1)):
        said = script("train", f"resume=outputs/{run}", "trainer.max_steps=10", *more)
        assert said.code == 0, said.err
        warning = rf"^TensorBoard will .* steps \d to 9: .*outputs/{run}/tensorboard"
        assert len(re.findall(warning, said.out, re.MULTILINE)) == lines


def test_a_malicious_length_of_a_record_is_damage(script: Script, speeches: Path) -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    words = [*RUN, f"data.path={speeches}", "trainer.max_steps=9", "hydra.run.dir=outputs/run"]
    assert script("train", *words).code == 0
    resume = newest_checkpoint(Path("outputs/run"))
    [file] = event_files(Path("outputs/run"))
    for length in (2**34, 2**63, 2**64 - 1):
        header = struct.pack("<Q", length)
        start = header + struct.pack("<I", masked_crc32c(header))
        file.write_bytes(start + b"x" * 100)
        assert steps_in(lost_of(file.parent, resume)) == {*range(1, 10)}


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
    assert script("train", *words, "callbacks.save_every_minutes=0").code == 0
    kinds = {"events": "e", ".best.safetensors": "b", ".last.safetensors": "l"}
    order = "".join(letter for name in synced for kind, letter in kinds.items() if kind in name)
    assert order.count("l") > 5
    assert re.fullmatch("(e+b?l)+", order), order
