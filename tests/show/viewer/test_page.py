"""The laws of attention.html, without a browser: what it holds and what cannot get out."""

import base64
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from viewer_data import HOSTILE, Elements, run

from headscope.data.labels import visible
from headscope.show.explore.routes import STATIC as EXPLORE
from headscope.show.viewer.page import STATIC, attention_page

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


def test_the_parts_of_every_run_and_step_come_back():
    runs = [run(name, labels=LABELS, steps=[0, 9]) for name in ("one", "two")]
    elements = Elements(attention_page(title="", runs=runs))
    seen = set()
    for given_run, shown in zip(runs, elements.data["runs"], strict=True):
        steps = zip(given_run["history"]["steps"], shown["history"]["steps"], strict=True)
        for given_step, step in steps:
            assert {**step, "parts": None} == {**given_step, "parts": None}
            for given_key, key in zip(given_step["parts"], step["parts"], strict=True):
                part = base64.b64decode(elements.scripts[f"part-{key}"])
                assert part == given_run["parts"][given_key]
                seen.add(key)
    assert len(seen) == 2 * 2 * 3
    assert runs[0]["history"]["steps"][0]["parts"][0] == "one/0/0"  # not changed


def test_the_page_makes_no_request_and_builds_no_html_from_data():
    metas = [dict(attributes) for tag, attributes in Elements(page()).tags if tag == "meta"]
    [policy] = [each for each in metas if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy["content"].startswith("default-src 'none';")
    assert "connect-src" not in policy["content"]
    builders = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    for file in STATIC.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(rf"{builders}|https?://|@import|XMLHttpRequest", text)
        assert bool(re.search(r"\bfetch\(", text)) == (file.name == "tab.js")
        assert file.name == "texts.js" or len(text.splitlines()) <= 250
    assert not re.search(r"https?://|url\(|@import", (STATIC / "viewer.css").read_text("utf-8"))


def test_all_texts_of_the_interface_stand_in_one_file():
    literal = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
    modules = [*STATIC.glob("*.js"), *EXPLORE.glob("*.js")]
    found, count = [], 0
    for file in {*modules} - {STATIC / "texts.js", STATIC / "glossary.js"}:
        code = re.sub(r"/\*.*?\*/", "", file.read_text("utf-8"), flags=re.S)
        for line in re.sub(r"(^|\s)//.*$", "", code, flags=re.M).splitlines():
            for match in [] if "class: " in line else literal.finditer(line):
                text = re.sub(r"\$\{[^}]*\}", "", match[1] or match[2] or "")
                words = re.search(r"[A-Za-z]{2,} [A-Za-z]{2,}", text)
                if words or re.fullmatch(r"[A-Z][a-z]{2,}", text):
                    found.append((file.name, text))
                count += 1
    keys = {"Escape", "Enter"}
    assert [each for each in found if each[1] not in keys and "gradient" not in each[1]] == []
    assert count > 700
