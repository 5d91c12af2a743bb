"""Labels as the installed fonts can draw them."""

import re
import unicodedata
from itertools import groupby

from headscope.analysis.labels import EMPTY, code_point, split_characters, visible_characters
from headscope.analysis.pictures.fonts import family_for

LABEL_LENGTH = 10
EM_ASCENT = 0.88
"""How much of a Chinese character's square stands above the baseline, in most fonts."""


def picture_label(text: str) -> str:
    """A token's label as a picture can show it: `visible` characters, few, that have a font.

    What no installed font can draw shows as its code point, U+4E2D. Of more than LABEL_LENGTH + 1
    characters, however each of them shows, LABEL_LENGTH and an ellipsis remain.
    """
    shown = [_drawable(character) for character in visible_characters(text)]
    if len(shown) > LABEL_LENGTH + 1:
        shown[LABEL_LENGTH:] = "…"
    return "".join(shown) or EMPTY


def readable(text: str) -> str:
    """A title or a name as a picture can show it, whole, with its spaces and newlines."""
    return "".join(
        word if word in ("", " ", "\n") else "".join(map(_drawable, visible_characters(word)))
        for word in re.split("([ \n])", text)
    )


def _drawable(character: str) -> str:
    """A visible character with its marks, or code points instead of what no font can draw."""
    if family_for(character):
        return character
    base, marks = character[0], character[1:]
    return (base if family_for(base) else code_point(base)) + "".join(map(code_point, marks))


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
    for upright, group in groupby(split_characters(text), key=_stands_upright):
        runs += [(each, True) for each in group] if upright else [("".join(group), False)]
    return runs


def _stands_upright(character: str) -> bool:
    base = character[0]
    return reads_down(base) and unicodedata.category(base) not in ("Ps", "Pe", "Pd") and base != "ー"
