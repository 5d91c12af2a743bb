"""A shuffle that is never written down."""

import math

import numpy as np

ROUNDS = 4
"""Each moves rows and columns. Two would do if `scramble` were all chance (Luby & Rackoff 1988)."""

FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # SplitMix64's
HALF = np.uint64(32)


class Shuffle:
    """A permutation of range(size) that is computed place by place: one of a thousand million takes
    no more memory, and no more time before its first place, than one of ten.

    The numbers are laid out as a table of about sqrt(size) rows and columns. A round moves every
    cell up or down by what its column and a key say, then sideways by what its row and another key
    say; each can be undone, so no two cells meet. This is a Feistel network (Luby & Rackoff 1988)
    over a table of any size. A cell beyond the last number is moved on until it is none (cycle
    walking); both are from Black & Rogaway 2002, "Ciphers with Arbitrary Finite Domains". `random`
    draws the keys.
    """

    def __init__(self, size: int, random: np.random.Generator) -> None:
        rows = math.isqrt(size - 1) + 1
        self.size = np.uint64(size)
        self.rows = np.uint64(rows)
        self.columns = np.uint64(-(-size // rows))
        self.keys = random.integers(2**64, size=(ROUNDS, 2), dtype=np.uint64)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """The numbers at some places, int64 as they are."""
        found = self._moved(places.astype(np.uint64))
        while (beyond := found >= self.size).any():
            found[beyond] = self._moved(found[beyond])
        return found.astype(np.int64)

    def _moved(self, cells: np.ndarray) -> np.ndarray:
        row, column = np.divmod(cells, self.columns)
        for by_column, by_row in self.keys:
            row = (row + scramble(column, by_column)) % self.rows
            column = (column + scramble(row, by_row)) % self.columns
        return row * self.columns + column


def scramble(numbers: np.ndarray, key: np.uint64) -> np.ndarray:
    """32 bits for each number that look like chance, and others for every key."""
    bits = (numbers + key) * FACTORS[0]
    bits ^= bits >> HALF
    return (bits * FACTORS[1]) >> HALF
