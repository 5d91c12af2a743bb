"""Prints the size of one step in the attention viewer as JSON rows, for docs/performance.md:
python -m benchmarks.snapshot_sizes

The models have random weights and a random text, which zlib compresses less than those of trained
models.
"""

import json
from typing import Any

import numpy as np
import torch

from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.reading import Reading
from headscope.data.tokenizer import Tokenizer
from headscope.nn import GPT
from headscope.show.viewer.snapshot import Snapshot, tokens_within

LIMIT = 4 * 10**6  # callbacks.attention.step_megabytes=4
SHAPES = {
    "2 layers x 4 heads": (2, 4, 64, 64, 50),
    "4 layers x 4 heads": (4, 4, 128, 64, 8192),
    "6 layers x 6 heads": (6, 6, 384, 256, 65),
    "12 layers x 12 heads (GPT-2)": (12, 12, 768, 1024, 50257),
}
"""Layers, heads, width, tokens of the text, and tokens in the vocabulary."""


class Numbered(Tokenizer):
    """The tokens have the labels token0, token1, ..."""

    end_of_text = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> np.ndarray:
        return np.array([int(number) for number in text.split("token")[1:]], np.uint32)

    def token_bytes(self, token: int) -> bytes:
        return f"token{token}".encode()


@torch.no_grad()
def random_snapshot(layers: int, heads: int, width: int, length: int, vocabulary: int) -> Snapshot:
    """The snapshot of a random text of `length` tokens in a model with random weights. Its queries
    are scaled, so that attention is not uniform."""
    torch.manual_seed(1)
    sizes: Any = {"embed_dim": width, "layers": layers, "heads": heads}
    model = GPT(vocab_size=vocabulary, block_size=length, **sizes).eval()
    for layer in model.attentions:
        layer.projections()[0].mul_(20)
    tokens = torch.randint(vocabulary, (length,))
    statistics = measure_heads(model, tokens[None])
    return Reading(model, tokens, Numbered(vocabulary)).snapshot(statistics)


def size_of(layers: int, heads: int, width: int, length: int, vocabulary: int) -> dict[str, int]:
    labels = Numbered(vocabulary).vocabulary_labels()
    kept = tokens_within(LIMIT, layers=layers, heads=heads, tokens=length, vocabulary=labels)
    found = random_snapshot(layers, heads, width, kept, vocabulary)
    parts = [len(part) for part in found.blobs()]  # the header, the thumbnails, the weights, ...
    return {
        "tokens": length,
        "tokens_shown": kept,
        "vocabulary": vocabulary,
        "kilobytes": sum(parts) // 1000,
        "kilobytes_of_attention": sum(parts[1 : layers + 2]) // 1000,
        "kilobytes_of_predictions": sum(parts[layers + 2 :]) // 1000,
    }


if __name__ == "__main__":
    for name, shape in SHAPES.items():
        print(json.dumps({"model": name, **size_of(*shape)}))
