"""Pictures can be read: they draw every script that an installed font has, at the size that was
measured, and no text covers another."""

import io
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from choices import position_of
from drawn import causal_weights
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.text import Text

from headscope.analysis.pictures import (
    attention_maps,
    changes_of_heads,
    heatmaps_of,
    history,
    patching_of_heads,
    position_picture,
    similarity_matrix,
)
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

needs_chinese_font = pytest.mark.skipif(
    family_for("多") is None,
    reason="no installed font has Chinese; Debian's fonts-wqy-zenhei is one",
)

# What tokenizers and people really give: broken bytes, controls, mathtext, other scripts.
AWKWARD = [
    *("", "\n", "\t\r", "\x00", "\ufffd", "\udc80", "$x_2$", "$\\nonsense$", "$$"),
    *("中文", "🦜", "مرحبا", "שלום", "\u0301", "\u202eabc", "W" * 99),
    *("多 1/3", "E5 A4", "「可」", "カー", "한국어", "नमस्ते", "สวัสดี", "e\u0301", "ё", "數" * 99),
]
TITLE = " ".join(AWKWARD)
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
    cuneiform = "\U00012000"
    labels = {" the": "·the", "": "∅", "$x_2$": "$x_2$", cuneiform: "U+12000"}
    labels["e\u0301" * (LABEL_LENGTH + 2)] = "e\u0301" * LABEL_LENGTH + "…"
    labels["e" + "\u0301" * 99] = "e" + "U+0301" * 9 + "…"
    assert [picture_label(text) for text in labels] == [*labels.values()]
    assert readable(f"a {cuneiform} \x00\n") == "a U+12000 U+0000\n"


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
    drawn = " ".join(text for text, _ in drawn_texts(figure))
    assert "Layer 0 of 名" in drawn
    assert "U+" not in drawn
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(file, format=form)
    assert caplog.text == ""


NAMES = [f"L{layer}H{head}" for layer in range(8) for head in range(8)]
VALUES = torch.randn(8, 8)
PICTURES = {
    "maps": lambda: attention_maps(causal_weights(2, 64), (AWKWARD * 9)[:64], title=TITLE),
    "few tokens": lambda: attention_maps(causal_weights(4, 12), AWKWARD[-12:], title=TITLE),
    "metrics": lambda: heatmaps_of({name * 3: VALUES for name in AWKWARD[-3:]}, title=TITLE),
    "changes": lambda: changes_of_heads(VALUES, title=TITLE, label="in nats"),
    "patching": lambda: patching_of_heads(VALUES[:1, :1], VALUES[1:2, :1], title=TITLE),
    "similarity": lambda: similarity_matrix(torch.randn(64, 64), NAMES, title=TITLE, label=TITLE),
    "history": lambda: history([0, 1, 9, 999], {TITLE: torch.randn(4, 8, 8)}, title=TITLE),
    **{name: lambda name=name: position(name) for name in ("digits", "rotary", "relative")},
}


def drawn_texts(figure):
    """Every text that is drawn, with the pixels it takes."""
    texts, draw = [], Text.draw

    def watched(self, renderer, *args, **options):
        if self.get_visible() and self.get_text().strip():
            texts.append((self.get_text(), self.get_window_extent(renderer)))
        draw(self, renderer, *args, **options)

    with mock.patch.object(Text, "draw", watched):
        figure.draw_without_rendering()
    return texts


def position(name):
    return position_picture(position_of(name, heads=8, block_size=64))


@pytest.mark.parametrize("name", PICTURES)
def test_no_text_is_cut_off_or_covered(name):
    figure = PICTURES[name]()
    texts, size = drawn_texts(figure), figure.get_size_inches() * figure.dpi
    for text, box in texts:
        assert ((box.min >= 0) & (box.max <= size)).all(), text
    slack = figure.dpi / 72 * 1.5  # a box is a little higher than its ink
    boxes = np.array([box.extents for _, box in texts])
    apart = boxes[:, None, 2:] - slack <= boxes[None, :, :2]
    clash = ~(apart.any(-1) | apart.any(-1).T)
    np.fill_diagonal(clash, False)
    assert not clash.any(), [(texts[a][0], texts[b][0]) for a, b in np.argwhere(clash)]
