"""What `headscope analyze` prints about the most important heads."""

import math

from torch import Tensor

from headscope.analysis.patch_texts import PatchTexts
from headscope.analysis.patching import PatchingResult
from headscope.analysis.report.inputs import AblationResult
from headscope.terminal import printable

MOST_IMPORTANT = 5
"""How many of the most important heads to print. Each is printed with the change in loss when that
head is removed."""


def print_ablation(result: AblationResult) -> None:
    """Print the heads without which the loss rises most."""
    print(
        "most important heads: change of the loss without the head (with all heads "
        f"{result.loss:.4f} nats per token), and the largest induction of the others"
    )
    for name, metrics in result.most_important(MOST_IMPORTANT):
        change, error = metrics["loss_change"], metrics["loss_change_error"]
        others = metrics.get("other_induction", math.nan)  # not measured on very short texts
        print(f"{name}  {change:+.4f} ± {error:.4f}  {others:.2f}")


def print_gradients(result: AblationResult) -> None:
    """Print the heads with the largest importance by their gradients."""
    print(
        "most important heads by their gradients: importance, and the estimated change of the loss "
        "without the head (nats per token)"
    )
    for name, metrics in result.most_important(MOST_IMPORTANT, by="gradient_importance"):
        importance, change = metrics["gradient_importance"], metrics["loss_change_estimate"]
        print(f"{name}  {importance:.4f}  {change:+.4f}")
    names = {"gradient_importance": "importance", "loss_change_estimate": "estimated change"}
    found = {text: result.correlation(name) for name, text in names.items()}
    if all(map(math.isfinite, found.values())):
        texts = ", ".join(f"{text} {value:.2f}" for text, value in found.items())
        print(f"correlation with the measured change, over all heads: {texts}")


def print_patching(texts: PatchTexts, result: PatchingResult) -> None:
    """Print the heads with the largest effects of activation patching, in both directions."""
    print(
        f"activation patching: {printable(texts.metric_name)} is {result.clean:.4f} on the clean "
        f"text and {result.corrupted:.4f} on the corrupted text"
    )
    print("denoising: heads that restore most of this difference (0: nothing, 1: all of it)")
    for name, score in largest_first(result.denoising)[:MOST_IMPORTANT]:
        print(f"{name}  {score:.2f}")
    print("noising: heads that leave least of this difference (1: all of it, 0: nothing)")
    for name, score in largest_first(-result.noising)[:MOST_IMPORTANT]:
        print(f"{name}  {-score:.2f}")


def largest_first(values: Tensor) -> list[tuple[str, float]]:
    """The names and values of all heads, from values (L, H), the largest first."""
    heads = values.size(1)
    order = values.flatten().argsort(descending=True, stable=True).tolist()
    return [(f"L{n // heads}H{n % heads}", float(values.flatten()[n])) for n in order]
