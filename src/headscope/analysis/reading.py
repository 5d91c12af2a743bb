"""What a text does to a model, and what that means: metrics, predictions, and a page.

Shapes: L layers, H heads, T tokens, V vocab_size.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from headscope.analysis.ablation import By, Decider, parts_of, without_parts
from headscope.analysis.activations import Activations, predict
from headscope.analysis.circuits import copying_scores, has_matrices
from headscope.analysis.direct_effects import HeadWrites, fold_norm, norm_scale
from headscope.analysis.head_outputs import parse_head
from headscope.analysis.head_statistics import measure_heads, repeat_probe
from headscope.analysis.record import HeadRecord
from headscope.analysis.repeats import BATCH_SIZE
from headscope.analysis.rows import DataFrame, data_frame, per_head
from headscope.analysis.snapshot import LISTED, Predictions, Snapshot, snapshot
from headscope.analysis.tokens import classify_vocabulary
from headscope.analysis.why import Why, why
from headscope.errors import UserError
from headscope.files import write_atomically

NOTEBOOK_BYTES = 2 * 2**20
"""Like `page.MAX_BYTES`, for pages in a notebook, whose file contains all that it shows."""

FRAME = (
    '<iframe sandbox="allow-scripts" title="Attention viewer" srcdoc="{page}" style="width: 100%; '
    'height: 720px; border: 0; border-radius: 12px">The attention viewer is not shown: trust this '
    "notebook, or run the cell.</iframe>"
)
"""The frame of the page in a notebook. Its scripts cannot reach the notebook. A program that
removes frames, for example from a notebook that is not trusted, leaves the sentence."""


class Reading(Activations):
    """Everything that a text does to a model: the `Activations`, and what follows from them. As the
    last line of a notebook's cell, a reading is shown as the attention viewer."""

    recorded: Callable[..., HeadRecord] | None = None
    """Returns the record of the heads that a `TrainedModel` has (see `TrainedModel.record`)."""

    def record(self, **options: Any) -> HeadRecord:
        """The record of the heads, which a page shows. Without a `TrainedModel`, or without a text
        on which its heads can be measured, that of the `statistics` of this text. Raises UserError
        if `options` are given, those of `TrainedModel.record`, and they cannot be followed."""
        if self.recorded:
            try:
                return self.recorded(**options)
            except UserError:
                if options:
                    raise
        return self.statistics

    @cached_property
    def statistics(self) -> HeadRecord:
        """The metrics of all heads on this text, measured when they are first asked for. Those of
        induction are measured on one batch of repeated random texts."""
        kinds = classify_vocabulary(self.tokenizer)
        repeats = repeat_probe(self.model, kinds, BATCH_SIZE)
        windows = self.tokens.view(-1, self.tokens.size(-1)).cpu()
        options: Any = {"source": "this text", "kinds": kinds, "repeats": repeats}
        return measure_heads(self.model, windows, step=self.step, **options)

    def table(self) -> DataFrame:
        """The metrics of all heads on this text (see `statistics`): a row for each head and metric,
        with the columns layer, head, metric and value."""
        return per_head(self.statistics.metrics).melt(["layer", "head"], var_name="metric")

    @property
    def lens(self) -> Tensor:
        """The logit lens (nostalgebraist 2020): the logits (L + 1, T, V) that the final norm and
        the output head compute from `residual` before each layer and after the last one."""
        with torch.set_grad_enabled(self.gradients):
            return self.model.unembed(self.residual)

    def gradient(self, value: Tensor, part: str) -> Tensor:
        """The gradient of the number `value`, such as one of the `logits`, with respect to `part`:
        "residual", "heads" or "feed_forward". It has the shape of this tensor. Needs a reading with
        `gradients`. Raises UserError without them, or for another `part`."""
        residual = self.forward_pass.residual
        layers = {
            "residual": residual,
            "heads": self.forward_pass.attended,
            "feed_forward": residual[1:],  # each network is the last term of the block's output
        }
        if part not in layers or not self.gradients:
            problem = f"part={part!r}, gradients={self.gradients}"
            raise UserError(f"{problem}: read with gradients=True, and name {', '.join(layers)}")
        found = torch.autograd.grad(value, layers[part], retain_graph=True, materialize_grads=True)
        if part == "heads":  # all heads of a layer are added to the same sum
            heads = self.model.attentions[0].heads
            found = tuple(of_sum[:, None].expand(-1, heads, -1, -1) for of_sum in found)
        return self._stacked(found)

    @torch.no_grad()
    def attribution(self, position: int = -1, token: str | int | None = None) -> dict[str, float]:
        """Direct logit attribution (Elhage 2021): the share of each term of the residual stream in
        the logit of `token` after the token at `position`, before a soft cap. The shares add up to
        this logit. The default token is the most likely one.

        The terms are those of `terms`, and `final norm bias` if there is one. Raises
        UserError if there is no such position or token."""
        model, position = self.model, self.position(position)
        wanted = self._most_likely(position) if token is None else self.tokenizer.only_token(token)
        terms = self.terms(len(model.blocks), position)
        weight = model.head.weight[wanted]
        scale = norm_scale(model.norm, self.residual[-1, position])
        direction = fold_norm(model.norm, weight) * scale
        shares = {name: term @ direction for name, term in terms.items()}
        bias = getattr(model.norm, "bias", None)
        if bias is not None:
            shares["final norm bias"] = bias @ weight
        return {name: float(share) for name, share in shares.items()}

    def why(self, head: str, query: int | None = None, key: int | None = None) -> Why:
        """Why a head, such as "L1H2", looks from the token at `query` to the one at `key`: its
        score as a sum over what both tokens read (see `Why`). By default, the key is the one with
        the largest weight. Without a query, which pairs make the scores on this text differ.

        Raises UserError if there is no such head or position, if the query does not see the key, or
        if the scores of the attention are not such a sum."""
        self._check_single()
        return why(self, head, query, key)

    def deciders(
        self, position: int = -1, token: str | int | None = None, *, by: By = "mean"
    ) -> DataFrame:
        """What decides that `token` follows the token at `position`: for each head and each
        feed-forward network (`part`), the `probability` of the token, and that `without` the part,
        whose output is replaced by its mean over the text or by zero. The part without which the
        token is least likely comes first. The default token is the most likely one.

        Raises UserError if there is no such position or token, or for another `by`."""
        rows = chain.from_iterable(self.deciders_so_far(position, token, by=by))
        return data_frame(sorted(rows, key=lambda row: row["without"]))

    def deciders_so_far(
        self, position: int = -1, token: str | int | None = None, *, by: By = "mean"
    ) -> Iterator[list[Decider]]:
        """Yields the `deciders` while they are measured, some at a time, or none. The parts that
        add most to the logit of the token directly, with either sign, come first."""
        if by not in get_args(By):
            raise UserError(f"by={by!r}: choose mean or zero")
        position = self.position(position)
        wanted = self._most_likely(position) if token is None else self.tokenizer.only_token(token)
        label, tokens = self.tokenizer.label(wanted), self.tokens[None]
        with torch.no_grad():
            direct = self._direct(position, wanted)
        parts = sorted(parts_of(self.model), key=lambda part: -abs(direct[part]))
        options: Any = (position, wanted, by)
        for rows in without_parts(self.model, tokens, self.forward_pass, parts, *options):
            yield [{"token": label, **row} for row in rows]

    def _direct(self, position: int, token: int) -> dict[str, float]:
        """What each term of the residual stream adds to the logit of a token directly, minus its
        mean over the vocabulary."""
        model, weight = self.model, self.model.head.weight
        scale = norm_scale(model.norm, self.residual[-1, position])
        direction = fold_norm(model.norm, weight[token] - weight.mean(dim=0)) * scale
        terms = self.terms(len(model.blocks), position)
        return {name: float(term @ direction) for name, term in terms.items()}

    @torch.no_grad()
    def writes(self, head: str, position: int = -1, *, count: int = 10) -> HeadWrites:
        """What a head, such as "L1H2", writes at the token at `position`: the `count` tokens whose
        logits it raises and lowers most. Raises UserError if there is no such head or position."""
        layer, number = parse_head(head, self.model)
        position = self.position(position)
        pushes = self.pushes(self.heads_at(position)[layer, number], position)
        raised, lowered = (self.most_pushed(pushes, count, sign) for sign in (1, -1))
        has_score = has_matrices(self.model)
        copying = float(copying_scores(self.model)[layer, number]) if has_score else math.nan
        return HeadWrites(raised, lowered, copying)

    def predictions(
        self, targets: Mapping[int, int] | None = None, *, count: int = LISTED, **options: Any
    ) -> Predictions:
        """What the model predicts, layer by layer, and what each head adds to the logits of some
        tokens (see `headscope.analysis.activations.predict`). `targets` maps positions to these
        tokens, by default all positions to the token that follows, and the last one to the most
        likely token. Raises UserError if a logit is not finite."""
        self._check_single()
        targets = self.targets() if targets is None else targets
        return predict(self, targets, count=count, **options)

    def snapshot(
        self,
        record: HeadRecord,
        length: int | None = None,
        *,
        more_metrics: Mapping[str, Tensor] | None = None,
        switched: Sequence[str] = (),
    ) -> Snapshot:
        """The first `length` tokens for the pages, by default all of them. `more_metrics` (L, H)
        are metrics that `record` lacks, and `switched` the heads that are switched off."""
        header = self.header(length) | record.header(more_metrics) | {"switched": [*switched]}
        predictions = predict(self, self.targets(length))
        return snapshot(header, self.weights(length), predictions, self.tokenizer.label)

    def to_bertviz(self) -> tuple[tuple[Tensor, ...], list[str]]:
        """The arguments `attention` and `tokens` of BertViz's `head_view` and `model_view`: the
        weights (1, H, T, T) of each layer, and the labels of the tokens."""
        return tuple(self.attention[:, None].cpu().unbind()), list(self.labels)

    def save_html(self, path: str | Path) -> None:
        """Writes the attention viewer with this text as a single file, which a browser opens
        without a network. An existing file is replaced. Of a long text, the page shows only as many
        tokens as its size allows, and says so.

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
        from headscope.show.reading_page import page_of, shown_tokens

        self._check_single()
        shown = shown_tokens(self, 1, max_bytes)
        return page_of(self, [self.snapshot(self.record(), shown)], [self.loss(shown)])
