"""Which of the installed fonts draws which character.

DejaVu Sans, which matplotlib brings along, is the first choice: most texts need no other, and the
system's fonts are looked at only when a character is missing there.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache

from matplotlib.font_manager import (
    FontEntry,
    FontProperties,
    findfont,
    findSystemFonts,
    fontManager,
    get_font,
    weight_dict,
)

from headscope.data.labels import split_characters

FIRST = "DejaVu Sans"
FALLBACKS = (
    # Chinese, with Japanese kana and mostly with Korean hangul. matplotlib before 3.11 reads only
    # the first font of a collection: the Japanese one in Noto Sans CJK.
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
"""Families for the characters that DejaVu Sans lacks, the preferred first."""
REGULAR = 400  # the weight of a font that is neither light nor bold


@cache
def family_for(character: str) -> str | None:
    """The first family with ink for a character and all of its marks, None where there is none."""
    if character.isascii() or _has_ink(_file_of(FIRST), character):
        return FIRST
    for family, file in fallbacks().items():
        if _has_ink(file, character):
            return family
    return None


def font_properties(size: float, texts: Iterable[str] = ()) -> FontProperties:
    """DejaVu Sans and the other families that `texts` need, `size` in points. All else is given, so
    that no matplotlibrc can change it."""
    needed = {
        family
        for text in texts
        if not text.isascii()
        for character in split_characters(text)
        if (family := family_for(character))
    }
    families = [FIRST, *(family for family in FALLBACKS if family in needed)]
    return FontProperties(families, "normal", "normal", "normal", "normal", size)


@cache
def fallbacks() -> dict[str, str]:
    """The files of the FALLBACKS that are installed, searched for once per process.

    A font may have been installed after matplotlib wrote its list of fonts to its cache.
    """
    listed = {entry.fname for entry in fontManager.ttflist}
    for file in set(findSystemFonts()) - listed:
        with suppress(OSError, RuntimeError):  # a file that FreeType cannot read
            fontManager.addfont(file)
    found = {}
    for family in FALLBACKS:
        weights = {weight_of(entry): entry for entry in fontManager.ttflist if entry.name == family}
        if weights and REGULAR not in weights:  # matplotlib would warn at every size
            nearest = min(weights, key=lambda weight: abs(weight - REGULAR))
            fontManager.ttflist.append(replace(weights[nearest], weight=REGULAR))
        if weights:
            found[family] = _file_of(family)
    return found


def weight_of(entry: FontEntry) -> int:
    return weight_dict[entry.weight] if isinstance(entry.weight, str) else entry.weight


def _file_of(family: str) -> str:
    """The file of an installed family; since matplotlib 3.11 also which font of a collection."""
    return findfont(FontProperties([family], "normal", "normal", "normal", "normal"))


def _has_ink(file: str, character: str) -> bool:
    font = get_font(file)
    codes = [ord(each) for each in character]
    return all(font.get_char_index(code) and font.load_char(code).height > 0 for code in codes)
