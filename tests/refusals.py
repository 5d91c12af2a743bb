"""What is refused: in one line that names it, and without running its code."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headscope.errors import UserError


@contextmanager
def refused(*words: object) -> Iterator[None]:
    """Inside the block a UserError is raised: one short line with all these words."""
    with pytest.raises(UserError) as error:
        yield
    said = str(error.value)
    assert all(str(word) in said for word in words), said
    assert "\n" not in said
    assert len(said) < 600


class Attack:
    """Makes the folder `attacked` when it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("attacked",)
