"""The figures of `headscope.benchmarks.attention` as a chart."""

from typing import Any

from matplotlib.figure import Figure

from headscope.benchmarks.attention import REFERENCE, Shape
from headscope.benchmarks.bars import Bar, draw_bars
from headscope.benchmarks.timing import place


def draw(figures: dict[str, Any]) -> Figure:
    """A group of bars for each shape, all on one logarithmic axis of milliseconds."""
    changed = [word for word in figures["overrides"] if word.startswith("model.")]
    conditions = [
        place(figures),
        "float32",
        f"{figures['batch_size']} sequences at once",
        *changed,
    ]
    return draw_bars(
        {
            str(Shape(shape["tokens"], shape["embed_dim"], shape["heads"])): [
                _bar(row) for row in shape["attentions"]
            ]
            for shape in figures["shapes"]
        },
        title=(
            "Time of one attention layer, forward and backward\n"
            f"Medians of {figures['rounds']} rounds; x: times {REFERENCE} (orange) in the same "
            "round\n"
            "explicit: every step by itself, weights returned, without the fused kernel\n"
            f"{', '.join(conditions)}"
        ),
        axis="milliseconds, on a logarithmic axis (less is faster)",
    )


def _bar(row: dict[str, Any]) -> Bar:
    name = row["attention"]
    if "left_out" in row:
        return Bar(name, None, row["left_out"])
    ms = row["milliseconds"]["median"]
    words = f"{ms:,.2f} ms, {row['ratio']['median']:.2f}x"
    return Bar(name, ms, words, ours=name == REFERENCE)
