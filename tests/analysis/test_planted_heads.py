"""Heads whose attention is known get their names, and the heads of untrained models none."""

from functools import partial
from itertools import product

import pytest
import torch
from checkpoint_files import configuration
from choices import parts
from conversion.models import CHOICES, PARTS
from running import ROOT
from test_chinese import MAKERS, TEXT

from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.metrics import head_metrics
from headscope.analysis.tokens import classify_vocabulary, targets_in
from headscope.config.parts import Part
from headscope.data.windows import spread_windows
from headscope.nn import GPT, MultiHeadAttention, NoNorm
from headscope.nn.dot_product import HeadOutputs
from headscope.trained.checkpoint import build_model

TEXTS = {"English": (ROOT / "README.md").read_text(encoding="utf-8"), "Chinese": TEXT}


class Planted(MultiHeadAttention):
    """Heads whose weights are functions of the tokens, instead of queries and keys. The first
    number of each embedding is its token."""

    def __init__(self, *, patterns, **sizes):
        super().__init__(**sizes | {"heads": len(patterns), "head_dim": 1})
        self.patterns = patterns

    def compute_heads(self, query, *others, mask=None, **options):
        tokens = query[..., 0].long()
        causal = self.causal_rows(tokens.size(1), tokens.size(1))
        seen = (causal if mask is None else causal & mask[:, 0]).float()
        even = seen / seen.sum(-1, keepdim=True)
        weights = []
        for pattern in self.patterns:
            aimed = pattern(tokens) * seen
            total = aimed.sum(-1, keepdim=True)
            weights.append(torch.where(total > 0, aimed / total.clamp(min=1e-9), even))
        stacked = torch.stack([each.expand(len(tokens), -1, -1) for each in weights], dim=1)
        return HeadOutputs(torch.zeros(*tokens.shape, len(weights)), stacked, stacked)


def planted(patterns, *, vocab_size, block_size, **options) -> GPT:
    model = GPT(
        vocab_size=vocab_size,
        block_size=block_size,
        embed_dim=2,
        layers=1,
        heads=len(patterns),
        attention=partial(Planted, patterns=patterns),
        position=parts("multi_head", "none")["position"],
        norm=NoNorm,
        **options,
    )
    model.embedding.weight.data[:, 0] = torch.arange(vocab_size)
    return model


def back(tokens):
    """How many tokens each key is before the query, (T, T)."""
    place = torch.arange(tokens.size(1))
    return place[:, None] - place


def after_the_same(tokens):
    """Keys that follow an earlier copy of the query's token."""
    before = tokens.roll(1, dims=1)
    before[:, 0] = -1
    return (before[:, None] == tokens[..., None]) & (back(tokens) >= 0)


def anywhere(tokens):
    """One key for each query, in no order."""
    place = torch.arange(tokens.size(1))
    return torch.eye(tokens.size(1))[(9 * place + 3 * place**2 // 7) % (place + 1)]


def fixed(offset, tokens):
    return back(tokens) == offset


def single(key, tokens):
    return torch.arange(tokens.size(1)) == key


PATTERNS = {
    "self": partial(fixed, 0),
    "previous-token": partial(fixed, 1),
    "first-token": lambda tokens: back(tokens) == torch.arange(tokens.size(1))[:, None],
    **{f"single-key, {key}": partial(single, key) for key in (2, 5, 7)},
    **{f"{offset} back": partial(fixed, offset) for offset in (3, 4, 5, 8, 10, 11)},
    "local": lambda tokens: back(tokens) <= 2,
    "local, at offset 2": partial(fixed, 2),
    "same-token": lambda tokens: (tokens[..., None] == tokens[:, None]) & (back(tokens) > 0),
    "induction": after_the_same,
    "short-range": lambda tokens: back(tokens) <= tokens.size(1) / 5,
    "global": lambda tokens: torch.arange(tokens.size(1)) % 3 > 0,
    "mixed": anywhere,
    "-": lambda tokens: torch.ones(1),
}
FAR = ("single-key, 5", "single-key, 7", "8 back", "10 back", "11 back")
NARROW = [*list(PATTERNS)[:12], "same-token", "induction", "punctuation"]


def patterns_of(kinds):
    """The kinds of tokens, as those patterns that depend on the tokenizer."""

    def punctuation(tokens):
        return targets_in(tokens, kinds)["punctuation"]

    return {
        "punctuation": punctuation,
        "frequent-token": lambda tokens: kinds.frequent[tokens][:, None] & ~punctuation(tokens),
        "rare-token": lambda tokens: ~kinds.frequent[tokens][:, None],
    }


def with_even(share, pattern, tokens):
    """The head gives `share` of its weight to the pattern, and the rest to all keys alike."""
    aimed = (pattern(tokens) * (back(tokens) >= 0)).float()
    even = (back(tokens) >= 0).float()
    aimed, even = (each / each.sum(-1, keepdim=True).clamp(min=1e-9) for each in (aimed, even))
    return share * aimed + (1 - share) * even


def resting(pattern, tokens):
    """The head gives the first token half of the weight of each query, and of every fourth
    nearly all."""
    first = torch.where(torch.arange(tokens.size(1)) % 4 == 0, 0.95, 0.5)[:, None]
    seen = (back(tokens) >= 0).float()
    aimed = pattern(tokens) * seen
    aimed = torch.where(aimed.sum(-1, keepdim=True) > 0, aimed, seen)
    aimed = aimed / aimed.sum(-1, keepdim=True)
    return first * PATTERNS["first-token"](tokens) + (1 - first) * aimed


def labels_of(model, windows, kinds=None):
    record = measure_heads(model, windows, kinds=kinds)
    return [head.label for head in record.types]


@pytest.mark.parametrize(
    ("language", "kind", "length"),
    [*product(TEXTS, MAKERS, [16]), ("English", "bpe", 64), ("Chinese", "bpe", 8)],
)
def test_every_planted_head_gets_its_name(language, kind, length):
    """Heads that do one thing only, narrow ones with a quarter of their weight elsewhere, and those
    that rest on the first token."""
    text = TEXTS[language]
    tokenizer = MAKERS[kind]([text])
    tokens = tokenizer.encode(text)
    kinds = classify_vocabulary(tokenizer, tokens)
    patterns = PATTERNS | patterns_of(kinds)
    patterns |= {f"{name}, in part": partial(with_even, 0.75, patterns[name]) for name in NARROW}
    if language == "English":  # the other text is too short
        patterns |= {f"{name}, rests": partial(resting, each) for name, each in patterns.items()}
    # A window of 16 has no distances between local and short-range, one of 8 no far keys, and in
    # Chinese hardly a token twice.
    short = {64: [], 16: ["short-range"], 8: ["short-range", "same-token", *FAR]}[length]
    patterns = {name: each for name, each in patterns.items() if not name.startswith(tuple(short))}
    model = planted(list(patterns.values()), vocab_size=tokenizer.vocab_size, block_size=length)
    expected = [name.partition(",")[0] for name in patterns]
    if language == "English":
        expected[list(patterns).index("-, rests")] = "first-token"
    windows = spread_windows(tokens, windows=256 // length, length=length)  # as during training
    found = labels_of(model, windows, kinds)
    assert dict(zip(patterns, found, strict=True)) == dict(zip(patterns, expected, strict=True))


def test_a_metric_is_the_mean_over_all_queries_that_do_not_rest():
    """Of windows with many and with few: the query of an odd token rests."""

    def head(tokens):
        itself, before = (fixed(offset, tokens) for offset in (0, 1))
        aimed = torch.where(tokens[..., None] % 4 == 0, itself, before)
        return torch.where(tokens[..., None] % 2 == 1, PATTERNS["first-token"](tokens), aimed)

    windows = torch.randint(8, (9, 12), generator=torch.Generator().manual_seed(0))
    windows[0], windows[1] = 1, 4  # all rest, and none
    metrics = measure_heads(planted([head], vocab_size=8, block_size=12), windows).metrics
    judged = windows[:, 2:].flatten()  # the queries that see several keys beyond the first
    judged = judged[judged % 2 == 0]
    assert metrics["self"].item() == pytest.approx((judged % 4 == 0).float().mean().item())
    assert metrics["largest"].item() == pytest.approx(1)
    assert metrics["queries"].item() == len(judged)


def test_a_head_that_mostly_rests_is_judged_by_what_is_left():
    """At early queries, which see only near keys, it is no local head. One copy of a token is too
    few for a name. NaN does not rest."""

    def head(tokens):
        early = back(tokens)[:, :1] < 12
        found = PATTERNS["same-token"](tokens)
        late = torch.where(found.any(-1, keepdim=True), found, PATTERNS["first-token"](tokens))
        return torch.where(early, PATTERNS["global"](tokens), late)

    windows = torch.arange(16 * 64).view(16, 64)
    windows[3, 40] = windows[3, 30]
    record = measure_heads(planted([head], vocab_size=16 * 64, block_size=64), windows)
    assert [head.label for head in record.types] == ["global"]
    assert record.metrics["queries"].item() == 16 * 10 + 1
    assert record.metrics["same_token"].isnan()
    assert head_metrics(torch.full((8, 8), torch.nan))["self"].isnan()


@pytest.mark.parametrize(("vocab_size", "length"), [(5, 16), (8, 64)])
def test_a_small_vocabulary_repeats_itself_by_chance_but_hides_no_head(vocab_size, length):
    windows = torch.randint(vocab_size, (32, length), generator=torch.Generator().manual_seed(0))
    names = ["previous-token", "same-token", "induction", "8 back", "-"]
    patterns = [PATTERNS[name] for name in names]
    model = planted(patterns, vocab_size=vocab_size, block_size=length)
    assert labels_of(model, windows) == names


def short_documents(vocab_size, length, longest):
    """Windows of documents with 1 to `longest` random tokens. The last token ends a document."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size - 1, (64 * length,), generator=generator)
    ends = torch.randint(1, longest + 1, tokens.shape, generator=generator).cumsum(0)
    tokens[ends[ends < len(tokens)]] = vocab_size - 1
    return tokens.view(-1, length)


@pytest.mark.parametrize("longest", [4, 40])
def test_within_short_documents_only_what_a_head_does_gives_it_a_name(longest):
    names = ["self", "previous-token", "same-token", "induction", "-", "first-token"]
    patterns = [*(PATTERNS[name] for name in names[:-1]), first_of_document]
    model = planted(patterns, vocab_size=50, block_size=64, document_mask=True)
    assert labels_of(model, short_documents(50, 64, longest)) == names


ADDITIVE = "model/attention=additive model.attention.qk_norm=true"


@pytest.mark.parametrize(
    ("words", "width"),
    [
        *product(CHOICES, [64]),
        *product(PARTS, [128, 768]),
        *product(["model=gpt2", "model=modern", ADDITIVE, "model/norm=none"], [256, 1024]),
    ],
)
def test_no_head_of_an_untrained_model_has_a_name(words, width):
    """With every choice in conf/model, except ALiBi, which prefers near tokens by design. Widths
    are those of tests, the default and GPT-2: scores grow with the width before training too."""
    torch.manual_seed(1)
    config = Part(configuration(*words.split())["model"], embed_dim=width, block_size=16)
    model = build_model(config, vocab_size=50, end_of_text=49)
    found = {*labels_of(model, short_documents(50, 16, 9)[: 4096 // width])}
    assert (found == {"-"}) != ("alibi" in words)


@torch.no_grad()
@pytest.mark.parametrize("documents", [False, True])
def test_uniform_attention_has_its_own_values_in_each_layer(documents):
    """Also with windows: all scores are 0, so each query looks alike at the keys that it sees. Only
    `induction` and `duplicate` have no value of uniform attention, since they compare two texts."""
    model = GPT(
        vocab_size=50,
        block_size=32,
        embed_dim=16,
        heads=2,
        layers=3,
        windows=(5, 0),
        document_mask=documents,
        end_of_text=49,
    )
    for layer in model.attentions:
        layer.qkv.weight.zero_()
    record = measure_heads(model, short_documents(50, 32, 9))
    assert record.uniform["prefix_matching"][1] > 0
    for name, values in record.uniform.items():
        measured = record.metrics[name].flatten().tolist()
        if name not in ("induction", "duplicate"):
            assert measured == pytest.approx(values, rel=1e-5, abs=1e-6), name
    assert {head.name for head in record.types} == {"-"}
    distances = record.uniform["distance"]
    assert distances[0] == distances[4] < distances[2]


def first_of_document(tokens):
    """The first token of the document of each query, whose documents begin with token 49."""
    document = (tokens == 49).cumsum(1)
    same = document[..., None] == document[:, None]
    return same & (same.cumsum(-1) == 1)
