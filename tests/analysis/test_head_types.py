"""What heads are called: by what they plainly do, and nothing where they do nothing."""

import pytest
import torch
from omegaconf import OmegaConf
from small_gpt import fresh
from torch import Tensor

from headscope.analysis.head_types import HeadType, Thresholds, excess, head_types
from headscope.analysis.metrics import head_figures, uniform, uniform_figures
from headscope.analysis.repeats import repeat_figures, uniform_repeat_figures
from headscope.cli.words import CONF
from headscope.nn.capture import attention_weights

TOKENS = 24


def looking(*offsets: int, share: float = 1.0, causal: bool = True) -> Tensor:
    """A head (T, T) that gives `share` of its weight, in equal parts, to the keys at `offsets`, and
    the rest to all that it sees alike."""
    even = uniform(torch.ones(TOKENS, TOKENS), causal=causal)
    aimed = torch.zeros(TOKENS, TOKENS)
    for query in range(TOKENS):
        keys = [query + offset for offset in offsets if 0 <= query + offset < TOKENS]
        aimed[query, keys or [query]] = 1 / max(len(keys), 1)
    return share * aimed + (1 - share) * even


def called(*heads: Tensor, causal: bool = True, **options) -> list[str]:
    figures = head_figures(torch.stack(heads), causal=causal)
    return names_of(figures, uniform_figures(TOKENS, causal=causal), causal=causal, **options)


def names_of(*args, **options) -> list[str]:
    return [each.name for each in head_types(*args, **options)]


SINK = torch.eye(TOKENS)[[0] * TOKENS]


def test_heads_are_called_what_they_do():
    far = looking(-9)
    half = torch.where(torch.arange(TOKENS) % 2 == 0, 1.0, 0.0).expand(TOKENS, TOKENS).tril()
    half[0, 0] = 1
    assert called(
        looking(0),
        looking(-1),
        SINK,
        looking(0, -1, -2),
        half / half.sum(-1, keepdim=True),
        far,
    ) == ["self", "previous-token", "first-token", "local", "global", "mixed"]


def test_heads_that_see_both_ways_have_more_names():
    after = torch.ones(TOKENS, TOKENS).triu(1)
    after[-1, -1] = 1
    before = after.flip(0, 1)
    kinds = [looking(1, causal=False), looking(-1, 1, causal=False)]
    for all_that_way in (after, before):
        kinds.append(all_that_way / all_that_way.sum(-1, keepdim=True))
    names = ["next-token", "adjacent", "forward", "backward"]
    assert called(*kinds, causal=False) == names


@pytest.mark.parametrize("causal", [True, False])
def test_looking_at_all_alike_has_no_name(causal):
    assert called(uniform(torch.ones(TOKENS, TOKENS), causal=causal), causal=causal) == ["-"]


def test_heads_of_a_fresh_model_have_no_name():
    model = fresh(vocab_size=60, block_size=TOKENS, embed_dim=64)
    weights = attention_weights(model, torch.randint(60, (1, TOKENS)))[:, 0]
    figures = head_figures(weights) | repeat_figures(model)
    even = uniform_figures(TOKENS) | uniform_repeat_figures(TOKENS)
    assert names_of(figures, even) == ["-"] * 8


def test_induction_is_told_by_repeated_texts():
    figures = head_figures(torch.stack([looking(-9), looking(-1)]))
    induction = {"induction": torch.tensor([0.8, 0.02])}
    names = names_of(figures | induction, uniform_figures(TOKENS) | {"induction": 0.0})
    assert names == ["induction", "previous-token"]


def test_a_threshold_is_the_share_above_what_even_attention_gives():
    heads = [looking(-1, share=share) for share in (0.3, 0.39, 0.41, 1.0)]
    assert called(*heads) == ["global", "global", "previous-token", "previous-token"]
    assert called(*heads, thresholds=Thresholds(previous=0.25)) == ["previous-token"] * 4
    mass = head_figures(torch.stack(heads))["previous"]
    even = head_figures(uniform(heads[0]))["previous"]
    torch.testing.assert_close(excess(mass, even), torch.tensor([0.3, 0.39, 0.41, 1.0]))


def test_of_two_names_the_one_further_above_its_threshold_is_taken():
    head = 0.55 * looking(-1) + 0.45 * SINK
    assert called(head) == ["previous-token"]
    assert called(head, thresholds=Thresholds(first=0.2)) == ["first-token"]


def test_a_sink_in_the_middle_is_a_single_key():
    sink = torch.eye(TOKENS)[[t if t < 5 else 5 for t in range(TOKENS)]]
    assert called(sink) == ["single-key"]


def test_a_head_that_looks_half_as_far_as_uniform_attention_is_short_range():
    spread = looking(*range(-5, 1))
    assert called(spread) == ["short-range"]
    far = looking(*range(-16, -5))
    assert called(far) != ["short-range"]


def test_names_by_tokens_are_of_the_excess_over_uniform_attention():
    for figure, value, even, name in [
        ("punctuation", 0.47, 0.1, "punctuation"),  # excess 0.41
        ("punctuation", 0.45, 0.1, "mixed"),  # excess 0.39
        ("punctuation", 0.45, 0.05, "punctuation"),  # the same, in a text with less of it: 0.42
        ("same_token", 0.35, 0.05, "same-token"),
        ("same_token", 0.3, 0.05, "mixed"),
        ("frequent", 0.68, 0.5, "frequent-token"),
        ("frequent", 0.65, 0.5, "mixed"),
        ("frequent", 0.65, 0.4, "frequent-token"),
        ("frequent", 0.32, 0.5, "rare-token"),
        ("frequent", 0.35, 0.5, "mixed"),
    ]:
        figures = head_figures(looking(-9)[None]) | {figure: torch.tensor([value])}
        assert names_of(figures, uniform_figures(TOKENS) | {figure: even}) == [name]


@pytest.mark.parametrize(
    ("figure", "value", "even", "score", "ratio"),
    [
        ("punctuation", 0.55, 0.1, 0.55, 0.5 / 0.4),
        ("frequent", 0.7, 0.5, 0.7, 0.4 / 0.33),
        ("frequent", 0.2, 0.5, 0.8, 0.6 / 0.33),  # rare-token: 1 - frequent
        ("frequent", 0.5, 0.5, 0.8793, 0.0),  # mixed: unevenness, 1 - the mean of 1 to 1/24
    ],
)
def test_the_score_is_the_metric_and_the_ratio_the_excess_over_the_threshold(
    figure, value, even, score, ratio
):
    figures = head_figures(looking(-9)[None]) | {figure: torch.tensor([value])}
    [head] = head_types(figures, uniform_figures(TOKENS) | {figure: even})
    assert head.score == pytest.approx(score, abs=1e-4)
    assert head.ratio == pytest.approx(ratio, abs=1e-4)


def test_a_global_head_is_above_no_threshold():
    figures = head_figures(looking(-9)[None]) | {"global": torch.tensor([0.9])}
    [head] = head_types(figures, uniform_figures(TOKENS))
    assert head == HeadType("global", pytest.approx(0.9), 0.0)


def test_the_score_of_short_range_is_how_much_shorter_the_distance_is():
    figures = head_figures(looking(*range(-5, 1))[None])
    even = uniform_figures(TOKENS)
    [head] = head_types(figures, even)
    assert head.score == pytest.approx(1 - float(figures["distance"]) / even["distance"])
    assert head.ratio == pytest.approx(head.score / Thresholds.short_range)


def test_a_narrow_name_goes_before_a_broad_one():
    figures = head_figures(looking(-9)[None])
    figures |= {"frequent": torch.tensor([0.99]), "punctuation": torch.tensor([0.5])}
    even = uniform_figures(TOKENS) | {"frequent": 0.5, "punctuation": 0.1}
    assert names_of(figures, even) == ["punctuation"]


def test_thresholds_stand_in_conf_as_the_library_has_them() -> None:
    settings = OmegaConf.load(CONF / "head_types.yaml")
    assert Thresholds(**settings) == Thresholds()
