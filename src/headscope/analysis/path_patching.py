"""Path patching (Wang 2022, section 3.1): changes what one head, the receiver, reads from one
earlier head, the sender, and nothing else that it reads.

Shapes: N texts, L layers, H heads, D head_dim, T tokens, C embed_dim.

The path leads from the output of the sender to the queries, keys or values of the receiver, through
the residual stream and the feed-forward networks between them. The heads between them keep their
outputs. All layers after the receiver are computed again.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.circuits import KINDS, compositions, random_composition
from headscope.analysis.head_outputs import Head, head_outputs, output_matrices, replaced_heads
from headscope.analysis.rows import DataFrame, data_frame
from headscope.nn import GPT
from headscope.nn.capture import capture, evaluating

Measure = Callable[[Tensor, Tensor], float]
"""Maps the receiver's weights (N, T, T) and the last block's output (N, T, C) to a number."""

WAYS = (*KINDS, "all")
"""The ends of a path: the queries, keys or values of the receiver, or all three."""


@torch.no_grad()
def patch_paths(
    model: GPT, tokens: Tensor, receiver: Head, measure: Measure, other: Tensor | None = None
) -> tuple[float, dict[str, Tensor]]:
    """Changes the paths from each earlier head to `receiver`, one of WAYS at a time, and measures
    the effect on the texts, tokens (N, T). On a path, the output of the sender is replaced by its
    output on the texts `other` (N, T), by default by zeros. Returns the measured number without a
    change and, for each way, the numbers (L', H) for the senders in the L' earlier layers."""
    layer, head = receiver
    with evaluating(model):
        clean = capture(model, tokens)
        new = None if other is None else head_outputs(model, other)
        mask = model.document_mask(tokens)
        block = model.blocks[layer]
        normal = block.attention_norm(clean.residual[layer])

        def measured(*inputs: Tensor) -> float:
            computed = block.attention.compute_heads(*inputs, position=model.position, mask=mask)
            outputs = computed.outputs.unflatten(-1, (block.attention.heads, -1))[..., head, :]
            assert computed.weights is not None  # the explicit path returns them
            with replaced_heads(block.attention, head, outputs):
                x = block(clean.residual[layer], model.position, mask=mask)
            for later in model.blocks[layer + 1 :]:
                x = later(x, model.position, mask=mask)
            return measure(computed.weights[:, head], x)

        after = {way: torch.zeros(layer, block.attention.heads) for way in WAYS}
        for early in range(layer):
            for sender in range(block.attention.heads):
                change = -clean.outputs[early][:, :, sender]  # (N, T, D)
                if new is not None:
                    change = change + new[early][:, :, sender]
                change = change @ output_matrices(model.attentions[early])[sender].mT
                x = clean.residual[early] + change
                for between in range(early, layer):  # attention keeps its outputs there
                    x = model.blocks[between].feed(x + clean.attended[between])
                read = block.attention_norm(x)
                for way in WAYS:
                    inputs = (read if way in (kind, "all") else normal for kind in KINDS)
                    after[way][early, sender] = measured(*inputs)
        return measured(normal, normal, normal), after


def needs(
    model: GPT, tokens: Tensor, receiver: Head, measure: Measure, other: Tensor | None = None
) -> DataFrame:
    """What `receiver` needs from each earlier head: a row with these entries, the row with the
    largest absolute value of `all_paths` first.

    - `head`: the name of the earlier head.
    - `q_composition`, `k_composition`, `v_composition`: how strongly `receiver` reads it by its
      weights, and `random_composition`: the value for random matrices.
    - `q_path`, `k_path`, `v_path`, `all_paths`: the change of the measured number (`patch_paths`).
    """
    before, after = patch_paths(model, tokens, receiver, measure, other)
    names = [f"L{early}H{sender}" for early, sender in np.ndindex(after["all"].shape)]
    columns: dict[str, Any] = {"head": names}
    for kind, composed in compositions(model).items():
        columns[f"{kind}_composition"] = composed[*receiver][: receiver[0]].flatten().tolist()
    columns["random_composition"] = random_composition(model)
    for way, values in after.items():
        name = "all_paths" if way == "all" else f"{way}_path"
        columns[name] = (values.double() - before).flatten().tolist()
    return data_frame(columns).sort_values("all_paths", key=abs, ascending=False, ignore_index=True)
