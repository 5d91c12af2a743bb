"""Pictures draw every text: with the fonts that are installed, and else as code points."""

import io
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text

from headscope.analysis.pictures import attention_maps, heatmaps_of
from headscope.analysis.sheet import (
    LABEL_LENGTH,
    MOST_MARKS,
    family_for,
    font_properties,
    picture_label,
    readable,
)
from headscope.data.labels import split_characters

# What tokenizers and people really give: broken bytes, controls, mathtext, other scripts.
AWKWARD = [
    *("", "\n", "\t\r", "\x00", "\ufffd", "\udc80", "$x_2$", "$\\nonsense$", "$$"),
    *("中文", "🦜", "مرحبا", "שלום", "\u0301", "\u202eabc", "W" * 99),
    *("多 1/3", "E5 A4", "「可」", "カー", "한국어", "नमस्ते", "สวัสดี", "e\u0301", "ё", "數" * 99),
]
TITLE = " ".join(AWKWARD)
CHINESE = ["道", "可", "多 1/3", "多 2–3/3", "天地不仁", "·the", "「名」", "E5"]


@given(st.text(st.characters(exclude_categories=[])) | st.sampled_from(AWKWARD))
def test_any_text_has_a_short_label_that_the_fonts_can_draw(text):
    label = picture_label(text)
    assert label.isprintable() or "\u200d" in label
    assert 1 <= len(split_characters(label)) <= LABEL_LENGTH + 1
    assert len(label) <= (LABEL_LENGTH + 1) * (1 + MOST_MARKS)
    families = font_properties(10, [label]).get_family()
    fonts = [get_font(findfont(FontProperties(family=[each]))) for each in families]
    for character in label.replace(" ", ""):
        [font, *_] = [font for font in fonts if font.get_char_index(ord(character))]
        assert font.load_char(ord(character)).height > 0


def test_labels_and_titles_read_as():
    cuneiform = "\U00012000"
    labels = {" the": "·the", "": "∅", "$x_2$": "$x_2$", cuneiform: "U+12000"}
    labels["e\u0301" * (LABEL_LENGTH + 2)] = "e\u0301" * LABEL_LENGTH + "…"
    labels["e" + "\u0301" * 99] = "e" + "U+0301" * 9 + "…"
    assert [picture_label(text) for text in labels] == [*labels.values()]
    assert readable(f"a {cuneiform} \x00\n") == "a U+12000 U+0000\n"


def test_without_a_font_for_a_character_its_code_point_is_drawn(monkeypatch):
    monkeypatch.setattr("headscope.analysis.sheet.fallbacks", dict)
    family_for.cache_clear()
    try:
        assert picture_label("多 1/3") == "U+591A 1/3"
        assert readable("run 名") == "run U+540D"
    finally:
        family_for.cache_clear()


@pytest.mark.slow  # in .ci/run, the quick tests have no such font
@pytest.mark.skipif(family_for("多") is None, reason="needs a font such as fonts-wqy-zenhei")
@pytest.mark.parametrize("form", ["png", "svg"])
def test_chinese_stands_upright_in_the_report_and_is_drawn_without_a_warning(form, caplog):
    texts = CHINESE * 2
    figure = attention_maps(torch.eye(len(texts)).expand(2, -1, -1), texts, title="Layer 0 of 名")
    labels = figure.axes[0].get_xticklabels()
    turned = {label.get_text(): label.get_rotation() for label in labels}
    assert turned["道"] == turned["天\n地\n不\n仁"] == 0
    assert turned["·the"] == turned["E5"] == 90
    drawn = [text.get_text() for text in figure.findobj(Text)]
    assert "Layer 0 of 名" in drawn
    assert not any("U+" in text for text in drawn)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(file, format=form)
    assert caplog.text == ""


def test_every_text_can_be_drawn():
    tokens = len(AWKWARD)
    attention_maps(torch.eye(tokens)[None], AWKWARD, title=TITLE).draw_without_rendering()
    values = dict.fromkeys(AWKWARD[-3:], torch.eye(2))
    heatmaps_of(values, title=TITLE).draw_without_rendering()
