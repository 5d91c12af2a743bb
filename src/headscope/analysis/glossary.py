"""Short explanations of every metric of heads and of every head name.

`as_markdown()` returns the text of `docs/glossary.md`, and `as_javascript()` that of the viewer's
`glossary.js`. After a change, a test fails and prints the command that writes these files again.
"""

import json
from collections.abc import Mapping

from headscope.analysis.head_types import Thresholds
from headscope.analysis.metrics import FIXED_OFFSET, LOCAL_WIDTH

SINGLE_HEAD: Mapping[str, str] = {
    "self": (
        "Weight on the query's own token (the diagonal of the attention map), from 0 to 1. A "
        "high value means that tokens attend to themselves."
    ),
    "previous": (
        "Weight on the token just before the query, from 0 to 1. A high value means that the "
        "head looks one token back (positional heads, Voita 2019)."
    ),
    "local": (
        f"Weight on the query's own token and on tokens at most {LOCAL_WIDTH} tokens away, from "
        "0 to 1. A high value means that the head attends to tokens near the query."
    ),
    "first": (
        "Weight on the first token that the query sees, from 0 to 1. A high value means that the "
        "first token is an attention sink (Xiao 2023)."
    ),
    "single_key": (
        "Weight on the key that gets the most attention, from 0 to 1. The weight on a key is "
        "averaged over the other queries that see it. The first key is excluded, and so are "
        "keys that fewer than half of the queries see. A high value means that a token other "
        "than the first is an attention sink (Xiao 2023)."
    ),
    "fixed_offset": (
        "Weight on the token a fixed number of tokens before the query, from 0 to 1. This number, "
        f"`offset`, is the one with the largest weight, among those that are at least "
        f"{FIXED_OFFSET} and that at least a quarter of the queries have. A high value means that "
        "the head always looks the same number of tokens back."
    ),
    "offset": (
        "The offset of `fixed_offset`, in tokens. A high value means that the head looks far back, "
        "if `fixed_offset` is high too."
    ),
    "distance": (
        "Mean distance between query and key in tokens, weighted by attention, from 0 to the "
        "length of the text minus 1. A high value means that the head looks far back (Vig "
        "2019)."
    ),
    "global": (
        "The share of the other visible tokens that get attention, from 0 to 1. A token counts "
        "fully if its weight is at least 1/m, as under uniform attention, otherwise in proportion: "
        "the sum of min(w, 1/m) over all visible tokens except the query's own token, divided by "
        "the maximum of this sum, (m - 1)/m. A high value means that nearly every token gets "
        "attention."
    ),
    "largest": (
        "Largest weight of a query, at most 1. A high value means that each query attends to a "
        "single token."
    ),
    "entropy": (
        "Entropy of the weights of a query, -sum(w ln w), in nats, from 0 to ln m. A high value "
        "means that attention is spread over many tokens (Shannon 1948)."
    ),
    "entropy_share": (
        "Entropy divided by its maximum, ln m, from 0 to 1. A high value means that attention "
        "is nearly uniform."
    ),
    "effective_keys": (
        "Effective number of tokens that get attention, exp(entropy), from 1 to the length of "
        "the text. Uniform attention on this number of tokens has the same entropy. A high "
        "value means that attention is spread over many tokens (perplexity; Hill 1973)."
    ),
    "unevenness": (
        "Total variation distance from uniform attention, sum |w - 1/m| / 2, from 0 to 1. A "
        "high value means that the weights are far from uniform."
    ),
}

NON_CAUSAL_METRICS: Mapping[str, str] = {
    "next": (
        "Weight on the token just after the query, from 0 to 1. A high value means that the "
        "head looks one token ahead."
    ),
    "backward": (
        "Weight on all tokens before the query, from 0 to 1. A high value means that the head "
        "looks back."
    ),
    "forward": (
        "Weight on all tokens after the query, from 0 to 1. A high value means that the head "
        "looks ahead."
    ),
}

TOKENS: Mapping[str, str] = {
    "same_token": (
        "Weight on earlier copies of the query's own token, from 0 to 1, averaged over the "
        "queries that have an earlier copy. A high value means that the head finds repeated "
        "tokens (duplicate-token heads, Wang 2022)."
    ),
    "punctuation": (
        "Weight on punctuation marks and line breaks, from 0 to 1. A high value means that the "
        "head attends to separators (Clark 2019)."
    ),
    "frequent": (
        "Weight on the most frequent tokens, from 0 to 1. These are the tokens that together "
        "make up half of a corpus. A high value means that the head attends to frequent tokens. "
        "A value near 0 means that it attends to rare tokens (Voita 2019)."
    ),
}

REPEATS: Mapping[str, str] = {
    "induction": (
        "Weight that queries in the second copy of the passage give to the token that followed "
        "the same token in the first copy, minus the weight at the same positions in texts with "
        "other periods. It ranges from -1 to 1. A high value means that the head is an "
        "induction head (Olsson 2022)."
    ),
    "duplicate": (
        "Weight that queries in the second copy of the passage give to the same token in the "
        "first copy, minus the weight at the same positions in texts with other periods. It "
        "ranges from -1 to 1. A high value means that the head is a duplicate-token head (Wang "
        "2022)."
    ),
    "repeat_previous": (
        "The metric `previous`, measured on these random texts. A high value means that the "
        "head looks one token back, whatever the tokens are."
    ),
    "prefix_matching": (
        "Weight that queries in the second copy of the passage give to the token that followed "
        "the same token in the first copy, from 0 to 1. A high value means that the head does "
        "induction, or always looks back by such a number of tokens: unlike `induction`, the "
        "metric is not compared with other texts (Olsson 2022)."
    ),
}

WRITING: Mapping[str, str] = {
    "direct_effect": (
        "What the head adds directly to the logit of the token that follows, minus what it adds to "
        "the logit of the average token, averaged over all tokens. A high value means that the "
        "head itself raises the right tokens (direct logit attribution, Elhage 2021). A head that "
        "acts only through later layers has a value near 0."
    ),
    "copying": (
        "Copying score, from -1 to 1: the sum of the eigenvalues of W_U W_O W_V W_E divided by the "
        "sum of their absolute values. A high value means that the head raises the tokens that it "
        "attends to, whatever they are (Elhage 2021)."
    ),
    "composition": (
        "Strongest composition with a head of an earlier layer, from 0 to 1: the largest "
        "|A B| / (|A| |B|), with Frobenius norms, where B = W_O W_V of the earlier head, and A is "
        "W_K^T W_Q, W_Q^T W_K or W_O W_V of this head (Q-, K- and V-composition). A high value "
        "means that the head reads what an earlier head writes. For random matrices it is about "
        "1 / sqrt(embed_dim), and 0 in the first layer (Elhage 2021)."
    ),
}

BETWEEN_HEADS: Mapping[str, str] = {
    "cosine_similarity": (
        "Cosine similarity of the attention maps of two heads, from 0 to 1. A high value means "
        "that the two heads attend to the same tokens."
    ),
    "jensen_shannon": (
        "Jensen-Shannon distance between the attention maps of two heads, from 0 to 1. It is "
        "the square root of the divergence in bits. A high value means that the two heads "
        "attend to different tokens (Lin 1991; Endres 2003)."
    ),
    "uniqueness": (
        "1 minus the mean cosine similarity of a head to all other heads, from 0 to 1. A high "
        "value means that no other head attends to the same tokens."
    ),
    "diversity": (
        "Mean uniqueness of all heads, from 0 to 1. A high value means that the heads of the "
        "model differ from one another."
    ),
}

ABLATION: Mapping[str, str] = {
    "loss_change": (
        "Loss without the head minus loss with the head, in nats per token. A high value means "
        "that the model needs the head (Michel 2019)."
    ),
    "loss_change_error": (
        "Standard error of `loss_change` over the validation windows, in nats per token. A high "
        "value means that `loss_change` is uncertain."
    ),
    "bits_per_byte_change": (
        "The same change as `loss_change`, in bits per byte. A high value means that the model "
        "needs the head."
    ),
    "other_induction": (
        "Largest value of `induction` among all other heads without the head, from -1 to 1. A high "
        "value means that other heads do induction without the head. A low value means that they "
        "need it, as induction heads need a previous-token head (Elhage 2021)."
    ),
}

GRADIENTS: Mapping[str, str] = {
    "gradient_importance": (
        "|A^T dL/dA| for the output A of the head at one token and the loss L of the text, summed "
        "over the tokens of the text and averaged over the validation windows, in nats per token. "
        "A high value means that the loss is sensitive to the head (Michel 2019, equation 2)."
    ),
    "loss_change_estimate": (
        "First-order estimate of `loss_change` from the gradient, in nats per token: the sum of "
        "(R - A)^T dL/dA over the tokens of a text, averaged over the validation windows. R is "
        "what replaces the output A of the head: zero, or its mean output. A high value means that "
        "the model needs the head, if the loss is nearly linear in its output (Michel 2019)."
    ),
}

PATCHING: Mapping[str, str] = {
    "denoising": (
        "Score of the corrupted text when the output of the head is that on the clean text. The "
        "score is linear in the metric: 0 on the corrupted text, 1 on the clean text. A high value "
        "means that the head alone restores the clean prediction (Heimersheim & Nanda 2024)."
    ),
    "noising": (
        "Score of the clean text when the output of the head is that on the corrupted text, on the "
        "same scale as `denoising`. A high value means that the clean prediction does not need the "
        "head. A low value means that the head is necessary for it (Heimersheim & Nanda 2024)."
    ),
}

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Metrics of one head": SINGLE_HEAD,
    "Metrics of one head without a causal mask": NON_CAUSAL_METRICS,
    "Metrics that depend on the tokens": TOKENS,
    "Metrics on repeated random texts": REPEATS,
    "Metrics of what heads write and read": WRITING,
    "Metrics that compare heads": BETWEEN_HEADS,
    "Metrics of ablation": ABLATION,
    "Estimates of ablation from gradients": GRADIENTS,
    "Scores of activation patching": PATCHING,
}

METRICS: Mapping[str, str] = {
    name: text for section in SECTIONS.values() for name, text in section.items()
}
"""Explains every metric, by its name in tables, TensorBoard and code."""

HEAD_NAMES: Mapping[str, str] = {
    "self": f"The excess of `self` is at least {Thresholds.self}: tokens attend to themselves.",
    "previous-token": (
        f"The excess of `previous` is at least {Thresholds.previous}: the head looks one token "
        "back (Voita 2019)."
    ),
    "next-token": (
        f"The excess of `next` is at least {Thresholds.next}: the head looks one token ahead. "
        "The name is used only without a causal mask."
    ),
    "first-token": (
        f"The excess of `first` is at least {Thresholds.first}: the first token is an attention "
        "sink (Xiao 2023)."
    ),
    "induction": (
        f"The excess of `induction` is at least {Thresholds.induction}: where a text repeats, "
        "the head looks at the token that came next the first time (Olsson 2022)."
    ),
    "same-token": (
        f"The excess of `same_token` is at least {Thresholds.same_token}: the head looks at "
        "earlier copies of the query's own token (Wang 2022)."
    ),
    "punctuation": (
        f"The excess of `punctuation` is at least {Thresholds.punctuation}: the head attends to "
        "punctuation marks and line breaks (Clark 2019)."
    ),
    "single-key": (
        f"The excess of `single_key` is at least {Thresholds.single_key}: most queries attend to "
        "the same token, which is not the first token."
    ),
    "fixed-offset": (
        f"The excess of `fixed_offset` is at least {Thresholds.fixed_offset}: the head looks a "
        f"fixed number of tokens back, at least {FIXED_OFFSET}. The label shows the number, such "
        "as `8 back`."
    ),
    "adjacent": (
        "Twice the smaller of `previous` and `next` has an excess of at least "
        f"{Thresholds.adjacent}: the head attends equally to both neighbours. The name is used "
        "only without a causal mask."
    ),
    "local": (
        f"The excess of `local` is at least {Thresholds.local}: the head attends to tokens near "
        "the query."
    ),
    "backward": (
        f"The excess of `backward` is at least {Thresholds.backward}: the head looks back. The "
        "name is used only without a causal mask."
    ),
    "forward": (
        f"The excess of `forward` is at least {Thresholds.forward}: the head looks ahead. The "
        "name is used only without a causal mask."
    ),
    "frequent-token": (
        f"The excess of `frequent` is at least {Thresholds.frequent}: about two thirds of the "
        "weight or more are on the frequent half of the text."
    ),
    "rare-token": (
        f"The excess of 1 - `frequent` is at least {Thresholds.rare}: about two thirds of the "
        "weight or more are on the rare half of the text (Voita 2019)."
    ),
    "short-range": (
        f"The mean `distance` is at least {Thresholds.short_range:.0%} shorter than for uniform "
        "attention: the head looks back, but not far."
    ),
    "global": (
        f"None of the names above fits, and `global` is at least {Thresholds.spread}: the head "
        "attends to nearly every token."
    ),
    "mixed": (
        f"None of the names above fits, and `global` is below {Thresholds.spread}: the head "
        "attends to several places."
    ),
    "-": (
        f"The head has no name, because `unevenness` is below {Thresholds.even}: the attention "
        "is nearly uniform, as in an untrained model. The names *induction* and *same-token* are "
        "exceptions, because they are about a few queries only."
    ),
}
"""Explains every name that `head_types` can return, with the default thresholds."""

INTRODUCTION = """\
# Glossary of head metrics and head names

<!-- Generated from headscope.analysis.glossary: edit that file. -->

A **query** is a token that attends. A **key** is a token that is attended to. A token is
**visible** to a query if the query can attend to it: with a causal mask, these are the query's own
token and all tokens before it, and with `model.document_mask` only those of its document. **Uniform
attention** gives every visible token the same weight. In formulas, **w** is the attention weight of
one query on one key, and **m** is the number of tokens that are visible to the query.

Most metrics of a head are averaged over all windows of text, and over all queries that see more
than one token. For comparison, `heads.csv` has a column `uniform_<metric>` with the value of each
metric for uniform attention.

A **repeated random text** contains a passage of random tokens twice in a row. Its **period** is the
length of this passage. All its tokens are different, so a small vocabulary has short passages. With
fewer than 5 tokens that represent text, or a `block_size` below 8, the metrics on these texts
cannot be measured, and no head is named *induction*.
"""

ABOUT_NAMES = """\
Most metrics are above 0 even for uniform attention: if a query sees 4 tokens, each of them gets a
weight of 0.25. So the name of a head depends on the **excess** of a metric, the part that uniform
attention does not explain: (metric - u) / (1 - u), where u is the value for uniform attention. The
excess is 0 for uniform attention and at most 1. With u = 0.25, a metric of 0.7 has an excess of
0.6. A metric that depends on the tokens counts only if at least 8 queries see such a token. A head
gets the first of these names that fits:

1. A narrow name, from `self` to `adjacent`. If several names fit, the head gets the name with the
   largest ratio of excess to threshold.
2. `-`, no name, if its attention is nearly uniform. Such a head can only have the narrow names
   `induction` and `same-token`.
3. A broad name, from `local` to `short-range`. If several names fit, the head gets the first of
   them in the table.
4. `global` or `mixed`.

The thresholds are keys of `conf/thresholds/default.yaml`. The table shows their defaults.
"""


def as_markdown() -> str:
    """The text of docs/glossary.md."""
    parts = [INTRODUCTION]
    for title, texts in SECTIONS.items():
        parts += [f"## {title}\n", table("metric", texts)]
    return "\n".join([*parts, "## Names of heads\n", ABOUT_NAMES, table("name", HEAD_NAMES)])


def table(heading: str, texts: Mapping[str, str]) -> str:
    rows = "".join(
        f"| `{name}` | {text.replace('|', chr(92) + '|')} |\n" for name, text in texts.items()
    )
    return f"| {heading} | meaning |\n|---|---|\n{rows}"


def as_javascript() -> str:
    """The text of src/headscope/viewer/static/glossary.js, a JavaScript module."""
    lines = ["// Generated from headscope.analysis.glossary: edit that file."]
    for name, texts in {"METRICS": METRICS, "HEAD_NAMES": HEAD_NAMES}.items():
        lines.append(f"export const {name} = {json.dumps(dict(texts), indent=2)};")
    return "\n".join(lines) + "\n"
