"""Pictures draw every script that an installed font has, at the size that was measured."""

import io
import warnings

import pytest
import torch
from drawn import AWKWARD, NO_FONT, needs_chinese_font, words_of
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

from headscope.analysis.pictures import attention_maps
from headscope.analysis.pictures.sheet import (
    LABEL_LENGTH,
    MOST_MARKS,
    fallbacks,
    family_for,
    font_properties,
    picture_label,
    readable,
)
from headscope.data.labels import split_characters

CHINESE = ["道", "可", "多 1/3", "多 2–3/3", "天地不仁", "·the", "「名」", "E5"]


@pytest.fixture
def fonts_looked_up_again():
    for function in (family_for, fallbacks):
        function.cache_clear()
    yield
    for function in (family_for, fallbacks):
        function.cache_clear()


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
    labels = {" the": "·the", "": "∅", "$x_2$": "$x_2$", NO_FONT: "U+12000"}
    labels["e\u0301" * (LABEL_LENGTH + 2)] = "e\u0301" * LABEL_LENGTH + "…"
    labels["e" + "\u0301" * 99] = "e" + "U+0301" * 9 + "…"
    assert [picture_label(text) for text in labels] == [*labels.values()]
    assert readable(f"a {NO_FONT} \x00\n") == "a U+12000 U+0000\n"


@pytest.mark.slow  # in .ci/run, the quick tests have no such font
@needs_chinese_font
def test_a_font_that_matplotlib_has_not_listed_yet_is_found(monkeypatch, fonts_looked_up_again):
    """matplotlib keeps its list of fonts in a file. A font may have been installed since."""
    known = fallbacks()
    files = {str(file) for file in known.values()}
    listed = [entry for entry in fontManager.ttflist if entry.fname not in files]
    monkeypatch.setattr(fontManager, "ttflist", listed)
    fallbacks.cache_clear()
    assert fallbacks() == known


def test_without_a_font_for_a_character_its_code_point_is_drawn(monkeypatch, fonts_looked_up_again):
    monkeypatch.setattr("headscope.analysis.pictures.sheet.FALLBACKS", ())
    assert picture_label("多 1/3") == "U+591A 1/3"
    assert readable("run 名") == "run U+540D"


@pytest.mark.slow  # in .ci/run, the quick tests have no such font
@needs_chinese_font
@pytest.mark.parametrize("form", ["png", "svg"])
def test_chinese_stands_upright_in_the_report_and_is_drawn_without_a_warning(form, caplog):
    texts = CHINESE * 2
    figure = attention_maps(torch.eye(len(texts)).expand(2, -1, -1), texts, title="Layer 0 of 名")
    labels = figure.axes[0].get_xticklabels()
    turned = {label.get_text(): label.get_rotation() for label in labels}
    assert turned["道"] == turned["天\n地\n不\n仁"] == 0
    assert turned["·the"] == turned["E5"] == 90
    assert "U+" not in words_of(figure)
    assert "Layer 0 of 名" in words_of(figure)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(file, format=form)
    assert caplog.text == ""
