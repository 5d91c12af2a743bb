"""What the page shows, as a file: a page, a table, or Python code that computes it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headscope.analysis.rows import data_frame
from headscope.analysis.why import explanation
from headscope.show.explore.answers import Explorer, prompt_length
from headscope.show.explore.models import OpenModel
from headscope.show.explore.protocol import ExportRequest, SwitchedText
from headscope.show.explore.reader import TOP, encode, likely, logits_after
from headscope.show.reading_page import shown_run
from headscope.show.viewer.page import attention_page
from headscope.terminal import step_name

LISTED = 5
"""The number of tokens after each token in a table."""

Exported = tuple[str, str, str]
"""The name of a file, its content type, and its text."""


def export(explorer: Explorer, request: ExportRequest) -> Exported:
    """The file for a request. Raises UserError if the model cannot answer the request."""
    answer = explorer.read(request)
    request = replace(request, target=answer["target"]["id"], position=answer["position"])
    return {"html": page, "csv": table, "python": code}[request.format](explorer, request)


def described(chosen: OpenModel, request: SwitchedText) -> str:
    """The model and the switched heads in one line."""
    ways = (("off", request.zero), ("mean", request.mean), ("half", request.half))
    switched = [f"{head} {way}" for way, heads in ways for head in heads] or ["all heads on"]
    return ", ".join([f"{chosen.title} {step_name(chosen.loaded.known_step)}", *switched])[:200]


def explained(explorer: Explorer, request: ExportRequest) -> list[dict[str, Any]]:
    """The explanations of the edges of the walk."""
    _, _, reading = explorer.forward(request)
    edges = ((edge.head[:80], edge.query, edge.key) for edge in request.walk)
    return [explanation(reading, *edge) for edge in edges]


@torch.no_grad()
def page(explorer: Explorer, request: ExportRequest) -> Exported:
    """The attention viewer with this text, and with the other model or heads if there are any."""
    why = explained(explorer, request)
    runs: list[dict[str, Any]] = []
    first = explorer.models.get(request.model)
    for side in explorer.sides(request):
        chosen, _, reading = explorer.forward(side)
        switched = [*side.zero, *side.mean, *side.half]
        shown = reading.snapshot(chosen.record, switched=switched)
        own = [] if runs else why
        runs.append(shown_run(described(chosen, side), [shown], [reading.loss()], own))
    walk = [{name: each[name] for name in ("head", "query", "key")} for each in why]
    start = {"token": request.position, "head": (request.head or "")[:80], "walk": walk}
    return "explore.html", "text/html", attention_page(title=first.title, runs=runs, start=start)


@torch.no_grad()
def table(explorer: Explorer, request: ExportRequest) -> Exported:
    """A row for each token of the text, with its loss and the most likely tokens after it."""
    chosen, text, reading = explorer.forward(request)
    losses = [None, *reading.losses.tolist()]
    table = data_frame({"id": text.tokens, "token": reading.labels, "loss": losses})
    for position in range(len(table)):
        rows = likely(chosen, logits_after(reading, position), request, [])["next"][:LISTED]
        for number, row in enumerate(rows, start=1):
            table.loc[position, f"next_{number}"] = row["label"]
            table.loc[position, f"probability_{number}"] = row["probability"]
    return "explore.csv", "text/csv", table.to_csv(index_label="position", float_format="%.7g")


def code(explorer: Explorer, request: ExportRequest) -> Exported:
    """A Python program that computes what the page shows."""
    chosen, parts = explorer.models.get(request.model), explorer.models.parts
    listed = [parts] if isinstance(parts, str) else parts
    ids = encode(chosen.loaded, request).every

    def switched(mean_over: str) -> str:
        ways = (
            (request.mean, f', by="mean", text={mean_over}'),  # first: the mean with all heads on
            (request.zero, ""),
            (request.half, ', by="half"'),
        )
        calls = [f"loaded.ablate({heads!r}{more})" for heads, more in ways if heads]
        return ", ".join(calls) or "nullcontext()"

    options = "".join(f", {name}={value!r}" for name, value in request.options().items())
    options = f", do_sample=True{options}" if request.temperature else ""
    start = prompt_length(ids, request)
    count = len(ids) - start + request.max_new_tokens
    shown = PROGRAM.format(
        path=str(chosen.loaded.path.resolve()),
        parts=f", parts={[str(Path(file).resolve()) for file in listed]!r}" if listed else "",
        text=ascii(chosen.loaded.tokenizer.decode(ids)[:80]),
        ids=ids,
        heads=switched("tokens"),
        heads_of_prompt=switched("prompt[-block_size:]"),
        position=request.position,
        target=request.target,
        top=TOP,
        start=start,
        walk="".join(WHY.format(**edge) for edge in explained(explorer, request)),
        sampling=f"max_new_tokens={count}, seed={request.seed}{options}",
    )
    return "explore.py", "text/x-python", shown


PROGRAM = '''"""What headscope's page showed."""

from contextlib import nullcontext

import headscope

loaded = headscope.load({path!r}{parts})
block_size = loaded.model.block_size
# {text}
ids = {ids}
tokens, prompt = ids[-block_size:], ids[:{start}]
# Tokens that the losses of the run do not count are left out of the loss.
with {heads}:
    reading = loaded.read(tokens, begun=tokens == ids)
attention = reading.attention  # layers, heads, queries, keys
shares = reading.attribution(position={position}, token={target})
lens = reading.lens[:, {position}].softmax(-1)
with {heads_of_prompt}:
    written = loaded.generate(prompt, {sampling})

print("loss", reading.loss())
for probability, token in zip(*reading.logits[{position}].softmax(-1).topk({top})):
    print(f"{{probability:.6f}}", *loaded.tokenizer.labels([token]))
for term, share in shares.items():
    print(f"{{share:+.5f}}", term)
print(loaded.tokenizer.decode(written))
{walk}'''

WHY = """
# Why {head} looks there: what the query reads, what the key reads, and how much both add.
print(reading.why({head!r}, {query}, {key}).table().head().to_string(index=False, header=False))
"""
