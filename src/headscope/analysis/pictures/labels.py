"""Tokens as they can be read beside an axis."""

import unicodedata
from pathlib import Path

import matplotlib
from matplotlib.font_manager import get_font

# The one font of the labels, by file, so that neither matplotlibrc nor the system can change it.
FONT_FILE = Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")
LABEL_LENGTH = 10
MARKS = {" ": "·", "\n": "⏎", "\t": "\\t", "\r": "\\r"}


def token_label(text: str) -> str:
    """A token as it can be read beside an axis, whatever bytes it was made of.

    A space shows as ·, a newline as ⏎, the empty token as ∅. A character the font has no ink for,
    that only modifies its neighbour, or that stands for a byte that could not be decoded, shows as
    its code point, U+4E2D. Past LABEL_LENGTH characters the rest is an ellipsis.
    """
    label = ""
    for character in text:
        shown = MARKS.get(character) or _visible(character)
        if len(label) + len(shown) > LABEL_LENGTH:
            return label + "…"
        label += shown
    return label or "∅"


def readable(text: str) -> str:
    """Any text as it can be drawn: what the font has no ink for shows as its code point."""
    return "".join(mark if mark in " \n" else token_label(mark) for mark in text)


def _visible(character: str) -> str:
    font, code = get_font(FONT_FILE), ord(character)
    safe = (
        character.isprintable()
        and character != "\N{REPLACEMENT CHARACTER}"
        and not unicodedata.category(character).startswith("M")
        and font.get_char_index(code) != 0
        and font.load_char(code).height > 0
    )
    return character if safe else f"U+{code:04X}"
