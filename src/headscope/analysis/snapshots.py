"""What a model predicts at some positions of a text, layer by layer and head by head, and the
snapshot of a text for the pages.

Shapes: L layers, H heads, N positions, C embed_dim, V vocab_size, P listed tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headscope.analysis.activations import Activations
from headscope.analysis.direct_effects import fold_into, norm_scale
from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.metrics import colour_scales
from headscope.nn.checks import check_finite
from headscope.nn.precision import multiplies_bf16_fast, upcast_to_float32
from headscope.viewer.snapshot import LISTED, Predictions, Snapshot, json_numbers, snapshot

ROWS = 256
"""Number of rows whose logits are computed at once. They stay in the processor's cache."""
MAX_PRODUCTS = 2**39
"""For all heads on all tokens, at most this many multiplications: about 10 seconds on two cores."""
MORE = 4
"""Number of additional candidates that are found in bfloat16, before their exact order is known."""


@torch.no_grad()
def predict(
    reading: Activations,
    targets: Mapping[int, int],
    *,
    count: int,
    layers: Sequence[int] | None = None,
) -> Predictions:
    """What the model predicts at the positions `targets`, with `count` tokens at each place, and
    what each head adds to the logit of the target at this position. The tokens that heads raise
    most are found in these `layers`, by default in all, or in none if this takes more than
    MAX_PRODUCTS multiplications. Raises UserError if a logit is not finite."""
    model, positions = reading.model, torch.tensor([*targets], device=reading.model.device)
    wanted = torch.tensor([*targets.values()], device=model.device)
    following = torch.cat([reading.tokens[1:], reading.tokens.new_full((1,), -1)])[positions]
    weight = upcast_to_float32(model.head.weight)
    residual, count = reading.residual[:, positions], min(count, model.vocab_size)

    def likely(logits: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        if model.logit_cap is not None:
            logits.div_(model.logit_cap).tanh_().mul_(model.logit_cap)
        log_sum = logits.logsumexp(dim=-1, keepdim=True)
        check_finite(log_sum)
        values, tokens = logits.topk(count)
        of_target = logits.gather(-1, targets[:, None])
        return tokens, (values - log_sum).exp(), (of_target - log_sum).exp()

    def raised(logits: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        candidates = logits.topk(min(count + MORE, model.vocab_size)).indices
        exact = torch.bmm(weight[candidates], rows[..., None])[..., 0]
        values, places = exact.topk(count)
        return candidates.gather(-1, places), values

    normal = upcast_to_float32(model.norm(residual))
    tokens, probabilities, of_target = (
        each.unflatten(0, residual.shape[:2]) for each in in_chunks(normal, weight, wanted, likely)
    )
    parts = upcast_to_float32(norm_scale(model.norm, residual[-1]) * reading.heads_at(positions))
    pushed = upcast_to_float32(fold_into(model.norm, parts))  # (L, H, N, C)
    mean = pushed @ weight.mean(dim=0)
    target_pushes = torch.einsum("lhnc,nc->lhn", pushed, weight[wanted]) - mean
    if layers is None:
        layers = range(len(pushed)) if pushed.numel() * model.vocab_size <= MAX_PRODUCTS else ()
    most = {}
    many = pushed[0].numel() > ROWS * pushed.size(-1)
    rounded = weight.bfloat16() if many and multiplies_bf16_fast(model.device) else weight
    for layer in layers:
        shape = pushed.shape[1:3]
        found = in_chunks(pushed[layer], rounded, wanted, raised)
        listed, values = (each.unflatten(0, shape) for each in found)
        most[layer] = listed.cpu().numpy(), (values - mean[layer, ..., None]).cpu().numpy()
    return Predictions(
        positions=[*targets],
        targets=wanted.cpu().numpy(),
        follows=(following == wanted).cpu().numpy(),
        tokens=tokens.cpu().numpy(),
        probabilities=probabilities.cpu().numpy(),
        target_probabilities=of_target[..., 0].cpu().numpy(),
        target_pushes=target_pushes.cpu().numpy(),
        raised=most,
    )


def in_chunks(
    x: Tensor,
    matrix: Tensor,
    targets: Tensor,
    take: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]],
) -> list[Tensor]:
    """Calls `take` with the logits x W^T of a few rows of x (..., N, C) at a time, with these rows,
    and with the target of each row. Returns the concatenated results. The logits have the dtype of
    the matrix. Their memory is used again for the next rows, because new memory would take as long
    as the product."""
    rows, expanded = x.flatten(0, -2), targets.expand(x.shape[:-1]).flatten()
    memory = matrix.new_empty(min(ROWS, len(rows)), len(matrix))
    taken = [
        take(torch.mm(chunk.to(matrix), matrix.mT, out=memory[: len(chunk)]), chunk, of_chunk)
        for chunk, of_chunk in zip(rows.split(ROWS), expanded.split(ROWS), strict=True)
    ]
    return [torch.cat(parts) for parts in zip(*taken, strict=True)]


def heads_header(
    statistics: HeadStatistics, more_metrics: Mapping[str, Tensor] | None = None
) -> dict[str, Any]:
    """The entries of a header with the names and metrics of all heads. `more_metrics` (L, H) are
    metrics that `statistics` lacks."""
    metrics, types = {**(more_metrics or {}), **statistics.metrics}, statistics.types
    return {
        "measured_tokens": statistics.windows * statistics.tokens,
        "measured_on": statistics.source,
        "names": [head_type.label for head_type in types],
        "uncertain": [int(head_type.uncertain) for head_type in types],
        "scores": json_numbers([head_type.score for head_type in types]),
        "ratios": json_numbers([head_type.ratio for head_type in types]),
        "metrics": {name: json_numbers(each.flatten().tolist()) for name, each in metrics.items()},
    }


def snapshot_of(
    reading: Activations,
    statistics: HeadStatistics,
    *,
    shown: int | None = None,
    text_tokens: int | None = None,
    more_metrics: Mapping[str, Tensor] | None = None,
    switched: Sequence[str] = (),
    targets: Mapping[int, int] | None = None,
    count: int = LISTED,
    exact: Sequence[int] | None = None,
    label_of: Callable[[int], str] | None = None,
) -> Snapshot:
    """The snapshot of the first `shown` tokens of a reading, by default of all. `text_tokens` is
    the number of tokens before the text was shortened, and `switched` the heads that are switched
    off. `targets` and `count` are those of `predict`, `exact` and `label_of` those of `snapshot`.
    """
    tokens = shown or len(reading.tokens)
    ends = colour_scales(statistics.metrics, statistics.tokens)
    header = {
        "step": reading.step,
        "labels": reading.labels[:tokens],
        "text_tokens": text_tokens or len(reading.tokens),
        "losses": json_numbers(reading.losses[: tokens - 1].tolist()),
        "switched": list(switched),
        **heads_header(statistics, more_metrics),
        "uniform": {name: json_numbers([each])[0] for name, each in statistics.uniform.items()},
        "ends": {name: json_numbers(pair) for name, pair in ends.items()},
    }
    found = predict(reading, targets or reading.targets(tokens), count=count, layers=exact)
    return snapshot(
        header,
        reading.attention[..., :tokens, :tokens].detach().float().cpu().numpy(),
        found,
        label_of or reading.tokenizer.label,
        exact,
    )
