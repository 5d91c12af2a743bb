"""The thresholds of the names of heads: conf/head_types.yaml."""

from dataclasses import dataclass

from headscope.errors import UserError


@dataclass(frozen=True)
class Thresholds:
    """The threshold of each head name: the minimum excess of a metric over uniform attention. It is
    above 0 and at most 1.

    Two thresholds are compared with a metric itself instead of its excess. A head is named `global`
    only if its metric `global` is at least `spread`. A head whose metric `unevenness` is below
    `even` gets no name from the text as a whole.

    The defaults of `frequent` and `rare` are about 1/3. With this excess, the frequent
    (or the rare) half of the text gets 2/3 of the weight. With uniform attention, it gets 1/2.
    """

    self: float = 0.4
    previous: float = 0.4
    next: float = 0.4
    first: float = 0.4
    induction: float = 0.3
    same_token: float = 0.3
    punctuation: float = 0.4
    single_key: float = 0.4
    fixed_offset: float = 0.4
    adjacent: float = 0.5
    local: float = 0.5
    backward: float = 0.6
    forward: float = 0.6
    frequent: float = 0.33
    rare: float = 0.33
    short_range: float = 0.5
    spread: float = 0.5
    even: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value <= 1:
                raise UserError(f"thresholds.{name}={value} must be above 0 and at most 1")
