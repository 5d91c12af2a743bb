"""What a forward pass computes on a text, and what the model predicts, by layers and heads.

Shapes: B batch, L layers, H heads, D head_dim, T tokens, C embed_dim, V vocab_size, N positions.

The residual stream is a sum: each attention layer adds the outputs of its heads and perhaps a bias,
and each feed-forward network adds its output (Elhage 2021).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headscope.analysis.direct_effects import fold_into, norm_scale, push_directions
from headscope.analysis.head_outputs import output_bias, output_matrices
from headscope.analysis.snapshot import LISTED, Floats, Predictions, json_numbers
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError, whole_number
from headscope.nn import GPT, Position
from headscope.nn.capture import ForwardPass, capture, copy_with_hooks
from headscope.nn.held import held_heads
from headscope.nn.loss import IGNORED, Answers, check_finite, counted_targets, next_token_loss
from headscope.nn.precision import multiplies_bf16_fast, upcast_to_float32

ROWS = 256
"""Number of rows whose logits are computed at once. They stay in the processor's cache."""
MAX_PRODUCTS = 2**39
"""For all heads on all tokens, at most this many multiplications: about 10 seconds on two cores."""
MORE = 4
"""Number of candidates beyond the listed tokens that are searched in bfloat16. Their exact logits,
computed afterwards, decide which are listed."""


def computed_once(compute: Callable[[Any], Tensor]) -> "cached_property[Tensor]":
    """A tensor of `Activations`, which is computed once. It has a graph if `gradients` is true."""

    def tensor(activations: "Activations") -> Tensor:
        with torch.set_grad_enabled(activations.gradients):
            return compute(activations)

    tensor.__doc__ = compute.__doc__
    return cached_property(tensor)


class Activations:
    """What one forward pass of a model computes on a text of T tokens. For several texts of T
    tokens, every tensor has a first axis B. The tensors are on the device of the model. They are
    computed when they are first used, with `model`: a copy from when the text was read, with the
    same weights, in which the same heads are switched off or held.

    - `tokens` (T,): the token ids; `labels`: a readable text for each of them.
    - `logits` (T, V) and `losses` (T - 1,): the loss of each token after the first one, in nats.
    - `attention` (L, H, T, T): the attention weights; `scores` (L, H, T, T): those before the
      causal mask and the softmax, scaled, and with the bias of the position encoding.
    - `residual` (L + 1, T, C): the input of each block, and the output of the last block.
    - `heads` (L, H, T, C): what each head adds to the residual stream.
    - `feed_forward` (L, T, C): what each feed-forward network adds. Zero if there is no network.
    - `rest` (L, T, C): the biases of the output projections. Zero if they have no bias.

    With `gradients`, PyTorch records the graph of every tensor, and gradients reach the weights.
    """

    def __init__(
        self,
        model: GPT,
        tokens: Sequence[int] | Tensor,
        tokenizer: Tokenizer,
        *,
        answers: Answers | None = None,
        begun: bool = True,
        step: int | None = 0,
        name: str = "",
        gradients: bool = False,
    ) -> None:
        """Runs the model on tokens (T,) or (B, T), without dropout. The mean loss counts `answers`
        (see `counted_targets`). `step` and `name` are the run's, if known. Raises UserError for
        more than `block_size` tokens."""
        self.model, self.tokenizer = copy_with_hooks(model), tokenizer
        self.answers, self.begun, self.step, self.name = answers, begun, step, name
        self.tokens = torch.as_tensor(tokens, device=model.device)
        batch = self.tokens if self.tokens.dim() == 2 else self.tokens[None]
        self.gradients = gradients
        self.known_losses = torch.empty(*self.tokens.shape[:-1], 0, device=model.device)
        """The first of `losses`, if a reading of a text with the same beginning computed them."""
        self.forward_pass: ForwardPass = capture(model, batch, gradients=gradients)

    def __repr__(self) -> str:
        layers, heads = len(self.model.attentions), self.model.attentions[0].heads
        tokens = self.tokens.size(-1)
        return f"<{type(self).__name__}: {layers} layers, {heads} heads each, {tokens} tokens>"

    @property
    def nbytes(self) -> int:
        """The memory of the forward pass, in bytes."""
        lists = vars(self.forward_pass).values()
        return sum(tensor.nbytes for layers in lists for tensor in layers)

    def _stacked(self, layers: Iterable[Tensor]) -> Tensor:
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
    def with_text(self) -> Tensor:
        """Which tokens of the model have a text (V,). Lists of raised tokens have only these."""
        lengths = torch.from_numpy(self.tokenizer.byte_lengths()).to(self.model.device)
        return torch.nn.functional.pad(lengths, (0, self.model.vocab_size - len(lengths))) > 0

    attention = computed_once(lambda self: self._stacked(self.forward_pass.weights))
    scores = computed_once(
        lambda self: self._stacked(map(self.scores_of, range(len(self.model.blocks))))
    )
    residual = computed_once(lambda self: self._stacked(self.forward_pass.residual))
    feed_forward = computed_once(lambda self: self._stacked(self.forward_pass.fed))
    heads = computed_once(lambda self: self.heads_at(slice(None)))
    logits = computed_once(lambda self: self.model.unembed(self.residual[..., -1, :, :]))

    def scores_of(self, layer: int) -> Tensor:
        """The scores of one layer, (B, H, T, T), also of a single text."""
        block, x = self.model.blocks[layer], self.forward_pass.residual[layer]
        mask = self.model.document_mask(self.tokens.view(-1, self.tokens.size(-1)))
        options: Any = {"position": self.model.position, "mask": mask}
        return block.attention.compute_heads(block.attention_norm(x), **options).scores

    def heads_at(self, positions: int | slice | Tensor) -> Tensor:
        """`heads` at some positions only, (L, H, C) for one and (L, H, N, C) for N."""
        pairs = zip(self.model.attentions, self.forward_pass.outputs, strict=True)
        return self._stacked(
            torch.einsum("b...hd,hcd->bh...c", outputs[:, positions], output_matrices(layer))
            for layer, outputs in pairs
        )

    @computed_once
    def rest(self) -> Tensor:
        pairs = zip(self.model.attentions, self.forward_pass.attended, strict=True)
        return self._stacked([output_bias(layer).expand_as(x) for layer, x in pairs])

    @computed_once
    def losses(self) -> Tensor:
        """Raises UserError if one is NaN or infinite."""
        targets = self.tokens[..., 1:]
        known = self.known_losses[..., : targets.size(-1)]
        after = known.size(-1)
        logits = self.model.unembed(self.residual[..., -1, after:-1, :])
        losses = next_token_loss(logits, targets[..., after:], reduction="none")
        check_finite(losses)
        return torch.cat([known, losses.view_as(targets[..., after:])], dim=-1)

    def loss(self, length: int | None = None) -> float | None:
        """The mean of the `losses` of the first `length` tokens, without those that the run does
        not count. None if it counts none of them."""
        tokens = self.tokens[..., :length]
        before, after = tokens[..., :-1], tokens[..., 1:]
        counted = counted_targets(before, after, self.answers, begun=self.begun) != IGNORED
        losses = self.losses.detach()[..., : after.size(-1)][counted]
        return float(losses.mean()) if counted.any() else None

    def header(self, length: int | None = None) -> dict[str, Any]:
        """The entries of a snapshot's header that describe the first `length` tokens."""
        length = length or len(self.tokens)
        return {
            "step": self.step or 0,
            "imported": self.step is None,
            "labels": self.labels[:length],
            "text_tokens": len(self.tokens),
            "held": [int(held) for held in held_heads(self.model)],
            "losses": json_numbers(self.losses[: length - 1].tolist()),
        }

    def weights(self, length: int | None = None) -> Floats:
        """`attention` of the first `length` tokens as an array."""
        return self.attention[..., :length, :length].detach().float().cpu().numpy()

    def targets(self, length: int | None = None) -> dict[int, int]:
        """The token after each of the first `length`. After the last, the most likely one."""
        length = length or len(self.tokens)
        return dict(enumerate([*self.tokens[1:length].tolist(), self._most_likely(length - 1)]))

    def position(self, position: int, name: str = "position") -> int:
        """A position from 0, or from the end if negative. Raises UserError if there is none."""
        self._check_single()
        position, length = whole_number(position, name), len(self.tokens)
        if not -length <= position < length:
            problem = f"{name}={position}: the text has {length} tokens"
            raise UserError(f"{problem}; the last one is -1")
        return position % length

    @torch.no_grad()
    def terms(
        self, layer: int, positions: int | slice = slice(None), *, heads: bool = True
    ) -> dict[str, Tensor]:
        """The terms whose sum is the input of a layer, `residual[layer]`, (T, C) each, or (C,) at
        one position: `embedding`, `n-grams` and `positions` if they are added to it, the heads
        L0H0, L0H1, ..., `L0 attention bias` if the output projections have biases, and `L0
        feed-forward` if there are feed-forward networks. Without `heads`, these are left out."""
        model, tokens = self.model, self.tokens[None]
        terms = {"embedding": model.embedding(tokens)[0] * model.embedding_scale}
        x = terms["embedding"]
        if model.ngrams > 1:
            with_ngrams = model.ngram_embedding(x[None], tokens, model.documents(tokens))[0]
            x, terms["n-grams"] = with_ngrams, with_ngrams - x
        if type(model.position).forward is not Position.forward:
            terms["positions"] = model.position(x[None])[0] - x
        terms = {name: term[positions] for name, term in terms.items()}
        of_heads = self.heads_at(positions) if heads else [()] * layer
        for earlier, block in enumerate(model.blocks[:layer]):
            for head, output in enumerate(of_heads[earlier]):
                terms[f"L{earlier}H{head}"] = output
            if block.attention.out_bias and block.attention.has_out_proj:
                terms[f"L{earlier} attention bias"] = self.rest[earlier, positions]
            if block.feed_forward is not None:
                terms[f"L{earlier} feed-forward"] = self.feed_forward[earlier, positions]
        return terms

    def pushes(self, written: Tensor, position: int) -> Tensor:
        """What the vector `written` (C,) in the residual stream at a position adds directly to the
        logit of each token of the tokenizer (V,), minus its mean over the vocabulary."""
        directions = push_directions(self.model, slice(self.tokenizer.vocab_size))
        return directions @ (written * norm_scale(self.model.norm, self.residual[-1, position]))

    def most_pushed(self, pushes: Tensor, count: int, sign: int = 1) -> list[tuple[str, float]]:
        """The `count` tokens with a text that have the largest `pushes` (V,), or with `sign` -1 the
        smallest ones, and their pushes."""
        signed = (sign * pushes)[self.with_text[: len(pushes)]]
        most, places = signed.topk(min(whole_number(count, "count", 0), len(signed)))
        labels = map(self.tokenizer.label, self.with_text.nonzero()[places, 0].tolist())
        return [*zip(labels, (sign * most).tolist(), strict=True)]

    def _most_likely(self, position: int) -> int:
        with torch.no_grad():
            return int(self.model.unembed(self.residual[-1, position : position + 1]).argmax())


@torch.no_grad()
def predict(
    reading: Activations,
    targets: Mapping[int, int],
    *,
    count: int = LISTED,
    layers: Sequence[int] | None = None,
) -> Predictions:
    """What the model predicts at each position in `targets`, and what each head adds to the logit
    of the target at this position. Lists of tokens have `count` entries. The tokens that heads
    raise most are computed for the heads of `layers`. By default, these are all layers, or none if
    that needs more than MAX_PRODUCTS multiplications. Raises UserError if a logit is not finite."""
    model, positions = reading.model, torch.tensor([*targets], device=reading.model.device)
    wanted = torch.tensor([*targets.values()], device=model.device)
    following = torch.cat([reading.tokens[1:], reading.tokens.new_full((1,), -1)])[positions]
    weight = upcast_to_float32(model.head.weight)
    residual, count = reading.residual[:, positions], min(count, model.vocab_size)

    def likely(logits: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        if model.logit_cap is not None:
            logits.div_(model.logit_cap).tanh_().mul_(model.logit_cap)
        values, tokens = logits.topk(count)
        of_target, largest = logits.gather(-1, targets[:, None]), values[:, :1]
        log_sum = logits.sub_(largest).exp_().sum(dim=-1, keepdim=True).log() + largest
        check_finite(log_sum)
        return tokens, (values - log_sum).exp(), (of_target - log_sum).exp()

    def raised(logits: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        logits.masked_fill_(~reading.with_text, -torch.inf)
        candidates = logits.topk(min(count + MORE, model.vocab_size)).indices
        exact = torch.bmm(weight[candidates], rows[..., None])[..., 0]
        places = exact.where(reading.with_text[candidates], -torch.inf).topk(count).indices
        return candidates.gather(-1, places), exact.gather(-1, places)

    normal = upcast_to_float32(model.norm(residual))
    tokens, probabilities, of_target = in_chunks(normal, weight, wanted, likely)
    written = upcast_to_float32(norm_scale(model.norm, residual[-1]) * reading.heads_at(positions))
    pushed = upcast_to_float32(fold_into(model.norm, written))  # (L, H, N, C)
    mean = pushed @ weight.mean(dim=0)
    target_pushes = torch.einsum("lhnc,nc->lhn", pushed, weight[wanted]) - mean
    if layers is None:
        layers = range(len(pushed)) if pushed.numel() * model.vocab_size <= MAX_PRODUCTS else ()
    most = {}
    many = len(layers) * pushed[0, ..., 0].numel() > ROWS
    rounded = weight.bfloat16() if many and multiplies_bf16_fast(model.device) else weight
    for layer in layers:
        listed, values = in_chunks(pushed[layer], rounded, wanted, raised)
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
    """Calls `take(logits, rows, targets)` for a few rows of x (..., N, C) at a time, where the
    logits are x W^T for the `matrix` W, in its dtype. Returns the results (..., N, *). All logits
    share the same memory, because allocating it would take as long as the product."""
    rows, expanded = x.flatten(0, -2), targets.expand(x.shape[:-1]).flatten()
    memory = matrix.new_empty(min(ROWS, len(rows)), len(matrix))
    taken = [
        take(torch.mm(chunk.to(matrix), matrix.mT, out=memory[: len(chunk)]), chunk, of_chunk)
        for chunk, of_chunk in zip(rows.split(ROWS), expanded.split(ROWS), strict=True)
    ]
    return [torch.cat(each).unflatten(0, x.shape[:-1]) for each in zip(*taken, strict=True)]
