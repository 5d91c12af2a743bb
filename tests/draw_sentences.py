"""Draw sentences from the docstrings, comments and documents of the project, by hand:

    python tests/draw_sentences.py --count 100 --seed 1

A reader who has not seen the project reads each once and marks those that need a second read. The
same seed draws the same sentences of the same files. Not drawn: code, and fewer than four words.
"""

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SHORTEST = 4
"""Words of a sentence."""

SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*`]*\s+(?=[^a-z\s])")
WORD = re.compile(r"[^\W\d_]{2,}|\b[aAI]\b")
INLINE_CODE = re.compile(r"`[^`]*`")


class Line(NamedTuple):
    """A line of prose. `number` is its line in the file, from 1."""

    number: int
    text: str


Paragraph = list[Line]


class Sentence(NamedTuple):
    file: str
    number: int
    text: str


def sentences(file: Path) -> Iterator[Sentence]:
    """The sentences of a file, each with the line on which it begins."""
    readers = {".py": of_python, ".yaml": of_yaml, ".md": of_markdown}
    name = str(file.relative_to(ROOT))
    for paragraph in readers[file.suffix](file.read_text(encoding="utf-8")):
        text, starts = "", {}
        for line in paragraph:
            starts[len(text)] = line.number
            text += line.text.strip() + " "
        begin = 0
        for end in [*(found.end() for found in SENTENCE_END.finditer(text)), len(text)]:
            number = max(number for start, number in starts.items() if start <= begin)
            sentence = text[begin:end].strip()
            if words_in(sentence) >= SHORTEST:
                yield Sentence(name, number, sentence)
            begin = end


def words_in(sentence: str) -> int:
    """Words outside of code; `a name in backquotes` counts as one."""
    return len(WORD.findall(INLINE_CODE.sub(" name ", sentence)))


def of_python(source: str) -> Iterator[Paragraph]:
    """Docstrings, also those below a constant, and comments."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            text = node.value.value
            yield from of_markdown(text, first=node.lineno, indent=node.col_offset)
    comments = [
        (token.start, token.string.lstrip("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    yield from joined(comments)


def of_yaml(source: str) -> Iterator[Paragraph]:
    found = (
        (number, re.search(r"(?:^|(?<=\s))#(.*)", line))
        for number, line in enumerate(source.splitlines(), start=1)
    )
    yield from joined([((number, here.start()), here[1]) for number, here in found if here])


def joined(comments: Iterable[tuple[tuple[int, int], str]]) -> Iterator[Paragraph]:
    """Comments that stand below one another, in the same column, are one paragraph."""
    prose = [
        (start, text)
        for start, text in comments
        if not text.startswith("!") and not re.match(r" *(noqa|type:|@package|---)", text)
    ]
    numbered = enumerate(prose)
    for _, group in groupby(numbered, key=lambda item: (item[1][0][0] - item[0], item[1][0][1])):
        yield [Line(start[0], text) for _, (start, text) in group]


def of_markdown(source: str, first: int = 1, indent: int = 0) -> Iterator[Paragraph]:
    """Paragraphs, headings, items of lists and cells of tables; no code and no pictures."""
    paragraph: Paragraph = []
    fenced = False
    for number, whole in enumerate(source.splitlines(), start=first):
        line = whole if number == first else whole[indent:]
        text = line.strip()
        fence = text.startswith("```")
        fenced ^= fence
        code = fenced or fence or (line.startswith("    ") and not paragraph)
        code |= text.startswith((">>>", "...", "![", "<!--", "tensor("))
        item = re.match(r"(#+|[-*>]|\d+\.) +", text)
        cells = text.strip("|").split("|") if text.startswith("|") else []
        if code or not text or item or cells:
            yield from [paragraph] if paragraph else []
            paragraph = []
        if code or not text:
            continue
        if cells:
            yield from ([Line(number, cell)] for cell in cells)
        else:
            paragraph.append(Line(number, text[item.end() :] if item else text))
        if text.startswith("#"):
            yield paragraph
            paragraph = []
    yield from [paragraph] if paragraph else []


def files() -> list[Path]:
    patterns = (
        *("src/headscope/**/*.py", "scripts/*.py", "conf/**/*.yaml"),
        *("*.md", "docs/*.md", "data/README.md", "outputs/README.md"),
    )
    return sorted({file for pattern in patterns for file in ROOT.glob(pattern)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="sentences to draw")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    all_of_them = [sentence for file in files() for sentence in sentences(file)]
    different = list({sentence.text: sentence for sentence in all_of_them}.values())
    drawn = random.Random(arguments.seed).sample(different, min(arguments.count, len(different)))
    print(f"{len(drawn)} of {len(different)} sentences, seed {arguments.seed}")
    for file, number, text in drawn:
        print(f"{file}:{number}: {text}")


if __name__ == "__main__":
    main()
