"""The laws of attention.html, without a browser: what it holds and what cannot get out."""

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from viewer_data import HOSTILE, Elements, run

from headscope.data.labels import visible
from headscope.show.viewer.files import STATIC
from headscope.show.viewer.page import attention_page

LABELS = [f" word{number}" for number in range(5)]


def page(title: str = "A title", **others: Any) -> str:
    return attention_page(title=title, runs=[run(**({"labels": LABELS, "steps": [0, 9]} | others))])


AWKWARD = [
    *("</script>", "<!--", "<script>", HOSTILE, "]]>", "&lt;", "&", "'\"`", "__proto__"),
    *("\u2028", "\u2029", "\x00", "\r\n", "\ud83d", "\udc80", "\ufffd", "\\u003c", "\\", "${a}"),
    *("", "🦜", "中文", "مرحبا", "\u202eabc", "e\u0301", "W" * 199),
]
texts = st.text(st.characters(), max_size=20) | st.sampled_from(AWKWARD)
encodable = texts.filter(lambda text: text.isprintable() or text.isascii())
"""Names of heads are never lone surrogates."""


@settings(max_examples=25)
@given(title=texts, labels=st.lists(texts, min_size=5, max_size=5), name=texts, head=encodable)
def test_no_text_adds_to_the_html_or_ends_a_script(title, labels, name, head):
    html = page(title, labels=labels, names=[head] * 8, name=name, text=name)
    parsed, plain = Elements(html), Elements(page())
    assert parsed.tags == plain.tags
    assert not set("<>&\u2028\u2029") & set(parsed.scripts["data"])
    html.encode("utf-8")  # can be written, lone surrogates and all

    assert parsed.data["title"] == title
    [shown] = parsed.data["runs"]
    assert shown["name"] == shown["text"] == name
    for label, text in zip(labels, shown["history"]["labels"], strict=True):
        assert text == visible(label) or visible(label).startswith(text.removesuffix("…"))
    assert shown["history"]["steps"][0]["names"] == [head] * 8


def test_the_page_makes_no_request_and_builds_no_html_from_data():
    metas = [dict(attributes) for tag, attributes in Elements(page()).tags if tag == "meta"]
    [policy] = [each for each in metas if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy["content"].startswith("default-src 'none';")
    assert "connect-src" not in policy["content"]
    builders = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    builders += "|dangerouslySetInnerHTML"  # the only way for Preact
    for file in {*STATIC.glob("*.js")} - {STATIC / "preact.js"}:
        text = file.read_text(encoding="utf-8")
        assert not re.search(rf"{builders}|https?://|@import|XMLHttpRequest", text)
        assert bool(re.search(r"\bfetch\(", text)) == (file.name == "tab.js")
    assert not re.search(r"https?://|url\(|@import", (STATIC / "viewer.css").read_text("utf-8"))
