"""What a text does to a model.

Shapes: B batch, L layers, H heads, D head_dim, T tokens, C embed_dim, V vocab_size.

The residual stream is a sum: each attention layer adds the outputs of its heads and perhaps a bias,
and each feed-forward network adds its output (Elhage 2021).
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.analysis import predictions
from headscope.analysis.circuits import copying_scores, has_matrices
from headscope.analysis.direct_effects import HeadWrites, attribution, norm_scale, push_directions
from headscope.analysis.head_outputs import output_bias, output_matrices, parse_head
from headscope.analysis.head_statistics import HeadStatistics, measure_heads, repeat_probe
from headscope.analysis.repeats import BATCH_SIZE
from headscope.analysis.report.page import page_of, shown_tokens
from headscope.analysis.snapshots import snapshot_of
from headscope.analysis.tokens import classify_vocabulary
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.files import write_atomically
from headscope.nn import GPT
from headscope.nn.capture import ForwardPass, capture
from headscope.nn.checks import check_finite
from headscope.nn.loss import IGNORED, Answers, counted_targets, next_token_loss
from headscope.viewer.snapshot import LISTED, Predictions

NOTEBOOK_BYTES = 2 * 2**20
"""Like `page.MAX_BYTES`, for a page in a notebook: the notebook's file contains every page that it
shows."""

FRAME = (
    '<iframe sandbox="allow-scripts" title="Attention viewer" srcdoc="{page}" style="width: 100%; '
    'height: 720px; border: 0; border-radius: 12px">The attention viewer is not shown: trust this '
    "notebook, or run the cell.</iframe>"
)
"""The frame of the page in a notebook. Its scripts cannot reach the notebook. A program that
removes frames, for example from a notebook that is not trusted, leaves the sentence."""


class Reading:
    """One forward pass of a model on a text of T tokens, and everything that follows from it. For
    several texts of T tokens, every tensor has a first axis B. The tensors are on the device of the
    model. A part is computed when it is first asked for.

    - `tokens` (T,): the token ids; `labels`: a readable text for each of them.
    - `logits` (T, V) and `losses` (T - 1,): the loss of each token after the first one, in nats.
    - `attention` (L, H, T, T): the attention weights; `scores` (L, H, T, T): those before the
      causal mask and the softmax, scaled, and with the bias of the position encoding.
    - `residual` (L + 1, T, C): the input of each block, and the output of the last block.
    - `heads` (L, H, T, C): what each head adds to the residual stream.
    - `feed_forward` (L, T, C): what each feed-forward network adds, zero if there is none.
    - `rest` (L, T, C): the biases of the output projections, zero if there are none.
    - `statistics`: the metrics and names of all heads on this text, measured when it is asked for.

    With `gradients`, every tensor is part of PyTorch's graph, and gradients reach the weights.

    As the last line of a notebook's cell, a reading is shown as the attention viewer.
    """

    def __init__(
        self,
        model: GPT,
        tokens: Sequence[int] | Tensor,
        tokenizer: Tokenizer,
        *,
        answers: Answers | None = None,
        begun: bool = True,
        step: int = 0,
        name: str = "",
        gradients: bool = False,
    ) -> None:
        """Runs the model on tokens (T,) or (B, T), without dropout. Heads that are switched off now
        are off in the whole reading. The mean loss counts `answers` (see `counted_targets`). `step`
        and `name` are those of the run. Raises UserError for more than `block_size` tokens."""
        self.model, self.tokenizer = model, tokenizer
        self.answers, self.begun, self.step, self.name = answers, begun, step, name
        self.tokens = torch.as_tensor(tokens, device=model.device)
        batch = self.tokens if self.tokens.dim() == 2 else self.tokens[None]
        self.gradients = gradients
        self.forward_pass: ForwardPass = capture(model, batch, gradients=gradients)

    def __repr__(self) -> str:
        layers, heads = len(self.model.attentions), self.model.attentions[0].heads
        return f"<Reading: {layers} layers, {heads} heads each, {self.tokens.size(-1)} tokens>"

    @property
    def nbytes(self) -> int:
        """The memory of the forward pass, in bytes."""
        return sum(each.nbytes for layers in vars(self.forward_pass).values() for each in layers)

    def _stacked(self, layers: Sequence[Tensor]) -> Tensor:
        """The tensors (B, ...) of all layers as one (B, L, ...), without B for a single text."""
        stacked = torch.stack([*layers], dim=1)
        return stacked if self.tokens.dim() == 2 else stacked[0]

    def _check_single(self) -> None:
        if self.tokens.dim() > 1:
            raise UserError("the reading has several texts, and this needs one: read it alone")

    @cached_property
    def labels(self) -> list[str]:
        self._check_single()
        return self.tokenizer.labels(self.tokens.tolist())

    @cached_property
    def attention(self) -> Tensor:
        return self._stacked(self.forward_pass.weights)

    @cached_property
    def scores(self) -> Tensor:
        model, batch = self.model, self.tokens.view(-1, self.tokens.size(-1))
        options: Any = {"position": model.position, "mask": model.document_mask(batch)}
        with torch.set_grad_enabled(self.gradients):
            found = [
                block.attention.compute_heads(block.attention_norm(x), **options).scores
                for block, x in zip(model.blocks, self.forward_pass.residual, strict=False)
            ]
            return self._stacked(found)

    @cached_property
    def residual(self) -> Tensor:
        return self._stacked(self.forward_pass.residual)

    @cached_property
    def feed_forward(self) -> Tensor:
        return self._stacked(self.forward_pass.fed)

    @cached_property
    def heads(self) -> Tensor:
        return self.heads_at(slice(None))

    def heads_at(self, positions: int | slice | Tensor) -> Tensor:
        """`heads` at some positions only, (L, H, C) for one and (L, H, N, C) for N."""
        with torch.set_grad_enabled(self.gradients):
            added = [
                torch.einsum("b...hd,hcd->bh...c", outputs[:, positions], output_matrices(layer))
                for layer, outputs in zip(
                    self.model.attentions, self.forward_pass.outputs, strict=True
                )
            ]
            return self._stacked(added)

    @cached_property
    def rest(self) -> Tensor:
        pairs = zip(self.model.attentions, self.forward_pass.attended, strict=True)
        with torch.set_grad_enabled(self.gradients):
            return self._stacked([output_bias(layer).expand_as(x) for layer, x in pairs])

    @cached_property
    def logits(self) -> Tensor:
        with torch.set_grad_enabled(self.gradients):
            return self.model.unembed(self.residual[..., -1, :, :])

    @property
    def lens(self) -> Tensor:
        """The logit lens (nostalgebraist 2020): the logits (L + 1, T, V) that the final norm and
        the output head compute from each part of `residual`. The last ones are `logits`."""
        with torch.set_grad_enabled(self.gradients):
            return self.model.unembed(self.residual)

    @cached_property
    def losses(self) -> Tensor:
        """Raises UserError if one is NaN or infinite."""
        with torch.set_grad_enabled(self.gradients):
            logits = self.model.unembed(self.residual[..., -1, :-1, :])
            losses = next_token_loss(logits, self.tokens[..., 1:], reduction="none")
        check_finite(losses)
        return losses.view_as(self.tokens[..., 1:])

    def loss(self, length: int | None = None) -> float | None:
        """The mean of the `losses` that the run counts, of the first `length` tokens. None if it
        counts none."""
        tokens = self.tokens[..., :length]
        before, after = tokens[..., :-1], tokens[..., 1:]
        counted = counted_targets(before, after, self.answers, begun=self.begun) != IGNORED
        losses = self.losses.detach()[..., : after.size(-1)][counted]
        return float(losses.mean()) if counted.any() else None

    def gradient(self, value: Tensor, part: str) -> Tensor:
        """The gradient of the number `value`, such as one of the `logits`, with respect to
        `residual`, `heads` or `feed_forward`. It has the shape of this part. Needs a reading with
        `gradients`."""
        found = self.forward_pass
        layers = {
            "residual": found.residual,
            "heads": found.attended,
            "feed_forward": found.residual[1:],  # to which it is added last
        }
        gradients = torch.autograd.grad(
            value, layers[part], retain_graph=True, materialize_grads=True
        )
        if part == "heads":  # all heads of a layer are added to the same sum
            heads = self.model.attentions[0].heads
            gradients = tuple(each[:, None].expand(-1, heads, -1, -1) for each in gradients)
        return self._stacked(gradients)

    @cached_property
    def statistics(self) -> HeadStatistics:
        """The metrics of induction are measured on one batch of repeated random texts. A single
        text is too short to name heads frequent-token or rare-token."""
        kinds = classify_vocabulary(self.tokenizer)
        repeats = repeat_probe(self.model, kinds, BATCH_SIZE)
        windows = self.tokens.view(-1, self.tokens.size(-1)).cpu()
        return measure_heads(self.model, windows, source="this text", kinds=kinds, repeats=repeats)

    # ---- What the parts say about one token ------------------------------------------------------

    @torch.no_grad()
    def attribution(self, position: int = -1, token: str | int | None = None) -> dict[str, float]:
        """Direct logit attribution (Elhage 2021): the share of each part of the model in the logit
        of `token` after the token at `position`, before a soft cap. The shares add up to it. The
        default token is the most likely one. `headscope.analysis.direct_effects.attribution`
        explains the parts. Raises UserError if there is no such position or token."""
        position = self.position(position)
        number = self._most_likely(position) if token is None else self._token(token)
        return {name: float(each) for name, each in attribution(self, position, number).items()}

    @torch.no_grad()
    def writes(self, head: str, position: int = -1, *, count: int = 10) -> HeadWrites:
        """What a head, such as "L1H2", writes at the token at `position`: the `count` tokens whose
        logits it raises and lowers most. Raises UserError if there is no such head or position."""
        layer, number = parse_head(head, self.model)
        position = self.position(position)
        scale = norm_scale(self.model.norm, self.residual[-1, position])
        every = torch.arange(self.model.vocab_size, device=self.model.device)
        written = self.heads_at(position)[layer, number]
        pushes = push_directions(self.model, every) @ (written * scale)

        def listed(values: Tensor, sign: int) -> list[tuple[str, float]]:
            most, tokens = values.topk(min(count, len(values)))
            pairs = zip(tokens.tolist(), most.tolist(), strict=True)
            return [(self.tokenizer.label(token), sign * value) for token, value in pairs]

        known = pushes[: self.tokenizer.vocab_size]
        has_score = has_matrices(self.model)
        copying = float(copying_scores(self.model)[layer, number]) if has_score else math.nan
        return HeadWrites(listed(known, 1), listed(-known, -1), copying)

    def predictions(
        self, targets: Mapping[int, int] | None = None, *, count: int = LISTED, **options: Any
    ) -> Predictions:
        """What the model predicts, layer by layer, at the positions `targets`, and what each head
        adds to the logits of the tokens that `targets` gives for them. By default, these are all
        positions and the tokens that follow, and for the last one the most likely token. See
        `headscope.analysis.predictions`. Raises UserError if a logit is not finite."""
        self._check_single()
        targets = self.targets() if targets is None else targets
        return predictions.predict(self, targets, count=count, **options)

    def targets(self, length: int | None = None) -> dict[int, int]:
        """For each of the first `length` positions the token that follows, and for the last of
        them the most likely token."""
        length = length or len(self.tokens)
        following = [*self.tokens[1:length].tolist(), self._most_likely(length - 1)]
        return dict(enumerate(following))

    def position(self, position: int) -> int:
        """A position counted from 0. A negative one is counted from the end. Raises UserError if
        there is no such position."""
        self._check_single()
        length = len(self.tokens)
        if not -length <= position < length:
            raise UserError(
                f"position={position}: the text has {length} tokens; the last one is -1"
            )
        return position % length

    def _most_likely(self, position: int) -> int:
        with torch.no_grad():
            return int(self.model.unembed(self.residual[-1, position : position + 1]).argmax())

    def _token(self, token: str | int) -> int:
        """The id of a token, given as a text that is one token, or as an id."""
        tokens = self.tokenizer.tokens_of(token if isinstance(token, str) else [token])
        if len(tokens) != 1:
            raise UserError(
                f"token={token!r} has {len(tokens)} tokens and must have one: a space before a "
                "word is often a part of its token"
            )
        return tokens[0]

    # ---- Other programs --------------------------------------------------------------------------

    def to_bertviz(self) -> tuple[tuple[Tensor, ...], list[str]]:
        """The arguments `attention` and `tokens` of BertViz's `head_view` and `model_view`: the
        weights (1, H, T, T) of each layer, and the labels of the tokens."""
        return tuple(self.attention[:, None].cpu().unbind()), list(self.labels)

    def save_html(self, path: str | Path) -> None:
        """Writes the attention viewer with this text as a single file, which a browser opens
        without a network. An existing file is replaced. A long text is shortened to the tokens
        that fit in the page, and the page says so.

        Raises UserError if the file cannot be written, or if the weights are not causal attention
        weights whose rows sum to one.
        """
        path = Path(path)
        if path.is_dir():
            raise UserError(f"{path} is a folder: give the name of a file, such as attention.html")
        write_atomically(path, self._page())

    def _repr_html_(self) -> str:
        """What a notebook shows: the viewer, or the reason why these weights cannot be shown."""
        try:
            return FRAME.format(page=escape(self._page(NOTEBOOK_BYTES)))
        except UserError as error:
            return f"<pre>{escape(f'{self!r}: {error}')}</pre>"

    def _page(self, max_bytes: int | None = None) -> str:
        self._check_single()
        shown = shown_tokens(self, 1, max_bytes)
        return page_of(self, [snapshot_of(self, self.statistics, shown=shown)], [self.loss(shown)])
