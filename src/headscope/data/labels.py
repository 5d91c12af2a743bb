"""Creates readable labels of tokens, for pictures and the HTML page."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import groupby, islice, pairwise

SUBSTITUTES = {" ": "·", "\n": "⏎", "\t": "\\t", "\r": "\\r"}
EMPTY = "∅"
JOINER = "\N{ZERO WIDTH JOINER}"
# Characters that show nothing useful, although Python considers them printable: the replacement
# character of a byte that could not be decoded, Hangul fillers, the empty Braille cell, and marks
# that only change other characters.
NOT_VISIBLE = "\N{REPLACEMENT CHARACTER}\u115f\u1160\u3164\uffa0\u2800\u034f"
NOT_VISIBLE += "".join(map(chr, range(0xFE00, 0xFE10)))
DOTTED_CIRCLE = "\N{DOTTED CIRCLE}"
MARK, PICTOGRAMS = "M", ("So", "Sk")  # categories: combining marks; pictograms and skin tones
PIECE = re.compile(r"U\+[0-9A-F]{4,6}|.", re.DOTALL)


def token_labels(tokens: Iterable[bytes]) -> list[str]:
    """One label for each token of a text. `tokens` contains the UTF-8 bytes of each token.

    - Whole characters are shown as `visible` returns them.
    - If a character is split between tokens, each label shows which of its bytes are in the token:
      多 1/3 (byte 1 of 3) in one token and 多 2–3/3 in the next.
    - Bytes that belong to no valid character are shown in hexadecimal: E5 A4.
    - A space separates a split character or an invalid byte from the rest: "多 3/3 言 1/3".
    - A token without bytes is shown as ∅ (`Tokenizer.labels` has names of special tokens). The
      bytes before and after it never form a character together.
    """
    tokens = list(tokens)
    # 0xFF never occurs in UTF-8, so it separates the bytes before and after an empty token.
    text = b"".join(token or b"\xff" for token in tokens).decode(errors="surrogateescape")
    text_bytes = _bytes_of(text)
    groups = [list(islice(text_bytes, len(token) or 1)) for token in tokens]
    return [_label(group) if token else EMPTY for token, group in zip(tokens, groups, strict=True)]


Byte = tuple[int, str, int, int]
"""A byte of a text: the index of its character in the text, the character, the position of the byte
in the character (from 1), and the number of bytes of the character."""


def _bytes_of(text: str) -> Iterator[Byte]:
    for index, character in enumerate(text):
        size = 1 if _is_stray(character) else len(character.encode())
        for number in range(1, size + 1):
            yield index, character, number, size


def _is_stray(character: str) -> bool:
    """Whether `surrogateescape` decoded this from a byte that belongs to no valid character."""
    return "\udc80" <= character <= "\udcff"


def _label(token_bytes: list[Byte]) -> str:
    """The label of one token."""
    pieces: list[tuple[bool, str]] = []  # (whether it is a whole character, text)
    for _, group in groupby(token_bytes, key=lambda byte: byte[0]):
        same_character = list(group)
        (_, character, first, size), last = same_character[0], same_character[-1][2]
        if _is_stray(character):
            pieces.append((False, f"{ord(character) - 0xDC00:02X}"))
        elif (first, last) == (1, size):
            pieces.append((True, character))
        else:
            span = f"{first}–{last}" if first < last else f"{first}"
            pieces.append((False, f"{visible(character)} {span}/{size}"))
    words: list[str] = []
    for whole, run in groupby(pieces, key=lambda piece: piece[0]):
        texts = [text for _, text in run]
        words += [visible("".join(texts))] if whole else texts
    return " ".join(words)


def visible(text: str) -> str:
    """The text with invisible characters replaced by visible ones.

    - A newline becomes ⏎, a tab \\t, and the empty text ∅.
    - A space becomes ·, except a single space between two other characters.
    - Any other invisible character becomes its code point, such as U+0007. The same holds for the
      replacement character of an invalid byte.
    - A combining mark without a base character, such as a vowel in Hindi, is on a dotted circle.
    - All others are unchanged, in every script. So applying `visible` again changes nothing.
    """
    return "".join(visible_characters(text)) or EMPTY


def visible_characters(text: str) -> list[str]:
    """The result of `visible`, with one item for each character and its combining marks."""
    characters = [" ", *split_characters(text), " "]
    shown = []
    neighbours = zip(characters, characters[1:], characters[2:], strict=False)
    for previous, character, following in neighbours:
        base, marks = character[0], character[1:]
        if character == " " and " " not in (previous, following):
            shown.append(character)
        elif base in SUBSTITUTES:
            shown.append(SUBSTITUTES[base] + "".join(map(code_point, marks)))
        elif not base.isprintable() or base in NOT_VISIBLE:
            shown.append("".join(map(code_point, character)))
        elif _is(base, MARK):
            shown.append(DOTTED_CIRCLE + character)
        else:
            shown.append(character)
    return shown


def split_characters(text: str) -> list[str]:
    """Splits a text into characters as a reader counts them. A letter with its combining marks is
    one, and so is a combination of emoji with joiners, or a code point such as U+0007."""
    characters: list[str] = []
    for piece, after in pairwise([*PIECE.findall(text), " "]):
        last = characters[-1] if characters else " "
        base = last.rstrip("\ufe0f")[-1:]
        joins = piece == JOINER and _is(base, *PICTOGRAMS) and _is(after, *PICTOGRAMS)
        joined = len(last) > 1 and last.endswith(JOINER)
        if characters and (joins or joined or _is(piece, MARK)):
            characters[-1] += piece
        else:
            characters.append(piece)
    return characters


def reads_down(text: str) -> bool:
    """Whether to write a label of a vertical axis downwards: if a character is wide."""
    return any(unicodedata.east_asian_width(character) in ("W", "F") for character in text)


def code_point(character: str) -> str:
    """The character's Unicode code point, such as U+4E2D."""
    return f"U+{ord(character):04X}"


def _is(character: str, *kinds: str) -> bool:
    """Whether this is one character, whose Unicode category begins with one of `kinds`."""
    return len(character) == 1 and unicodedata.category(character).startswith(kinds)
