"""The time of training: what counts, and that a resumed run continues it."""

import time

import pytest

from headscope.training import timer as timing
from headscope.training.timer import TrainingTimer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, as its only entry."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "wait_for_gpu", lambda: None)
    return now


def test_only_the_time_outside_of_pauses_is_training(clock):
    timer = TrainingTimer()
    clock[0] += 1  # before training
    timer.resume()
    clock[0] += 10
    with timer.paused():
        clock[0] += 100
        with timer.paused():
            clock[0] += 100
        clock[0] += 100
    clock[0] += 5
    assert timer.seconds() == 15
    timer.pause()
    clock[0] += 100
    assert timer.seconds() == 15
    assert timer.wall_seconds() == 416


def test_a_resumed_run_continues_with_the_time_of_its_checkpoint(clock):
    timer = TrainingTimer()
    timer.resume()
    clock[0] += 7
    state = timer.state_dict()
    clock[0] += 1000  # lost: the run was killed
    later = TrainingTimer()
    clock[0] += 2
    later.load_state_dict(state)
    later.resume()
    clock[0] += 3
    assert later.seconds() == 10
    assert later.wall_seconds() == 12
