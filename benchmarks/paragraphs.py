"""Prints the paragraphs of the State of the Union speeches as documents of a .jsonl file:
python -m benchmarks.paragraphs > paragraphs.jsonl

The documents are in random order, and no two are equal.
"""

import json
import random

from headscope.data.built_in import Sotu

if __name__ == "__main__":
    speeches = ["".join(document.pieces) for document in Sotu().documents()]
    paragraphs = [*dict.fromkeys(part for speech in speeches for part in speech.split("\n\n"))]
    random.Random(1).shuffle(paragraphs)
    for text in paragraphs:
        if text.strip():
            print(json.dumps({"text": text}))
