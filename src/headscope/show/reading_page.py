"""attention.html: the attention viewer with the attention of one or several steps of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from headscope.analysis.ablation import Decider
from headscope.analysis.activations import Activations
from headscope.analysis.headers import history, read_header
from headscope.analysis.snapshot import Snapshot, tokens_within
from headscope.analysis.why import explanation
from headscope.show.viewer.page import attention_page
from headscope.terminal import step_name

DECISIVE = 0.05
"""Without a head that decides, the probability falls at least by this: less is a guess."""
MAX_BYTES = 10 * 2**20
"""Maximum size of all snapshots in a page, without the examples of heads, which add about 2 kB per
head and step. Base64 adds a third to it."""


def shown_tokens(reading: Activations, steps: int, max_bytes: int | None = None) -> int:
    """The number of tokens of the text, at least 1, that a page of `steps` steps of the run and
    `max_bytes` bytes (default: MAX_BYTES) shows."""
    layers, heads, tokens, _ = reading.attention.shape
    limit = (max_bytes or MAX_BYTES) // max(steps, 1)
    vocabulary = reading.tokenizer.vocabulary_labels()
    within = tokens_within(limit, layers=layers, heads=heads, tokens=tokens, vocabulary=vocabulary)
    return max(within, 1)


def page_of(
    reading: Activations,
    snapshots: Sequence[Snapshot],
    losses: Sequence[float | None],
    deciders: Sequence[Decider] = (),
) -> str:
    """The text of attention.html, named after `reading`, with snapshots and losses by step. It
    opens at the step of `reading` and the last token, on the head that decides its prediction (see
    `Reading.deciders`), and explains why this head looks where it looks."""
    step, captions = step_name(reading.step), []
    start: dict[str, Any] = {}
    if reading.step != snapshots[-1].header["step"]:  # the page opens at the last step by default
        start["step"] = reading.step
    why: list[dict[str, Any]] = []
    last = len(snapshots[0].header["labels"]) - 1
    head = next((row for row in deciders if "H" in row["part"]), None)
    if head and head["probability"] - head["without"] >= DECISIVE:
        start |= {"token": last, "head": head["part"]}
        with_it, without = (f"{100 * head[key]:.1f} %" for key in ("probability", "without"))
        line = f"The model ({step}) expects “{head['token']}” after the text with {with_it}."
        captions = [{"text": f"{line} With {head['part']} at its mean, it is {without}."}]
        why = [explanation(reading, head["part"], last, None)]
    run = shown_run(reading.name, snapshots, losses, why)
    title = f"{reading.name}, {step}"
    return attention_page(title=title, runs=[run], start=start, captions=captions)


def shown_run(
    name: str,
    snapshots: Sequence[Snapshot],
    losses: Sequence[float | None],
    why: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A run for `attention_page`, with snapshots and losses by step. `why` are the explanations of
    edges that the page has (see `headscope.analysis.why.explanation`)."""
    steps = [snapshot.header["step"] for snapshot in snapshots]
    loss = {"name": "loss on this text", "steps": steps, "values": losses}
    headers, keys, parts = [], [], {}
    for step, snapshot in enumerate(snapshots):
        at = f" at {step}" if len(snapshots) > 1 else ""
        kinds = [(kind["name"], kind["count"]) for kind in snapshot.header["parts"]]
        keys.append([f"{name} {n}{at}" for name, count in kinds for n in range(count)])
        headers.append(read_header(snapshot.blobs()[0]))
        pairs = zip(keys[-1], snapshot.parts, strict=True)
        parts.update({key: part for key, part in pairs if part})
    combined = history(headers, keys, loss)
    return {"name": name, "text": "text", "history": combined, "parts": parts, "why": why}
