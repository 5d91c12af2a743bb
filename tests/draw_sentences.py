"""Draw sentences from the docstrings, comments and documents of the project, by hand:

    python tests/draw_sentences.py --count 100 --seed 1

A reader who has not seen the project reads each once and marks those that need a second read. The
same seed draws the same sentences of the same files. Not drawn: code, and fewer than four words. A
comment is shown with the code that it follows, a row of a table as a whole, and every sentence with
the line where its paragraph begins.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SHORTEST = 4
"""Words of a sentence."""

SENTENCE_END = re.compile(r"(?<=[.!?])([)\"*`]*)\s+(?=[^a-z\s])")
WORD = re.compile(r"[^\W\d_]{2,}|\b[aAI]\b")
INLINE_CODE = re.compile(r"`[^`]*`")
COMMENT = re.compile(r"^(.*?)(?<!\S)# (.+(?:\n *# .+)*)", re.MULTILINE)
"""The code before a comment, and the comment with those in the lines below."""

NO_PROSE = re.compile(r"# (noqa|type:|@package|---).*")


class Paragraph(NamedTuple):
    """Prose that begins in this line of a file, after some `code`."""

    number: int
    text: str
    code: str = ""

    def sentences(self) -> Iterator[str]:
        row = self.text.startswith("|")
        for sentence in [self.text] if row else SENTENCE_END.sub(r"\1\n", self.text).splitlines():
            # Words of a sentence, of a table's row those of its longest cell; `code` counts as one.
            parts = INLINE_CODE.sub(" name ", sentence).split(" | ")
            if max(len(WORD.findall(part)) for part in parts) >= SHORTEST:
                yield f"{self.code}  # {sentence}" if self.code else sentence


def of_python(source: str) -> Iterator[Paragraph]:
    """Docstrings, also those below a constant, and comments."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield from of_markdown(text, first=node.lineno, indent=node.col_offset)
    yield from of_comments(source)


def of_comments(source: str) -> Iterator[Paragraph]:
    source = NO_PROSE.sub("", source)
    for found in COMMENT.finditer(source):
        number = source.count("\n", 0, found.start()) + 1
        yield Paragraph(number, re.sub(r"\n *# ", " ", found[2]), found[1].strip())


def of_markdown(source: str, first: int = 1, indent: int = 0) -> Iterator[Paragraph]:
    """Paragraphs, headings, items of lists and rows of tables; no code, quotes or pictures."""
    begins, lines, fenced = first, list[str](), False
    for number, line in enumerate([*source.splitlines(), ""], start=first):
        text = line.strip()
        fence = text.startswith("```")
        fenced ^= fence
        indented = line.startswith(" " * (indent + 4)) and not lines
        code = fenced or fence or indented or text.startswith((">", "![", "<!--", "tensor("))
        begin = re.match(r"(#+|[-*]|\d+\.) +|\|", text)
        if lines and (code or not text or begin or lines[0].startswith(("#", "|"))):
            yield Paragraph(begins, re.sub(r"^(#+|[-*]|\d+\.) +", "", " ".join(lines)))
            lines = []
        if text and not code:
            begins = begins if lines else number
            lines.append(text)


READERS = {".py": of_python, ".yaml": of_comments, ".md": of_markdown}
FILES = (
    *("src/headscope/**/*.py", "scripts/*.py", "conf/**/*.yaml"),
    *("*.md", "docs/*.md", "data/README.md", "outputs/README.md"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="sentences to draw")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    different: dict[str, str] = {}
    for file in sorted({file for pattern in FILES for file in ROOT.glob(pattern)}):
        for paragraph in READERS[file.suffix](file.read_text(encoding="utf-8")):
            place = f"{file.relative_to(ROOT).as_posix()}:{paragraph.number}"
            different |= dict.fromkeys(paragraph.sentences(), place)
    count = min(arguments.count, len(different))
    drawn = random.Random(arguments.seed).sample(list(different.items()), count)
    print(f"{count} of {len(different)} sentences, seed {arguments.seed}")
    for sentence, place in drawn:
        print(f"{place}: {sentence}")


if __name__ == "__main__":
    main()
