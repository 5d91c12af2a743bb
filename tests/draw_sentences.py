"""Draw sentences from the docstrings, comments and documents of the project, by hand:

    python tests/draw_sentences.py --count 100 --seed 1

A reader who has not seen the project reads each once and marks those that need a second read. The
same seed draws the same sentences of the same files. Not drawn: code, and fewer than four words.
Every sentence is shown with the line where its paragraph begins.
"""

import argparse
import ast
import inspect
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = (
    *("src/headscope/**/*.py", "scripts/*.py", "conf/**/*.yaml"),
    *("*.md", "docs/*.md", "data/README.md", "outputs/README.md"),
)
COMMENT = re.compile(r"(?<!\S)# (?!noqa|type:|@package|---)(.+(?:\n *# .+)*)")
"""A comment, and those in the lines below."""

CODE = re.compile(r"^ *```.*?^ *```|^(?: {4}|[>!<]).*?$", re.DOTALL | re.MULTILINE)
PARAGRAPH = re.compile(
    r"^ *(?:#+|[-*]|\d+\.)? *(\S.*(?:\n(?! *(?:[-*#|]|\d+\.)) *\S.*)*)", re.MULTILINE
)
"""A paragraph, a heading, an item of a list, or a row of a table."""


def paragraphs(source: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """The paragraphs of a text in Markdown that begins in line `first`, each with its line."""
    source = CODE.sub(lambda code: "\n" * code[0].count("\n"), source)
    for found in PARAGRAPH.finditer(source):
        yield first + source.count("\n", 0, found.start(1)), " ".join(found[1].split())


def of_file(file: Path) -> Iterator[tuple[int, str]]:
    source = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        yield from paragraphs(source)
        return
    for found in COMMENT.finditer(source):
        yield source.count("\n", 0, found.start()) + 1, re.sub(r"\n *# ", " ", found[1])
    for node in ast.walk(ast.parse(source)) if file.suffix == ".py" else ():
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield from paragraphs(inspect.cleandoc(text), node.lineno)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="sentences to draw")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    different: dict[str, str] = {}
    for file in sorted({file for pattern in FILES for file in ROOT.glob(pattern)}):
        for line, text in of_file(file):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[^a-z\s])", text):
                if len(re.findall(r"[^\W\d_]{2,}", re.sub("`[^`]*`", "name", sentence))) >= 4:
                    different[sentence] = f"{file.relative_to(ROOT).as_posix()}:{line}"
    count = min(arguments.count, len(different))
    print(f"{count} of {len(different)} sentences, seed {arguments.seed}")
    for sentence, place in random.Random(arguments.seed).sample(list(different.items()), count):
        print(f"{place}: {sentence}")


if __name__ == "__main__":
    main()
