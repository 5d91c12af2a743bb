"""What every figure and every head name means, in one sentence each: for docs and tooltips.

`docs/glossary.md` is `as_markdown()`; a test says how to write it again after a change.
"""

from collections.abc import Mapping

from headscope.analysis.head_types import Thresholds
from headscope.analysis.metrics import LOCAL_WIDTH

SINGLE_HEAD: Mapping[str, str] = {
    "self": (
        "Weight on the query's own token, from 0 to 1: a high value means that tokens attend to "
        "themselves (the diagonal of the map)."
    ),
    "previous": (
        "Weight on the token just before the query, from 0 to 1: a high value means that the head "
        "looks one token back (positional heads, Voita 2019)."
    ),
    "local": (
        f"Weight on the query's own token and on tokens at most {LOCAL_WIDTH} away, from 0 to 1: a "
        "high value means that the head stays near the query."
    ),
    "first": (
        "Weight on the first token of the text, from 0 to 1: a high value means that the first "
        "token is an attention sink (Xiao 2023)."
    ),
    "single_key": (
        "Mean weight that one key gets from the other queries that see it, for the key with the "
        "highest mean, from 0 to 1: a high value means an attention sink that is not the first "
        "token (Xiao 2023); only keys that at least half of the queries see are considered."
    ),
    "distance": (
        "Mean distance |query - key| in tokens, weighted by attention, from 0 to the length of "
        "the text minus 1: a high value means that the head looks far back (Vig 2019)."
    ),
    "global": (
        "Sum of min(w, 1/m) over all visible tokens but the query's own, divided by its maximum "
        "(m - 1)/m, where m is the number of visible tokens, from 0 to 1: a high value means that "
        "nearly every token gets attention."
    ),
    "largest": (
        "Largest weight of a query, at most 1: a high value means that each query attends to a "
        "single token."
    ),
    "entropy": (
        "Entropy of the weights, -sum(w ln w), in nats, from 0 to the logarithm of the number of "
        "visible tokens: a high value means that attention is spread over many tokens (Shannon "
        "1948)."
    ),
    "entropy_share": (
        "Entropy divided by its maximum, the logarithm of the number of visible tokens, from 0 to "
        "1: a high value means nearly uniform attention."
    ),
    "effective_keys": (
        "exp(entropy), the number of tokens that uniform attention of the same entropy would "
        "cover, from 1 to the length of the text: a high value means that attention is spread "
        "over many tokens (perplexity; Hill 1973)."
    ),
    "unevenness": (
        "Total variation distance from uniform attention, sum |w - 1/m| / 2, where m is the "
        "number of visible tokens, from 0 to 1: a high value means that the weights are far from "
        "uniform."
    ),
}

NON_CAUSAL_METRICS: Mapping[str, str] = {
    "next": (
        "Weight on the token just after the query, from 0 to 1: a high value means that the head "
        "looks one token ahead."
    ),
    "backward": (
        "Weight on all tokens before the query, from 0 to 1: a high value means that the head "
        "looks back."
    ),
    "forward": (
        "Weight on all tokens after the query, from 0 to 1: a high value means that the head "
        "looks ahead."
    ),
}

TOKENS: Mapping[str, str] = {
    "same_token": (
        "Weight on earlier copies of the query's own token, for the queries that have one, from 0 "
        "to 1: a high value means that the head finds repeated tokens (duplicate-token heads, "
        "Wang 2022)."
    ),
    "punctuation": (
        "Weight on punctuation marks and line breaks, from 0 to 1: a high value means that the "
        "head attends to separators (Clark 2019)."
    ),
    "frequent": (
        "Weight on the most frequent tokens, those that together make up half of the text, from 0 "
        "to 1: a high value means that the head attends to frequent tokens, a value near 0 that "
        "it attends to rare ones (Voita 2019)."
    ),
}

REPEATS: Mapping[str, str] = {
    "induction": (
        "Weight, in the second copy of a repeated random passage, on the token that followed the "
        "query's token in the first copy, minus the weight at the same places in texts with other "
        "periods, from -1 to 1: a high value means an induction head (Olsson 2022)."
    ),
    "duplicate": (
        "Weight, in the second copy of a repeated random passage, on the query's own token in the "
        "first copy, minus the weight at the same places in texts with other periods, from -1 to "
        "1: a high value means a duplicate-token head (Wang 2022)."
    ),
    "repeat_previous": (
        "The figure `previous` on these random texts: a high value means that the head looks one "
        "token back whatever the tokens are."
    ),
}

BETWEEN_HEADS: Mapping[str, str] = {
    "cosine_similarity": (
        "Cosine of the angle between the maps of two heads, from 0 to 1: a high value means that "
        "the two attend to the same tokens."
    ),
    "jensen_shannon": (
        "Jensen-Shannon distance between the maps of two heads, the square root of the divergence "
        "in bits, from 0 to 1: a high value means that the two attend to different tokens (Lin "
        "1991; Endres 2003)."
    ),
    "uniqueness": (
        "1 minus the mean cosine similarity of a head to all other heads, from 0 to 1: a high "
        "value means that no other head attends as this one does."
    ),
    "diversity": (
        "Mean uniqueness of all heads, from 0 to 1: a high value means that the heads of the "
        "model differ from one another."
    ),
}

ABLATION: Mapping[str, str] = {
    "loss_change": (
        "Loss without the head minus the loss with it, in nats per token: a high value means that "
        "the model needs the head (Michel 2019)."
    ),
    "loss_change_error": (
        "Standard error of `loss_change` over the validation windows, in nats per token: a high "
        "value means that the change is uncertain."
    ),
    "bits_per_byte_change": (
        "The same change as `loss_change`, in bits per byte: a high value means that the model "
        "needs the head."
    ),
}

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Figures of one head": SINGLE_HEAD,
    "Figures of a head without a causal mask": NON_CAUSAL_METRICS,
    "Figures that depend on the tokens": TOKENS,
    "Figures on repeated random texts": REPEATS,
    "Figures that compare heads": BETWEEN_HEADS,
    "Figures of ablation": ABLATION,
}

FIGURES: Mapping[str, str] = {
    name: text for section in SECTIONS.values() for name, text in section.items()
}
"""Every figure by its name in tables, TensorBoard and code."""

HEAD_NAMES: Mapping[str, str] = {
    "self": f"The excess of `self` is at least {Thresholds.self}: tokens attend to themselves.",
    "previous-token": (
        f"The excess of `previous` is at least {Thresholds.previous}: the head looks one token "
        "back (Voita 2019)."
    ),
    "next-token": (
        f"The excess of `next` is at least {Thresholds.next}: the head looks one token ahead; only "
        "without a causal mask."
    ),
    "first-token": (
        f"The excess of `first` is at least {Thresholds.first}: the first token is an attention "
        "sink (Xiao 2023)."
    ),
    "induction": (
        f"The excess of `induction` is at least {Thresholds.induction}: where a text repeats, the "
        "head looks at the token that came next the first time (Olsson 2022)."
    ),
    "same-token": (
        f"The excess of `same_token` is at least {Thresholds.same_token}: the head looks at "
        "earlier copies of the query's token (Wang 2022)."
    ),
    "punctuation": (
        f"The excess of `punctuation` is at least {Thresholds.punctuation}: the head attends to "
        "punctuation marks and line breaks (Clark 2019)."
    ),
    "single-key": (
        f"The excess of `single_key` is at least {Thresholds.single_key}: most queries attend to "
        "one token that is not the first."
    ),
    "adjacent": (
        "The excess of twice the smaller of `previous` and `next` is at least "
        f"{Thresholds.adjacent}: the head looks at both neighbours alike; only without a causal "
        "mask."
    ),
    "local": (
        f"The excess of `local` is at least {Thresholds.local}: the head stays near the query."
    ),
    "backward": (
        f"The excess of `backward` is at least {Thresholds.backward}: the head looks back; only "
        "without a causal mask."
    ),
    "forward": (
        f"The excess of `forward` is at least {Thresholds.forward}: the head looks ahead; only "
        "without a causal mask."
    ),
    "frequent-token": (
        f"The excess of `frequent` is at least {Thresholds.frequent}: about two thirds of the "
        "weight are on the frequent half of the text."
    ),
    "rare-token": (
        f"The excess of 1 - `frequent` is at least {Thresholds.rare}: about two thirds of the "
        "weight are on the rare half of the text (Voita 2019)."
    ),
    "short-range": (
        "The mean `distance` is shorter than that of uniform attention by a share of at least "
        f"{Thresholds.short_range}: the head looks back, but not far."
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
        f"No name: `unevenness` is below {Thresholds.even}, so attention is nearly uniform, as in "
        "an untrained model."
    ),
}
"""Every name that `head_types` gives, with the default thresholds."""

INTRODUCTION = """\
# Glossary of figures and head names

*Generated from `headscope.analysis.glossary`: edit that file.*

**w** is the attention weight of one query on one key. A **query** is the token that attends, a
**key** is a token that is attended to. **Uniform attention** gives every visible token the same
weight.

Unless its entry says otherwise, a figure of one head is a mean over the queries that see more than
one token, and over all windows of text. `heads.csv` also has a column `uniform_<figure>`: the value
of uniform attention, for comparison.
"""

ABOUT_NAMES = """\
A head is named by the **excess** of its figures: (figure - u) / (1 - u), where u is the value of
uniform attention. The excess of uniform attention is 0, and the maximum is 1. A head gets the first
of these names that fits:

1. `-`.
2. A narrow name, from `self` to `adjacent`. If several fit, the one with the largest ratio of
   excess to threshold.
3. A broad name, from `local` to `short-range`. If several fit, the first in the order of the table.
4. `global` or `mixed`.

The thresholds are keys of `conf/head_types.yaml`. The table shows their defaults.
"""


def as_markdown() -> str:
    """The page docs/glossary.md."""
    parts = [INTRODUCTION]
    for title, texts in SECTIONS.items():
        parts += [f"## {title}\n", table("figure", texts)]
    return "\n".join([*parts, "## Names of heads\n", ABOUT_NAMES, table("name", HEAD_NAMES)])


def table(heading: str, texts: Mapping[str, str]) -> str:
    rows = "".join(
        f"| `{name}` | {text.replace('|', chr(92) + '|')} |\n" for name, text in texts.items()
    )
    return f"| {heading} | meaning |\n|---|---|\n{rows}"
