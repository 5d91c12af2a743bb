"""Tokens as a person can read them, in pictures and on the page."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import groupby, islice, pairwise

MARKS = {" ": "·", "\n": "⏎", "\t": "\\t", "\r": "\\r"}
EMPTY = "∅"
JOINER = "\N{ZERO WIDTH JOINER}"
# The sign of a byte that could not be decoded, and letters and symbols without ink that Unicode
# counts as printable: Hangul fillers and the empty Braille cell.
UNSEEN = "\N{REPLACEMENT CHARACTER}\u115f\u1160\u3164\uffa0\u2800"
PIECE = re.compile(r"U\+[0-9A-F]{4,6}|.", re.DOTALL)


def token_labels(tokens: Iterable[bytes]) -> list[str]:
    """The label of every token of a text, from the UTF-8 bytes that each stands for.

    A whole character shows as `visible` has it. The bytes of a split character show as the
    character and their numbers, 多 1/3 and 多 2–3/3, when the neighbouring tokens complete it, and
    as hexadecimal numbers, E5 A4, otherwise. A space separates the parts of a token that has more
    than one kind: "多 3/3 言 1/3". A token without bytes, such as the end of a text, shows as ∅ and
    is no neighbour.
    """
    tokens = list(tokens)
    # 0xFF occurs in no UTF-8: it keeps the bytes before and after an empty token apart.
    text = b"".join(token or b"\xff" for token in tokens).decode(errors="surrogateescape")
    stream = _bytes_of(text)
    parts = [list(islice(stream, len(token) or 1)) for token in tokens]
    return [_label(part) if token else EMPTY for token, part in zip(tokens, parts, strict=True)]


Byte = tuple[int, str, int, int]
"""Where its character stands in the text, the character, the byte's number in it from 1, and how
many bytes the character has."""


def _bytes_of(text: str) -> Iterator[Byte]:
    for place, character in enumerate(text):
        size = 1 if _is_stray(character) else len(character.encode())
        for number in range(1, size + 1):
            yield place, character, number, size


def _is_stray(character: str) -> bool:
    """Whether it is a byte outside any character, as `surrogateescape` decodes it."""
    return "\udc80" <= character <= "\udcff"


def _label(held: list[Byte]) -> str:
    """The label of one token, from its bytes."""
    pieces: list[tuple[bool, str]] = []  # whether these are whole characters, and the text
    for _, group in groupby(held, key=lambda byte: byte[0]):
        numbers = list(group)
        (_, character, first, size), last = numbers[0], numbers[-1][2]
        if _is_stray(character):
            pieces.append((False, f"{ord(character) - 0xDC00:02X}"))
        elif (first, last) == (1, size):
            pieces.append((True, character))
        else:
            span = f"{first}–{last}" if first < last else f"{first}"
            pieces.append((False, f"{visible(character)} {span}/{size}"))
    parts: list[str] = []
    for whole, run in groupby(pieces, key=lambda piece: piece[0]):
        texts = [text for _, text in run]
        parts += [visible("".join(texts))] if whole else texts
    return " ".join(parts)


def visible(text: str) -> str:
    """A text with all its characters visible, for a reader who has a font for each.

    A newline shows as ⏎, a tab as \\t, the empty text as ∅, a space as · unless it stands alone
    between two other characters. Every script and emoji stay as they are. A character that cannot
    be seen, that modifies a neighbour it does not have, or that stands for a byte that could not be
    decoded, shows as its code point, U+0007. A label that is already visible stays as it is.
    """
    return "".join(visible_characters(text)) or EMPTY


def visible_characters(text: str) -> list[str]:
    """What `visible` makes of every character, each with its marks."""
    characters = split_characters(text)
    shown = []
    for before, character, after in zip(
        [" ", *characters], characters, [*characters[1:], " "], strict=False
    ):
        base, marks = character[0], character[1:]
        if character == " " and " " not in (before, after):
            shown.append(character)
        elif base in MARKS:
            shown.append(MARKS[base] + "".join(map(code_point, marks)))
        elif _is_mark(base) or not base.isprintable() or base in UNSEEN:
            shown.append("".join(map(code_point, character)))
        else:
            shown.append(character)
    return shown


def split_characters(text: str) -> list[str]:
    """Characters as a reader counts them: a letter with its marks is one, and so are emoji that a
    joiner makes one, and a code point, U+0007."""
    characters: list[str] = []
    for piece, after in pairwise([*PIECE.findall(text), " "]):
        last = characters[-1] if characters else " "
        base = last.rstrip("\ufe0f")[-1:]
        joins = piece == JOINER and _is_symbol(base) and _is_symbol(after)
        joined = len(last) > 1 and last.endswith(JOINER)
        if characters and (joins or joined or _is_mark(piece)):
            characters[-1] += piece
        else:
            characters.append(piece)
    return characters


def reads_down(text: str) -> bool:
    """Whether a text beside a vertical axis reads from above: when any of its characters is as wide
    as those of Chinese."""
    return any(unicodedata.east_asian_width(character) in ("W", "F") for character in text)


def runs_down(text: str) -> list[tuple[str, bool]]:
    """A text that reads from above, in runs: single characters that stand upright (True), and texts
    that are turned to the right.

    Characters of East Asian width stand upright, except brackets, dashes and the long-vowel sign
    (Unicode Standard Annex 50).
    """
    runs: list[tuple[str, bool]] = []
    for stands, group in groupby(split_characters(text), key=_stands_upright):
        characters = list(group)
        runs += [(each, True) for each in characters] if stands else [("".join(characters), False)]
    return runs


def _stands_upright(character: str) -> bool:
    base = character[0]
    turned = unicodedata.category(base) in ("Ps", "Pe", "Pd") or base == "ー"
    return reads_down(base) and not turned


def code_point(character: str) -> str:
    """A character by its number in Unicode, as U+4E2D."""
    return f"U+{ord(character):04X}"


def _is_mark(character: str) -> bool:
    """Whether it modifies the character before it."""
    return len(character) == 1 and unicodedata.category(character).startswith("M")


def _is_symbol(character: str) -> bool:
    """Whether it is a pictogram or the tone of its skin."""
    return len(character) == 1 and unicodedata.category(character) in ("So", "Sk")
