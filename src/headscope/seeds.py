"""Random seeds that are pure functions of several numbers, such as (seed, step, rank)."""


def mixed_seed(*numbers: int) -> int:
    """Hashes a sequence of integers to one seed in [0, 2^64), with SplitMix64's hash (Steele 2014).
    Different sequences give unrelated seeds."""
    mask = 2**64 - 1
    mixed = 0
    for number in numbers:
        mixed = (mixed ^ number) + 0x9E3779B97F4A7C15 & mask
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
        mixed ^= mixed >> 31
    return mixed
