"""What `headscope analyze` prints about a report."""

import math
import sys

from torch import Tensor

from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.head_types import NONE
from headscope.analysis.patching import PatchingResult, PatchTexts
from headscope.analysis.report.inputs import AblationResult, ReportInput
from headscope.analysis.report.page import shown_tokens
from headscope.terminal import printable

MOST_IMPORTANT = 5
"""How many of the most important heads to print. Each is printed with the change in loss when that
head is removed."""


def print_report(
    report: ReportInput,
    statistics: HeadStatistics,
    ablation: AblationResult | None,
    patching: tuple[PatchTexts, PatchingResult] | None,
    steps: int,
) -> None:
    """Print the name of each head and the most important heads, and to standard error what the
    report, of checkpoints at `steps` different steps, was measured on."""
    for name, head_type in zip(statistics.heads, statistics.types, strict=True):
        offset = f", {head_type.label}" if head_type.offset else ""
        print(f"{name}  {'without a name' if head_type.name == NONE else head_type.name}{offset}")
    if ablation and "loss_change" in ablation.metrics:
        print_ablation(ablation)
    if ablation and "gradient_importance" in ablation.metrics:
        print_gradients(ablation)
    if patching:
        print_patching(*patching)
    tokens = len(report.reading.tokens)
    lines = []
    if (shown := shown_tokens(report.reading, steps)) < tokens:
        few = f"attention.html has the first {shown} of {tokens} tokens"
        lines += [f"{few}: a larger page would be slow"]
    if "induction" not in statistics.metrics:
        hint = "see docs/glossary.md"
        lines += [f"Induction is not measurable with this vocabulary or block_size: {hint}"]
    measured = f"{statistics.windows} x {statistics.tokens} tokens"
    lines += [f"Names and metrics are measured on {measured}"]
    print(*lines, sep="\n", file=sys.stderr)


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
