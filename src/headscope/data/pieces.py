"""Cuts a text into pieces that can be encoded one by one.

Encoding the pieces gives the same tokens as encoding the whole text, because the pieces end where
the pattern of every tokenizer in conf/ splits the text, and WordPiece too. The tokenizer of an
imported model may have another pattern, or none. Then one token may differ at each end of a piece.
A document of up to 250,000 characters is one piece.
"""

import re
from collections.abc import Iterable, Iterator

SIZE = 2**18
"""Number of characters in a piece, if there are places to cut."""

LONGEST = 2**19
"""After this number of characters without any place to cut, such as in a word of 500,000 letters,
the text is cut anyway, which may change a token. This limits the memory: tiktoken needs about 70
bytes for each byte of a word, and refuses a million spaces in a row."""

CUT = re.compile(
    r"[ \n\t]\S"
    r"|[!-/:-@\[-`{-~\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]"
    r"[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fef]"
)
"""Matches the two characters around a place to cut, in the reversed text. GPT-2's pattern always
splits between a character that is not white space and the white space after it. It also splits
between a letter and the punctuation after it. WordPiece splits at both, too.

White space is no place to cut: the pattern looks ahead, so `one.\\n\\ntwo` contains two tokens of
one line end, but `one.\\n\\n` contains one token of two line ends."""


def pieces(chunks: Iterable[str], *, size: int = SIZE) -> Iterator[str]:
    """The text of all `chunks` in pieces of about `size` characters."""
    held: list[str] = []
    length = 0
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            part = chunk[start : start + size]
            held.append(part)
            length += len(part)
            if length < size:
                continue
            cut = last_cut(part)
            if cut:
                yield "".join([*held[:-1], part[:cut]])
                held = [part[cut:]]
            elif length >= LONGEST:
                yield "".join(held)
                held = []
            length = sum(map(len, held))
    if length:
        yield "".join(held)


def last_cut(text: str) -> int:
    """The last index at which `text` may be cut. 0 if there is none."""
    found = CUT.search(text[::-1])
    return len(text) - found.start() - 1 if found else 0
