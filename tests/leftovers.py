"""A pytest plugin: child processes of a test that failed, as a timeout does, are killed."""

from collections.abc import Generator
from typing import Any

import psutil
import pytest


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    before = children()
    try:
        return (yield)
    except pytest.fail.Exception:  # what pytest-timeout raises
        for child in children() - before:
            child.kill()
        raise
