"""What a report is of.

Shapes: N windows, T tokens.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from headscope.analysis.ablation import Replacement, ablate_heads
from headscope.analysis.page import most_tokens
from headscope.checkpoint import Checkpoint, Reading
from headscope.data.batches import spread_windows
from headscope.evaluation import ValidationText

Track = Callable[[Iterable[Any]], Iterable[Any]]
Head = tuple[int, int]


@dataclass(frozen=True)
class Subject:
    """A checkpoint, the text that maps are drawn of, and the windows (N, T) of tokens that figures
    are means over."""

    loaded: Checkpoint
    reading: Reading
    windows: Tensor


@dataclass(frozen=True)
class Ablation:
    """What to replace a head by, and the windows (N, T + 1) of tokens that the loss is taken on."""

    replace_by: Replacement
    windows: Tensor
    bytes_per_token: float

    @classmethod
    def on(
        cls, text: ValidationText, replace_by: Replacement, *, windows: int, length: int
    ) -> "Ablation":
        """On so many windows of `text`, each of `length` tokens and the one after."""
        chosen = spread_windows(text.tokens, windows=windows, length=length + 1)
        return cls(replace_by, chosen, text.byte_lengths[chosen[:, 1:].numpy()].mean())

    def run(self, loaded: Checkpoint, track: Track) -> dict[str, Tensor]:
        """What the loss changes by without each head: `loss_without` in nats per token, the
        standard error of that as `loss_without_error`, and `bits_per_byte_without`, (L, H) each."""
        change = ablate_heads(
            loaded.model,
            self.windows[:, :-1],
            self.windows[:, 1:],
            replace_by=self.replace_by,
            track=track,
        )
        return {
            "loss_without": change["nats_per_token"],
            "loss_without_error": change["standard_error"],
            "bits_per_byte_without": change["nats_per_token"] / math.log(2) / self.bytes_per_token,
        }


def shown_tokens(subject: Subject) -> int:
    """As many of the text's tokens as its page can hold."""
    layers, heads, tokens, _ = subject.reading.weights.shape
    return min(tokens, most_tokens(layers, heads))


def head_named(name: str, loaded: Checkpoint) -> Head:
    """The layer and the head that L0H1 means. Raises ValueError when the model has none such."""
    layers, heads = len(loaded.model.attentions), loaded.model.attentions[0].heads
    found = re.fullmatch(r"L(\d+)H(\d+)", name)
    if not found or int(found[1]) >= layers or int(found[2]) >= heads:
        raise ValueError(f"{name} is no head of this model: L0H0 to L{layers - 1}H{heads - 1}")
    return int(found[1]), int(found[2])


def check_other(loaded: Checkpoint, other: Checkpoint) -> None:
    """Raises ValueError when the two do not read a text as the same tokens."""
    if other.tokenizer.state() != loaded.tokenizer.state():
        raise ValueError(
            f"other={other.path} has another vocabulary: its maps would be of other tokens"
        )


def check_one_run(checkpoints: list[Checkpoint], loaded: Checkpoint) -> None:
    """Raises ValueError when these cannot be moments of the run that `loaded` is of."""
    sizes = loaded.config["model"]
    for one in checkpoints:
        if one.config["model"] != sizes or one.tokenizer.state() != loaded.tokenizer.state():
            raise ValueError(f"checkpoints=: {one.path} and {loaded.path} are not of one run")
    steps = [one.step for one in checkpoints]
    twice = [step for step in steps if steps.count(step) > 1]
    if twice:
        raise ValueError(f"checkpoints=: two are of step {twice[0]:,}")


def kept(paths: Iterable[str]) -> list[Path]:
    """Files as they are; of a run's folder all that it kept, `step_*.ckpt`.

    Raises ValueError when there are none.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(path.glob("checkpoints/step_*.ckpt"))
            if not inside:
                raise ValueError(
                    f"checkpoints={path} kept none: train with callbacks.keep_steps=[0,100,300,900]"
                )
            found += inside
        else:
            found.append(path)
    return found
