"""Prints the size of one step in the attention viewer as JSON rows, for docs/performance.md:
python -m benchmarks.snapshot_sizes

The models have random weights and a random text, which zlib compresses less than those of trained
models. Their queries are scaled, so that attention is not uniform.
"""

import json

import torch

from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.predictions import predictions
from headscope.analysis.snapshots import snapshot_of
from headscope.analysis.trace import trace
from headscope.nn import GPT
from headscope.viewer.snapshot import tokens_within

LIMIT = 4 * 10**6  # callbacks.attention.step_megabytes=4
SHAPES = {
    "2 layers x 4 heads": (2, 4, 64, 64, 50),
    "4 layers x 4 heads": (4, 4, 128, 64, 8192),
    "6 layers x 6 heads": (6, 6, 384, 256, 65),
    "12 layers x 12 heads (GPT-2)": (12, 12, 768, 1024, 50257),
}
"""Layers, heads, width, tokens of the text, and tokens in the vocabulary."""


def size_of(layers: int, heads: int, width: int, length: int, vocabulary: int) -> dict[str, int]:
    torch.manual_seed(1)
    model = GPT(
        vocab_size=vocabulary,
        block_size=length,
        embed_dim=width,
        layers=layers,
        heads=heads,
    ).eval()
    for layer in model.attentions:
        layer.projections()[0].mul_(20)
    labels = [f"token{number}" for number in range(vocabulary)]
    kept = tokens_within(LIMIT, layers=layers, heads=heads, tokens=length, vocabulary=labels)
    tokens = torch.randint(vocabulary, (kept,))
    found = trace(model, tokens)
    parts = snapshot_of(
        found.attention,
        measure_heads(model, tokens[None]),
        step=0,
        labels=[labels[token] for token in tokens],
        text_tokens=length,
        predictions=predictions(model, found, labels),
    )
    every, maps = sum(map(len, parts)), sum(map(len, parts[1 : layers + 2]))
    return {
        "tokens": length,
        "tokens_shown": kept,
        "vocabulary": vocabulary,
        "kilobytes": every // 1000,
        "kilobytes_of_attention": maps // 1000,
        "kilobytes_of_predictions": sum(map(len, parts[layers + 2 :])) // 1000,
    }


def main() -> None:
    for name, shape in SHAPES.items():
        with torch.no_grad():
            print(json.dumps({"model": name, **size_of(*shape)}))


if __name__ == "__main__":
    main()
