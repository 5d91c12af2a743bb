"""Metrics of the user: functions of the attention weights of one text and of its tokens.

Shapes: L layers, H heads per layer, N windows, T tokens.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from headscope.analysis.circuits import WEIGHT_METRICS
from headscope.analysis.headers import MAX_TEXT
from headscope.analysis.metrics import METRICS
from headscope.analysis.repeats import REPEAT_METRICS
from headscope.config.parts import Part, build_part
from headscope.errors import UserError, short

HeadMetric = Callable[[Tensor, Tensor], Tensor]
"""Maps the attention weights (L, H, T, T) of one text and its token ids (T,), both on the model's
device, to one number per head, (L, H). The first line of its docstring describes it."""

COLUMNS = (
    *("layer", "head", "type", "step", "run", "role", "name", "seed", "metric", "value"),
    "measured_tokens",
)
"""The columns of tables that are no metrics."""
OTHERS = """same_token punctuation frequent cosine_similarity jensen_shannon uniqueness diversity
loss_change loss_change_error loss_change_estimate bits_per_byte_change other_induction denoising
noising gradient_importance fixed_offset offset direct_effect difference next_difference
random_difference"""
OURS = (*METRICS, *REPEAT_METRICS, *WEIGHT_METRICS, *COLUMNS, *OTHERS.split())
"""Names that a metric of the user may not have."""


def own_metrics(given: Mapping[str, HeadMetric | Part] | None) -> dict[str, HeadMetric]:
    """The metrics of the user, with all parts built. Raises UserError for a name of headscope's, or
    one that cannot be a column or a tag."""
    given = {} if given is None else given
    values = given.values() if isinstance(given, Mapping) else [None]
    if not all(callable(each) or isinstance(each, Part) for each in values):
        raise UserError(f"metrics={given!r}: give functions by name, such as {{'mine': mine}}")
    for name in given:
        if name in OURS or name.startswith("uniform_"):
            raise UserError(f"metrics.{name}: headscope uses this name: choose another one")
        if not (name.isidentifier() and name.isascii() and len(name) <= MAX_TEXT):
            advice = "use letters, digits and _, such as my_metric"
            raise UserError(f"metrics.{short(name)} is no name of a metric: {advice}")
    return {
        name: build_part(metric, "metrics", f"metrics.{name}")
        if isinstance(metric, Part)
        else metric
        for name, metric in given.items()
    }


def description(metric: HeadMetric) -> str:
    """The first line of its docstring, or "". A part with keys is a `partial` of its function. Half
    of a surrogate pair, which UTF-8 cannot encode, becomes a question mark."""
    text = getattr(metric, "func", metric).__doc__ or ""
    return text.strip().partition("\n")[0][:MAX_TEXT].encode(errors="replace").decode()


@torch.no_grad()
def own_sums(own: Mapping[str, HeadMetric], weights: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """The sum (L, H) of each metric over N windows with these weights (L, N, H, T, T) and tokens
    (N, T). A metric gets copies, so it cannot change what is measured after it. Raises UserError if
    a metric does not return one finite number per head."""
    layers, _, heads, *_ = weights.shape
    sums = {name: torch.zeros(layers, heads) for name in own}
    for name, metric in own.items():
        for window, ids in enumerate(tokens):
            values = metric(weights[:, window].to(torch.float32, copy=True), ids.clone())
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            if shape != (layers, heads):
                advice = f"return {layers, heads}, a number for each layer and head"
                raise UserError(f"metrics.{name} returns {shape}: {advice}")
            if not values.isfinite().all():
                advice = "return a finite one, also for uniform attention"
                raise UserError(f"metrics.{name} returns a number that is not finite: {advice}")
            sums[name] += values.float().cpu()
    return sums
