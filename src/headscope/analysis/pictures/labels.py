"""Labels as the installed fonts can draw them."""

import re

from headscope.analysis.pictures.fonts import family_for
from headscope.data.labels import EMPTY, code_point, split_characters, visible_characters

LABEL_LENGTH = 10
MOST_MARKS = 8  # that stand on one character; more would cover what is above


def picture_label(text: str) -> str:
    """A token's label as a picture can show it: `visible` characters, few, that have a font.

    What no installed font can draw shows as its code point, U+4E2D. Of more than LABEL_LENGTH + 1
    characters, however each of them shows, LABEL_LENGTH and an ellipsis remain.
    """
    shown = split_characters("".join(map(_drawable, visible_characters(text))))
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
    """A visible character with its marks, or code points instead of what cannot be drawn."""
    base, marks = character[0], character[1:]
    if family_for(character) and len(marks) <= MOST_MARKS:
        return character
    return (base if family_for(base) else code_point(base)) + "".join(map(code_point, marks))


def stacked(label: str) -> str:
    """A label of `picture_label` with every character below the one before it."""
    characters = split_characters(label)
    return "\n".join("\n".join(each) if each.startswith("U+") else each for each in characters)
