"""Which heads and feed-forward networks decide a prediction. *Deciders* is our word for what papers
call the total effect of each part on one text, by mean ablation or zero ablation (Vig 2020): a part
is switched off alone, and all layers after it are computed again.

`direct_effects` has the part of this effect that no later layer passes on.

Shapes: H heads, D head_dim, T tokens, C embed_dim, N parts of the model.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from headscope.analysis.head_outputs import replaced_heads
from headscope.nn import GPT
from headscope.nn.capture import ForwardPass, evaluating

By = Literal["mean", "zero"]
"""What replaces the output of a part that is switched off: its mean over the text, or zero."""

Decider = dict[str, Any]
"""A part of the model, and the probability of a token with and without it: `part`, such as L0H1 or
"L0 feed-forward", `probability` and `without`. A reading adds the label of the `token`."""


@torch.no_grad()
def without_parts(
    model: GPT,
    tokens: Tensor,
    forward_pass: ForwardPass,
    position: int,
    token: int,
    by: By = "mean",
) -> Iterator[list[Decider]]:
    """Switches off each part of a model alone, on one text, tokens (1, T), whose forward pass is
    given. Yields, by layer, the probability of `token` after `position`, with and without each."""
    mask = model.document_mask(tokens)

    def run(block: torch.nn.Module, x: Tensor) -> Tensor:
        masks = None if mask is None else mask.expand(len(x), -1, -1, -1)
        return block(x, model.position, mask=masks)

    def probabilities(x: Tensor) -> list[float]:
        logits = model.unembed(x[:, position : position + 1])[:, 0]
        return logits.cpu().double().softmax(dim=-1)[:, token].tolist()

    [probability] = probabilities(forward_pass.residual[-1])
    for layer, block in enumerate(model.blocks):
        outputs, fed = forward_pass.outputs[layer][0], forward_pass.fed[layer]
        heads = torch.arange(block.attention.heads, device=tokens.device)
        new, new_fed = torch.zeros_like(outputs[0]), torch.zeros_like(fed)  # (H, D), (1, T, C)
        if by == "mean":
            new, new_fed = outputs.mean(dim=0), fed.mean(dim=1, keepdim=True)
        parts = [f"L{layer}H{head}" for head in heads.tolist()]
        with evaluating(model):
            with replaced_heads(block.attention, heads, new[:, None]):
                x = run(block, forward_pass.residual[layer].expand(len(heads), -1, -1))
            if block.feed_forward is not None:
                parts.append(f"L{layer} feed-forward")
                attended = forward_pass.residual[layer] + forward_pass.attended[layer]
                x = torch.cat([x, attended + new_fed])  # (N, T, C)
            for later in model.blocks[layer + 1 :]:
                x = run(later, x)
        yield [
            {"part": part, "probability": probability, "without": without}
            for part, without in zip(parts, probabilities(x), strict=True)
        ]
