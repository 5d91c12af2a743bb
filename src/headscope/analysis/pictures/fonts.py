"""Chooses an installed font for each character, and makes labels that these fonts can draw.

DejaVu Sans, which matplotlib contains, is the first choice. The system's fonts are searched only
when a text has a character that DejaVu Sans lacks.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from matplotlib.font_manager import FontProperties, findfont, findSystemFonts, fontManager, get_font

from headscope.data.labels import EMPTY, code_point, split_characters, visible_characters

LABEL_LENGTH = 10
MOST_MARKS = 8  # on one character; more would cover the line above
FIRST = "DejaVu Sans"
FALLBACKS = (
    # Chinese, Japanese kana, and in most of them Korean hangul. matplotlib before 3.11 reads only
    # the first font of a collection: in Noto Sans CJK this is the Japanese one.
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Noto Sans CJK JP"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback"),
    *("PingFang SC", "Hiragino Sans GB", "Heiti SC", "Heiti TC", "STHeiti"),
    *("Microsoft YaHei", "SimHei", "SimSun", "Microsoft JhengHei"),
    *("Hiragino Sans", "Yu Gothic", "MS Gothic", "Noto Sans JP"),
    *("Apple SD Gothic Neo", "Malgun Gothic", "NanumGothic", "Noto Sans KR"),
    # Scripts that DejaVu Sans lacks.
    *("Noto Sans Devanagari", "Lohit Devanagari", "Kohinoor Devanagari", "Nirmala UI"),
    *("Noto Sans Thai", "Loma", "Thonburi", "Leelawadee UI", "Tahoma"),
    *("FreeSans", "Arial Unicode MS"),
    # Emoji as outlines: matplotlib cannot scale a font of bitmaps.
    *("Noto Emoji", "Symbola", "Segoe UI Emoji"),
)
"""Families for the characters that DejaVu Sans lacks, in order of preference."""
PLAIN: Any = dict.fromkeys(["style", "variant", "weight", "stretch"], "normal")
"""Given to every font, because a matplotlibrc sets other defaults."""


@cache
def family_for(character: str) -> str | None:
    """The first family that can draw a character and all of its marks, or None."""
    if character.isascii() or _has_ink(_file_of(FIRST), character):
        return FIRST
    return next((name for name, file in fallbacks().items() if _has_ink(file, character)), None)


def font_properties(size: float, texts: Iterable[str] = ()) -> FontProperties:
    """DejaVu Sans and the families that `texts` need; a matplotlibrc changes none of it."""
    foreign = "\n".join(text for text in texts if not text.isascii())
    needed = set(map(family_for, split_characters(foreign)))
    families = [FIRST, *(family for family in FALLBACKS if family in needed)]
    return FontProperties(family=families, size=size, **PLAIN)


@cache
def fallbacks() -> dict[str, str]:
    """The installed families of FALLBACKS and their files."""
    # matplotlib caches its list of fonts on disk: fonts that were installed later are missing.
    listed = {entry.fname for entry in fontManager.ttflist}
    for file in set(findSystemFonts()) - listed:
        with suppress(OSError, RuntimeError):  # FreeType cannot read the file
            fontManager.addfont(file)
    found = {}
    for family in FALLBACKS:
        entries = [entry for entry in fontManager.ttflist if entry.name == family]
        if entries:
            regular = min(entries, key=lambda entry: fontManager.score_weight(entry.weight, 400))
            # matplotlib warns when a family has no font of weight 400.
            fontManager.ttflist.append(replace(regular, weight=400))
            found[family] = _file_of(family)
    return found


def _file_of(family: str) -> str:
    """The file of an installed family. Since matplotlib 3.11 it names the font of a collection."""
    return findfont(FontProperties(family=[family], **PLAIN))


def _has_ink(file: str, character: str) -> bool:
    font = get_font(file)
    codes = [ord(each) for each in character]
    return all(font.get_char_index(code) and font.load_char(code).height > 0 for code in codes)


def picture_label(text: str) -> str:
    """A short label of a token, with only `visible` characters that have a font.

    A character that no installed font can draw becomes its code point, as U+4E2D. A label of more
    than LABEL_LENGTH + 1 characters is cut to LABEL_LENGTH and an ellipsis.
    """
    shown = split_characters("".join(map(_drawable, visible_characters(text))))
    if len(shown) > LABEL_LENGTH + 1:
        shown[LABEL_LENGTH:] = "…"
    return "".join(shown) or EMPTY


def readable(text: str) -> str:
    """A title or a name that the fonts can draw, with its spaces and newlines."""
    return "".join(
        word if word in ("", " ", "\n") else "".join(map(_drawable, visible_characters(word)))
        for word in re.split("([ \n])", text)
    )


def _drawable(character: str) -> str:
    """A visible character and its marks, each as a code point if no font can draw it."""
    base, marks = character[0], character[1:]
    if family_for(character) and len(marks) <= MOST_MARKS:
        return character
    return (base if family_for(base) else code_point(base)) + "".join(map(code_point, marks))


def stacked(label: str) -> str:
    """A label of `picture_label` with one character per line."""
    characters = split_characters(label)
    return "\n".join("\n".join(each) if each.startswith("U+") else each for each in characters)
