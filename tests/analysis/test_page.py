"""The laws of the page of attention, without a browser: what it holds and what cannot get out."""

import base64
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.analysis.page import attention_page
from headscope.data.labels import visible


def causal_weights(layers: int, heads: int, tokens: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(layers, heads, tokens, tokens, generator=generator)
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1)


def figures(layers: int, heads: int, **more: Any) -> list[dict[str, Any]]:
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    return [
        {"layer": layer, "head": head, "type": "previous-token", **more} for layer, head in places
    ]


def page(layers: int = 2, heads: int = 3, tokens: int = 5, **other: Any) -> str:
    """A page that is right but for what is given."""
    right = {
        "weights": causal_weights(layers, heads, tokens),
        "labels": [f" word{index}" for index in range(tokens)],
        "figures": figures(layers, heads, entropy=1.25),
        "title": "A title",
    }
    return attention_page(**(right | other))


class Elements(HTMLParser):
    """Every start tag with its attributes, every comment, and the text of each script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Any]] = []
        self.comments = 0
        self.scripts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, attributes))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data

    def handle_comment(self, data: str) -> None:
        self.comments += 1


def held(html: str) -> dict[str, Any]:
    """The data of a page, as its script reads them."""
    return json.loads(Elements(html).scripts[0])


def unpacked(data: dict[str, Any]) -> np.ndarray:
    layers, heads, tokens = data["layers"], data["heads"], len(data["labels"])
    weights = np.zeros((layers, heads, tokens, tokens))
    numbers = iter(np.frombuffer(base64.b64decode(data["weights"]), "<u2") / data["levels"])
    for layer in range(layers):
        for head in range(heads):
            for query in range(tokens):
                for key in range(query + 1):
                    weights[layer, head, query, key] = next(numbers)
    assert next(numbers, None) is None
    return weights


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4, 2), (3, 1, 17), (2, 3, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_weight_is_held_to_within_a_65535th(shape, dtype):
    weights = causal_weights(*shape).to(dtype)
    data = held(page(*shape, weights=weights))
    assert np.abs(unpacked(data) - weights.double().numpy()).max() <= 1 / 65535


def test_a_weight_of_one_and_a_weight_of_zero_are_held_exactly():
    weights = torch.eye(4).expand(2, 2, 4, 4)
    assert (unpacked(held(page(2, 2, 4, weights=weights))) == weights.numpy()).all()


def test_a_weight_that_rounding_put_above_one_is_one():
    weights = torch.eye(4).expand(2, 2, 4, 4)
    assert page(2, 2, 4, weights=weights * 1.0005) == page(2, 2, 4, weights=weights)


def test_weights_may_come_with_a_gradient():
    weights = causal_weights(2, 3, 5)
    assert page(weights=weights.clone().requires_grad_()) == page(weights=weights)


AWKWARD = [
    *("</script>", "<!--", "<script>", "<img src=x onerror=alert(1)>", "]]>", "&lt;", "&", "'\"`"),
    *(
        "\u2028",
        "\u2029",
        "\x00",
        "\r\n",
        "\ud83d",
        "\udc80",
        "\ufffd",
        "\\u003c",
        "\\",
        "${a}",
        "",
    ),
    *("🦜", "中文", "مرحبا", "\u202eabc", "e\u0301", '"the data of the page"', "W" * 999),
]
texts = st.text(st.characters(), max_size=20) | st.sampled_from(AWKWARD)


@given(title=texts, labels=st.lists(texts, min_size=5, max_size=5), name=texts, type=texts)
def test_no_text_adds_to_the_html_or_ends_the_script(title, labels, name, type):
    """The page parses to the same elements, and its script to the same data, whatever the texts."""
    heads = [figure | {"type": type} for figure in figures(2, 3, **{"a " + name: 1})]
    html = page(title=title, labels=labels, figures=heads)
    parsed, plain = Elements(html), Elements(page())
    assert parsed.tags == plain.tags
    assert parsed.comments == plain.comments
    assert parsed.scripts[1:] == plain.scripts[1:]
    assert not set("<>&\u2028\u2029") & set(parsed.scripts[0])
    html.encode("utf-8")  # can be written, lone surrogates and all

    data = json.loads(parsed.scripts[0])
    assert data["title"] == title
    assert data["labels"] == [visible(label) for label in labels]
    assert data["figures"] == heads


def test_the_template_builds_no_html_from_data_and_asks_for_nothing():
    html = page()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", html
    )
    assert not re.search(r"https?://|url\(|@import|\bfetch\(|XMLHttpRequest", html)
    policies = [
        dict(attributes)["content"]
        for tag, attributes in Elements(html).tags
        if tag == "meta" and dict(attributes).get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none';")


def test_figures_that_json_cannot_say_are_held_as_none_and_numbers_of_libraries_as_numbers():
    more = {"a": float("nan"), "b": float("-inf"), "c": None, "d": 3, "e": "text"}
    more |= {"f": np.float32(0.5), "g": torch.tensor(0.25)}
    expected = {"a": None, "b": None, "c": None, "d": 3, "e": "text", "f": 0.5, "g": 0.25}
    assert held(page(figures=figures(2, 3, **more)))["figures"] == figures(2, 3, **expected)


def test_a_page_of_8_layers_of_8_heads_and_256_tokens_is_below_6_megabytes():
    assert len(page(8, 8, 256).encode("utf-8")) < 6_000_000


def weights_with(value: float, query: int, key: int) -> torch.Tensor:
    weights = causal_weights(2, 3, 5)
    weights[1, 2, query, key] = value
    return weights


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"weights": torch.ones(3, 5, 5)}, r"\(3, 5, 5\)"),
        ({"weights": torch.ones(2, 3, 5, 4)}, r"\(2, 3, 5, 4\)"),
        ({"weights": torch.ones(2, 3, 0, 0), "labels": []}, r"\(2, 3, 0, 0\)"),
        ({"labels": ["a"] * 4}, "4 labels .* 5 tokens"),
        ({"labels": ["a"] * 6}, "6 labels .* 5 tokens"),
        ({"figures": figures(2, 2)}, "4 heads .* 6"),
        ({"figures": figures(3, 2)}, r"\[2\] .* \(1, 0\).* \(0, 2\)"),
        ({"figures": [{"type": "a"}] * 6}, r"\[0\] .* \(None, None\).* \(0, 0\)"),
        ({"weights": weights_with(float("nan"), 3, 1)}, "nan"),
        ({"weights": weights_with(-0.5, 3, 1)}, "-0.5 to 1"),
        ({"weights": weights_with(1.5, 3, 1)}, "0.*to 1.5"),
        ({"weights": weights_with(0.5, 1, 3)}, "future"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        page(**wrong)
