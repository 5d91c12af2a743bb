"""Chooses an installed font for each character, and makes labels that these fonts can draw.

The first choice is DejaVu Sans, which is part of matplotlib.
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
MANY_CODES = re.compile(r"((?:U\+[0-9A-F]{4,6}){4})(?:U\+[0-9A-F]{4,6})+")
MOST_MARKS = 8  # combining marks on one character; more would cover the line above
FIRST = "DejaVu Sans"
FALLBACKS = (
    # Fonts for Chinese and for Japanese kana; most also contain Korean hangul. Versions of
    # matplotlib before 3.11 read only the first font of a font collection. In Noto Sans CJK, this
    # is the Japanese font.
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Noto Sans CJK JP"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback"),
    *("PingFang SC", "Hiragino Sans GB", "Heiti SC", "Heiti TC", "STHeiti"),
    *("Microsoft YaHei", "SimHei", "SimSun", "Microsoft JhengHei"),
    *("Hiragino Sans", "Yu Gothic", "MS Gothic", "Noto Sans JP"),
    *("Apple SD Gothic Neo", "Malgun Gothic", "NanumGothic", "Noto Sans KR"),
    # Fonts for other scripts that DejaVu Sans lacks.
    *("Noto Sans Devanagari", "Lohit Devanagari", "Kohinoor Devanagari", "Nirmala UI"),
    *("Noto Sans Thai", "Loma", "Thonburi", "Leelawadee UI", "Tahoma"),
    *("FreeSans", "Arial Unicode MS"),
    # Emoji fonts with outlines, because matplotlib cannot scale bitmap fonts.
    *("Noto Emoji", "Symbola", "Segoe UI Emoji"),
)
"""Font families for the characters that DejaVu Sans lacks, in order of preference."""
PLAIN: Any = dict.fromkeys(["style", "variant", "weight", "stretch"], "normal")
"""Properties of every font. They override the defaults in a matplotlibrc file."""


@cache
def family_for(character: str) -> str | None:
    """The first font family that can draw a character and all of its combining marks, or None."""
    if character.isascii() or _has_ink(_file_of(FIRST), character):
        return FIRST
    return next((name for name, file in fallbacks().items() if _has_ink(file, character)), None)


def font_properties(size: float, texts: Iterable[str] = ()) -> FontProperties:
    """DejaVu Sans and the font families that `texts` need, in a size in points."""
    foreign = "\n".join(text for text in texts if not text.isascii())
    needed = set(map(family_for, split_characters(foreign)))
    families = [FIRST, *(family for family in FALLBACKS if family in needed)]
    return FontProperties(family=families, size=size, **PLAIN)


@cache
def fallbacks() -> dict[str, str]:
    """The installed font families of FALLBACKS, each with its font file."""
    # matplotlib caches its list of fonts on disk, so add the fonts that were installed later.
    listed = {entry.fname for entry in fontManager.ttflist}
    for file in set(findSystemFonts()) - listed:
        with suppress(OSError, RuntimeError):  # skip files that FreeType cannot read
            fontManager.addfont(file)
    found = {}
    for family in FALLBACKS:
        entries = [entry for entry in fontManager.ttflist if entry.name == family]
        if entries:
            regular = min(entries, key=lambda entry: fontManager.score_weight(entry.weight, 400))
            # Without this entry, matplotlib warns when a family has no font of weight 400.
            fontManager.ttflist.append(replace(regular, weight=400))
            found[family] = _file_of(family)
    return found


def _file_of(family: str) -> str:
    """The font file of an installed family. Since matplotlib 3.11, the path also selects the font
    within a font collection."""
    return findfont(FontProperties(family=[family], **PLAIN))


def _has_ink(file: str, character: str) -> bool:
    font = get_font(file)
    codes = [ord(each) for each in character]
    return all(font.get_char_index(code) and font.load_char(code).height > 0 for code in codes)


def picture_label(text: str) -> str:
    """A label of a token. It contains only visible characters that an installed font can draw.

    A character without a font is replaced by its code point, such as U+4E2D. A label of more than
    LABEL_LENGTH + 1 characters is cut to LABEL_LENGTH characters and an ellipsis.
    """
    shown = split_characters("".join(map(_drawable, visible_characters(text))))
    if len(shown) > LABEL_LENGTH + 1:
        shown[LABEL_LENGTH:] = "…"
    return "".join(shown) or EMPTY


def readable(text: str) -> str:
    """Replace the characters of a title or name that no font can draw. Keep spaces and newlines. Of
    many such characters in a row, only the first are kept, because their codes are long."""
    shown = "".join(
        word if word in ("", " ", "\n") else "".join(map(_drawable, visible_characters(word)))
        for word in re.split("([ \n])", text)
    )
    return MANY_CODES.sub(r"\1…", shown)


def _drawable(character: str) -> str:
    """Replace a character by its code point if no font can draw it. If no font can draw the
    character with its combining marks, replace the marks."""
    base, marks = character[0], character[1:]
    if family_for(character) and len(marks) <= MOST_MARKS:
        return character
    return (base if family_for(base) else code_point(base)) + "".join(map(code_point, marks))
