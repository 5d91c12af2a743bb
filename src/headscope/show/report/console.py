"""What `headscope analyze` prints about a report."""

import math
from collections import Counter
from collections.abc import Sequence

from headscope.analysis.ablation import Decider
from headscope.analysis.head_types import FIRST, NONE
from headscope.analysis.rows import per_head
from headscope.show.report.patch_texts import PatchedTexts
from headscope.show.report.tables import (
    LISTED,
    MANY,
    HeadsAtStep,
    deciding_heads,
    patching_table,
)
from headscope.terminal import note, printable
from headscope.trained.ablations import AblationResult

NO_NAME = "without a name"
SHOWN_FIRST = 0.4
"""How much a head rests on the first token is printed from this mean weight on."""


def print_report(
    heads: HeadsAtStep,
    deciders: Sequence[Decider],
    patching: PatchedTexts | None,
    tokens: int,
    shown: int,
) -> None:
    """Print the heads that decide the prediction after the text, the names of all heads, and the
    most important heads. Standard error says on which text they were measured. The text has
    `tokens` tokens, and attention.html shows the first `shown`."""
    record, ablation = heads.record, heads.ablation
    print_deciders(deciders)
    labels = [NO_NAME if each.label == NONE else each.label for each in record.types]
    if len(labels) > MANY:
        for label, count in Counter(labels).most_common():
            named = [name for name, each in zip(record.heads, labels, strict=True) if each == label]
            print(f"{count:4}  {label}  {' '.join(named)}")
    else:
        rests = record.metrics["first"].flatten().tolist()
        for name, head_type, first in zip(record.heads, record.types, rests, strict=True):
            words = [NO_NAME if head_type.name == NONE else head_type.name]
            if head_type.offset:
                words.append(head_type.label)
            if first >= SHOWN_FIRST and head_type.name not in (FIRST, NONE):
                words.append(f"rests {first:.0%}")
            print(f"{name}  {', '.join(words)}")
    if ablation and "loss_change" in ablation.metrics:
        print_ablation(ablation)
    if ablation and "gradient_importance" in ablation.metrics:
        print_gradients(ablation)
    if patching:
        print_patching(patching)
    if shown < tokens:
        limit = f"the first {shown} of {tokens} tokens"
        note(f"attention.html has {limit}: a larger page would be slow")
    if "induction" not in record.metrics:
        reason = "with this vocabulary or block_size: see docs/glossary.md"
        note(f"Induction is not measurable {reason}")
    note(f"Names and metrics are measured on {record.windows} x {record.tokens} tokens")


def print_deciders(deciders: Sequence[Decider]) -> None:
    first, *_ = heads = deciding_heads(deciders)
    print(
        f"after the text, {printable(first['token'])} has the probability "
        f"{first['probability']:.4f}; with one head at its mean, this changes most to"
    )
    for row in heads:
        print(f"{row['part']}  {row['without']:.4f}")


def print_ablation(result: AblationResult) -> None:
    print(
        f"most important heads: change of the loss with the head replaced by {result.replace_by} "
        f"({result.loss:.4f} nats per token with all heads), and the largest induction of others"
    )
    for head in per_head(result.metrics).nlargest(LISTED, "loss_change").itertuples():
        values = f"{head.loss_change:+.4f} ± {head.loss_change_error:.4f}"
        others = getattr(head, "other_induction", math.nan)  # not measured on very short texts
        print(f"L{head.layer}H{head.head}  {values}  {others:.2f}")


def print_gradients(result: AblationResult) -> None:
    print(
        "most important heads by their gradients: importance, and the estimated change of the loss "
        f"with the head replaced by {result.replace_by} (nats per token)"
    )
    for head in per_head(result.metrics).nlargest(LISTED, "gradient_importance").itertuples():
        values = f"{head.gradient_importance:.4f}  {head.loss_change_estimate:+.4f}"
        print(f"L{head.layer}H{head.head}  {values}")
    importance, change = result.correlations.values()
    if math.isfinite(importance + change):
        both = f"importance {importance:.2f}, estimated change {change:.2f}"
        print(f"correlation with the measured change, over all heads: {both}")


def print_patching(patching: PatchedTexts) -> None:
    result = patching.result
    print(
        f"activation patching: {printable(patching.metric)} is {result.clean:.4f} on the clean "
        f"text and {result.corrupted:.4f} on the corrupted text"
    )
    print("denoising: heads that restore most of this difference (0: nothing, 1: all of it)")
    for head in patching_table(result).nlargest(LISTED, "denoising").itertuples():
        print(f"L{head.layer}H{head.head}  {head.denoising:.2f}")
    print("noising: heads that leave least of this difference (1: all of it, 0: nothing)")
    for head in patching_table(result).nsmallest(LISTED, "noising").itertuples():
        print(f"L{head.layer}H{head.head}  {head.noising:.2f}")
