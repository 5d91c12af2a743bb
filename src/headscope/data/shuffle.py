"""A random permutation whose elements are computed on demand."""

import math

import numpy as np

ROUNDS = 4
"""The number of rounds of the network. If `hash_with_key` were perfectly random, two rounds would
be enough (Luby & Rackoff 1988)."""

FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # SplitMix64's
HALF = np.uint64(32)


class Shuffle:
    """A random permutation of range(size). Each element is computed on demand, so memory and set-up
    time do not depend on `size`.

    This is a Feistel network (Luby & Rackoff 1988). The numbers 0, 1, 2 and so on fill a table with
    about sqrt(size) rows and columns. Each round first shifts every column cyclically by a hash of
    its column index, and then every row by a hash of its row index. Both shifts are invertible, so
    the result is a permutation of the table. The table can have more cells than `size`: a result
    that is not below `size` is permuted again until it is (cycle walking). Black & Rogaway 2002,
    "Ciphers with Arbitrary Finite Domains", describe both the table and cycle walking. `random`
    draws the keys of the hash.
    """

    def __init__(self, size: int, random: np.random.Generator) -> None:
        rows = math.isqrt(size - 1) + 1
        self.size = np.uint64(size)
        self.rows = np.uint64(rows)
        self.columns = np.uint64(-(-size // rows))
        self.keys = random.integers(2**64, size=(ROUNDS, 2), dtype=np.uint64)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """The elements of the permutation at `indices`. The indices are int64 of any shape, and so
        is the result."""
        result = self._permute_table(indices.astype(np.uint64))
        while (outside := result >= self.size).any():
            result[outside] = self._permute_table(result[outside])
        return result.astype(np.int64)

    def _permute_table(self, cells: np.ndarray) -> np.ndarray:
        row, column = np.divmod(cells, self.columns)
        for column_key, row_key in self.keys:
            row = (row + hash_with_key(column, column_key)) % self.rows
            column = (column + hash_with_key(row, row_key)) % self.columns
        return row * self.columns + column


def hash_with_key(numbers: np.ndarray, key: np.uint64) -> np.ndarray:
    """A pseudo-random 32-bit hash of each number. Each key gives a different hash function."""
    bits = (numbers + key) * FACTORS[0]
    bits ^= bits >> HALF
    return (bits * FACTORS[1]) >> HALF
