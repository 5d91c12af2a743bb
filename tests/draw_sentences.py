"""Draw sentences from the docstrings, comments and documents of the project, by hand:

    python tests/draw_sentences.py --count 100 --seed 1

A reader who has not seen the project reads each once and marks those that need a second read. The
same seed draws the same sentences of the same files. Not drawn: code, and fewer than four words. A
comment is shown with the code that it follows, a row of a table as a whole.
"""

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SHORTEST = 4
"""Words of a sentence."""

SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*`]*\s+(?=[^a-z\s])")
WORD = re.compile(r"[^\W\d_]{2,}|\b[aAI]\b")
INLINE_CODE = re.compile(r"`[^`]*`")
NO_PROSE = re.compile(r"!| *(noqa|type:|@package|---)")


class Comment(NamedTuple):
    """The text of a comment, where it stands, and the code before it on its line."""

    number: int
    column: int
    text: str
    code: str


class Paragraph:
    """Lines of prose, each with its number in the file, after some `code`."""

    def __init__(self, code: str = "", *, whole: bool = False) -> None:
        self.code = code
        self.whole = whole
        self.text = ""
        self.numbers: dict[int, int] = {}  # by where in the text a line begins

    def add(self, number: int, line: str) -> None:
        self.numbers[len(self.text)] = number
        self.text += line.strip() + " "

    def sentences(self) -> Iterator[tuple[int, str]]:
        """Each sentence with the number of its first line."""
        ends = [] if self.whole else [found.end() for found in SENTENCE_END.finditer(self.text)]
        for begin, end in zip([0, *ends], [*ends, len(self.text)], strict=True):
            sentence = self.text[begin:end].strip()
            if longest_part(sentence) >= SHORTEST:
                number = max(number for at, number in self.numbers.items() if at <= begin)
                yield number, f"{self.code}  # {sentence}" if self.code else sentence


def longest_part(sentence: str) -> int:
    """Words of a sentence, of a table's row those of its longest cell; `code` counts as one."""
    parts = INLINE_CODE.sub(" name ", sentence).split(" | ")
    return max(len(WORD.findall(part)) for part in parts)


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
    yield from joined(
        Comment(*token.start, token.string[1:], token.line[: token.start[1]].strip())
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )


def of_yaml(source: str) -> Iterator[Paragraph]:
    yield from joined(
        Comment(number, found.start(), found[1], line[: found.start()].strip())
        for number, line in enumerate(source.splitlines(), start=1)
        for found in [re.search(r"(?:^|(?<=\s))#(.*)", line)]
        if found
    )


def joined(comments: Iterable[Comment]) -> Iterator[Paragraph]:
    """Comments in the same column of consecutive lines are one paragraph, until code begins."""
    paragraph, before = Paragraph(), None
    for comment in comments:
        if NO_PROSE.match(comment.text):
            continue
        follows = before and (comment.number, comment.column) == (before.number + 1, before.column)
        if comment.code or not follows:
            yield paragraph
            paragraph = Paragraph(comment.code)
        paragraph.add(comment.number, comment.text)
        before = comment
    yield paragraph


def of_markdown(source: str, first: int = 1, indent: int = 0) -> Iterator[Paragraph]:
    """Paragraphs, headings, items of lists and rows of tables; no code, quotes or pictures."""
    paragraph, fenced = Paragraph(), False
    for number, line in enumerate(source.splitlines(), start=first):
        text = line.strip()
        fence = text.startswith("```")
        fenced ^= fence
        indented = line.startswith(" " * (indent + 4)) and not paragraph.text
        code = fenced or fence or indented or text.startswith((">", "![", "<!--", "tensor("))
        item = re.match(r"(#+|[-*]|\d+\.) +", text)
        row = text.startswith("|")
        if code or not text or item or row:
            yield paragraph
            paragraph = Paragraph(whole=row)
        if text and not code:
            paragraph.add(number, text[item.end() :] if item else text)
        if text.startswith("#"):
            yield paragraph
            paragraph = Paragraph()
    yield paragraph


READERS = {".py": of_python, ".yaml": of_yaml, ".md": of_markdown}
FILES = (
    *("src/headscope/**/*.py", "scripts/*.py", "conf/**/*.yaml"),
    *("*.md", "docs/*.md", "data/README.md", "outputs/README.md"),
)


def all_sentences() -> Iterator[tuple[str, int, str]]:
    """Every sentence with its file and its line."""
    for file in sorted({file for pattern in FILES for file in ROOT.glob(pattern)}):
        for paragraph in READERS[file.suffix](file.read_text(encoding="utf-8")):
            for number, text in paragraph.sentences():
                yield file.relative_to(ROOT).as_posix(), number, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="sentences to draw")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    different = list(
        {text: (file, number, text) for file, number, text in all_sentences()}.values()
    )
    drawn = random.Random(arguments.seed).sample(different, min(arguments.count, len(different)))
    print(f"{len(drawn)} of {len(different)} sentences, seed {arguments.seed}")
    for file, number, text in drawn:
        print(f"{file}:{number}: {text}")


if __name__ == "__main__":
    main()
