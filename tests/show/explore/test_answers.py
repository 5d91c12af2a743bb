"""Every number that the page shows equals one that other functions compute from the model."""

import base64
import csv
import io
import json
import runpy
import shutil
from dataclasses import asdict
from threading import Event

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from checkpoint_files import copy_at_step
from conversion.models import CHOICES, saved
from hf_tokenizers import for_chats
from refusals import refused
from running import measured
from viewer_data import Elements, decoded

from headscope.analysis.examples import find_examples
from headscope.analysis.patching import LogitDifference, patch_heads
from headscope.analysis.rows import per_head
from headscope.data.encode import ValidationText, validation_text
from headscope.data.own_files import TextFiles
from headscope.data.tokenizer import bpe, char
from headscope.data.tokenizer_state import tokenizer_from_state
from headscope.show.explore.answers import Explorer
from headscope.show.explore.export import export
from headscope.show.explore.models import MAX_STEPS, Models, OpenModel
from headscope.show.explore.protocol import parse_request
from headscope.trained.ablations import measure_ablation
from headscope.trained.evaluation import evaluate
from headscope.trained.generation.choose_token import choose_tokens, distribution
from headscope.trained.records import head_recorder

TEXT, OTHER = "We the p", "We the q"  # as long as block_size
SWITCHES = {"zero": ["L0H0"], "mean": ["L1H0"]}
BOTH = (True, False)
ASK = {"question": True}
ROUNDED = 1e-4  # for numbers with 5 significant digits


@pytest.fixture(scope="module")
def explorers(tmp_path_factory):
    """Opens the models of a page by their words, once."""
    found = {}

    def opened(words, tokenizer=None):
        if words not in found:
            folder = tmp_path_factory.mktemp("run") / "checkpoints"
            folder.mkdir()
            saved(folder, words, tokenizer)
            found[words] = Explorer(Models(str(folder.parent), None, "cpu"))
            measured(found[words].models.get("this"))
        return found[words]

    return opened


@pytest.fixture(params=CHOICES, ids=lambda words: words.replace("model", ""))
def explorer(request, explorers):
    return explorers(request.param)


@pytest.fixture
def default(explorers):
    return explorers("model.tied_head=true")


def ask(explorer, name, **request):
    """The answer, as the page gets it: from JSON to JSON."""
    found = getattr(explorer, name)(parse_request(name, json.loads(json.dumps(request))))
    return json.loads(
        json.dumps(list(found) if name in ("write", "deciders") else found, allow_nan=False)
    )


def loaded_of(explorer):
    return explorer.models.get("this").loaded


def close(found, expected, tolerance=1e-5):
    expected = torch.as_tensor(expected).double()
    found = torch.as_tensor(found, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def shown(answer):
    """The arrays of the snapshot in an answer, by kind. Those of a layer may be None."""
    [step] = answer["history"]["steps"]
    packed = [answer["parts"].get(key) for key in step["parts"]]
    return decoded({"parts": step["layout"]}, [each and base64.b64decode(each) for each in packed])


def assert_equal_to_direct(answer, loaded, position):
    """The answer about TEXT equals what the functions of `loaded` say."""
    tokens, logits, reading = loaded.tokens(TEXT), loaded.logits(TEXT), loaded.read(TEXT)
    history, parts = answer["history"], shown(answer)
    [step] = history["steps"]
    assert answer["ids"] == tokens
    assert history["labels"] == loaded.tokenizer.labels(tokens)
    losses = F.cross_entropy(logits[:-1], torch.tensor(tokens[1:]), reduction="none")
    close(step["losses"], losses, ROUNDED)
    close(answer["loss"], losses.mean())
    probabilities = logits[position].softmax(-1)
    close([each["probability"] for each in answer["next"]], probabilities.topk(10).values)
    for each in answer["next"]:
        close(each["probability"], probabilities[each["id"]])
    target = answer["target"]["id"]
    [named], [lens] = parts["labels"], parts["lens"]
    labels = np.array(json.loads(named["text"].tobytes()))
    assert lens["positions"] == [answer["position"]] == [range(len(tokens))[position]]
    assert labels[lens["targets"]] == [answer["target"]["label"]]
    assert lens["follows"] == [[*tokens, None][answer["position"] + 1] == target]
    likely = reading.lens[:, position].softmax(-1)
    close(lens["probabilities"][:, 0], likely.topk(10).values)
    close(lens["target_probabilities"][:, 0], likely[:, target])
    close(step["next"], likely[-1, target, None], ROUNDED)
    every = reading.writes("L1H0", position, count=loaded.model.vocab_size).raised
    pushes = dict(every)
    raised = parts["raised"][1]
    close(raised["pushes"][0, 0], [pushes[label] for label in labels[raised["tokens"][0, 0]]])
    assert (np.diff(raised["pushes"]) <= 0).all()
    label = answer["target"]["label"]
    if label != "∅" and sum(name == label for name, _ in every) == 1:
        close(lens["target_pushes"][1, 0], [pushes[label]])
    rows, columns = np.tril_indices(len(tokens))
    for found, weights in zip(parts["weights"], reading.attention, strict=True):
        if found:
            close(found["exact"], weights[:, rows, columns])


def test_heads_are_measured_while_the_page_is_shown(tmp_path, monkeypatch, speeches):
    """Without a record, heads have no names until they are measured, on the text that is given."""
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "checkpoints").mkdir()
    loaded, waits = saved(tmp_path / "checkpoints", "model/position=alibi"), Event()
    monkeypatch.setattr(OpenModel, "counted", lambda opened, batches: waits.wait() and batches)
    explorer = Explorer(Models(str(tmp_path), None, "cpu", text=str(speeches)))
    assert ask(explorer, "open", model="this")["measuring"] == {"share": 0}
    before = ask(explorer, "read", text=TEXT)["history"]
    assert (before["steps"][0]["measured_tokens"], {*before["steps"][0]["names"]}) == (0, {"-"})
    waits.set()
    record = measured(explorer.models.get("this"))
    after = ask(explorer, "read", text=TEXT)["history"]
    assert ask(explorer, "open", model="this")["measuring"] is None
    assert (after["steps"][0]["measured_tokens"], after["steps"][0]["measured_on"]) == (
        1024,
        speeches.name,
    )
    assert after["steps"][0]["names"] == [each.label for each in record.types]
    text = validation_text(TextFiles(path=str(speeches)), loaded.tokenizer).tokens
    expected = head_recorder(loaded.model, loaded.tokenizer, text)(loaded.model, step=0)
    assert str(record.metrics) == str(expected.metrics)
    assert loaded.known_record() is None  # that of its own text


def test_a_text_is_read_as_by_the_functions_of_a_loaded_model(explorer):
    """Names and metrics of heads are those of a report."""
    loaded, record = loaded_of(explorer), explorer.models.get("this").record
    for position in (2, -1):
        answer = ask(explorer, "read", text=TEXT, position=position, layers=[0, 1])
        assert all(shown(answer)["weights"])
        following = (
            loaded.tokens(TEXT)[3] if position == 2 else int(loaded.logits(TEXT)[-1].argmax())
        )
        assert answer["target"]["id"] == following
        assert_equal_to_direct(answer, loaded, position)
    [step] = answer["history"]["steps"]
    for number, row in enumerate(per_head(record.metrics).to_dict("records")):
        assert step["names"][number] == record.types[number].label
        for name, values in step["metrics"].items():
            close(torch.nan if values[number] is None else values[number], row[name], 1e-4)


def test_switched_heads_are_those_of_ablate(explorer):
    loaded = loaded_of(explorer)
    answer = ask(explorer, "read", text=TEXT, layers=[1], **SWITCHES)
    assert answer["history"]["switched"] == ["L0H0", "L1H0"]
    for name in ("weights", "raised"):
        assert [each is not None for each in shown(answer)[name]] == [False, True]
    assert answer["loss"] != ask(explorer, "read", text=TEXT)["loss"]
    with loaded.ablate(["L1H0"], by="mean", text=TEXT), loaded.ablate(["L0H0"]):
        assert_equal_to_direct(answer, loaded, -1)
        deciders = loaded.deciders(TEXT, 2, 65, by="zero").to_dict("records")
    layers = ask(explorer, "deciders", text=TEXT, position=2, target=65, by="zero", **SWITCHES)
    rows = [row for layer in layers for row in layer["rows"]]
    assert sorted(rows, key=lambda row: row["without"]) == deciders
    written = ask(explorer, "write", text="We", max_new_tokens=5, temperature=0, **SWITCHES)
    with loaded.ablate(["L1H0"], by="mean", text="We"), loaded.ablate(["L0H0"]):
        expected = loaded.generate(loaded.tokens("We"), max_new_tokens=5)[2:]
    assert [each["id"] for each in written] == expected


def test_one_answer_has_both_sides_of_a_comparison(default, explorers, tmp_path):
    """It has the numbers of two answers. Both are about the token that is expected with all heads
    on, and list the likely tokens of both."""
    asked = {"text": TEXT, "top_k": 4, "layers": [1]}
    plain = ask(default, "read", **asked)
    target = plain["target"]["id"]
    one = ask(default, "read", **asked, target=target, **SWITCHES)
    likely = [each["id"] for answer in (one, plain) for each in answer["next"]]
    both = ask(default, "read", **asked, **SWITCHES, against={})
    other = both.pop("against")
    for found, alone in ((both, SWITCHES), (other, {})):
        expected = ask(default, "read", **asked, target=target, also=likely, **alone)
        assert {each["id"] for each in found["next"]} == {*likely, target}
        for answer in (found, expected):
            answer["next"].sort(key=lambda token: token["id"])
        assert {**found, "against": None} == expected
    for folder, tokenizer in (("this", None), ("other", char(["We the people"]))):
        saved(tmp_path / folder / "checkpoints", "model.layers=1", tokenizer)
    two = Explorer(Models(*(str(tmp_path / name) for name in ("this", "other")), "cpu"))
    against = {"model": "other", "mean": ["L0H1"]}
    tokens = loaded_of(two).tokens("We the")
    both = ask(two, "read", tokens=tokens, position=1, target=65, also=[66], against=against)
    other = both.pop("against")
    assert (both["target"]["id"], both["position"]) == (65, 1)
    assert {**other, "against": None} == ask(two, "read", text="We the", **against)


def test_a_compared_model_reads_the_same_text(tmp_path):
    """Its own begin-of-text token and template do not matter, if its vocabulary is the same."""
    size = "model.block_size=64 model.layers=1"
    chats = for_chats()
    letters = char(["abcTo be[]user\n/<>s"])
    tokenizers = {"chat": chats, "begins": chats.typed(begin=True), "char": letters}
    tokenizers["base"] = tokenizer_from_state(chats.state() | {"chat_template": None})
    for name, tokenizer in tokenizers.items():
        saved(tmp_path / name / "checkpoints", size, tokenizer)
    for name, options in (("begins", {}), ("begins", {"special": True}), ("base", ASK)):
        both = Explorer(Models(str(tmp_path / "chat"), str(tmp_path / name), "cpu"))
        answer = ask(both, "read", text="To be", against={"model": "other"}, **options)
        assert answer["against"]["ids"] == answer["ids"]
    both = Explorer(Models(str(tmp_path / "char"), str(tmp_path / "chat"), "cpu"))
    answer = ask(both, "read", text="abé\nc", against={"model": "other"})
    assert answer["against"]["text"] == answer["text"] == "ab\nc"
    both = Explorer(Models(str(tmp_path / "chat"), str(tmp_path / "char"), "cpu"))
    answer = ask(both, "read", text="To be", against={"model": "other"}, **ASK)
    assert answer["against"]["text"] == "To be"


@pytest.mark.parametrize(("position", "other_position"), [(7, 3), (5, 1), (-2, 2), (2, 3)])
def test_a_model_that_reads_fewer_tokens_is_compared_at_the_same_one(
    tmp_path, position, other_position
):
    """It is compared at its last one if it does not read that token."""
    for folder, size in (("this", 8), ("other", 4)):
        saved(tmp_path / folder / "checkpoints", f"model.block_size={size}")
    two = Explorer(Models(*(str(tmp_path / name) for name in ("this", "other")), "cpu"))
    against = {"model": "other"}
    both = ask(two, "read", text=TEXT, position=position, against=against)
    assert both["position"] == range(8)[position]
    assert both["against"]["position"] == other_position
    for form in ("html", "csv", "python"):
        asked = {"text": TEXT, "position": position, "against": against, "format": form}
        assert len(export(two, parse_request("export", asked))[2]) > 100


@pytest.mark.parametrize("switches", [{}, {"zero": ["L0H0"]}, SWITCHES], ids=["on", "zero", "mean"])
def test_the_losses_of_a_text_that_changes_are_those_of_the_whole_text(explorers, switches):
    """Those of its unchanged beginning are not computed again, except with a mean over the text."""
    typed = ["W", "We th", "We the p", "We", "Wx the", "Wx thep", "e"]
    explorer, fresh = explorers("model=gpt2"), explorers("model=gpt2 ")
    explorer.models.get("this").passes.clear()
    for text in typed:
        fresh.models.get("this").passes.clear()
        first, whole = (ask(each, "read", text=text, **switches) for each in (explorer, fresh))
        losses = [each["history"]["steps"][0]["losses"] for each in (first, whole)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-4)
        assert first["loss"] == pytest.approx(whole["loss"], abs=1e-4)
    known = [each.known_losses.numel() for each in explorer.models.get("this").passes.values()]
    assert any(known) == ("mean" not in switches)


@pytest.mark.parametrize("prompt", ["We the", "We the people of the"])  # block_size is 8
def test_what_is_written_is_what_generate_writes(default, prompt):
    loaded = loaded_of(default)
    options = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 3}
    written = ask(default, "write", text=prompt, max_new_tokens=20, **options)
    tokens = loaded.tokens(prompt)
    assert tokens + [each["id"] for each in written] == loaded.generate(
        tokens, max_new_tokens=20, do_sample=True, **options
    )
    text = loaded.generate(prompt, max_new_tokens=20, do_sample=True, **options)
    assert text == prompt + "".join(each["text"] for each in written)
    seen = tokens if len(tokens) <= 8 else tokens[-4:]
    close(written[0]["probability"], loaded.logits(seen)[-1].softmax(-1)[written[0]["id"]])


def test_another_request_between_two_steps_sees_no_switched_heads(default):
    def asked():
        return parse_request("write", {"text": "We", "zero": ["L0H0"], "max_new_tokens": 3})

    plain = ask(default, "read", text=TEXT)["next"]
    alone = list(default.write(asked()))
    steps, between = default.write(asked()), []
    for _ in range(3):
        between.append(next(steps))
        default.models.get("this").passes.clear()
        assert ask(default, "read", text=TEXT)["next"] == plain
    assert between == alone


@pytest.mark.parametrize("options", [
    {"temperature": 0.5}, {"temperature": 1.5, "top_k": 3}, {"top_p": 0.6}, {"temperature": 0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
], ids=str)  # fmt: skip
def test_what_is_sampled_has_the_shown_probability(default, options):
    answer = ask(default, "read", text=TEXT, also=list(range(257)), **options)
    logits = loaded_of(default).logits(TEXT)[-1:]
    shown = torch.zeros(257, dtype=torch.float64)
    for each in answer["next"]:
        shown[each["id"]] = each["sampled"]
    close(shown.sum(), 1.0)
    points = torch.linspace(0, 1 - 1e-9, 4001, dtype=torch.float64)
    chosen = choose_tokens(logits.expand(len(points), -1), uniform=points, **options)
    drawn = torch.bincount(chosen, minlength=257) / len(points)
    torch.testing.assert_close(drawn.double(), shown, atol=1e-3, rtol=0)
    scaled = (logits[0].double() / (options.get("temperature") or 1)).softmax(-1)
    close(answer["removed"], scaled[shown == 0].sum())
    assert torch.equal(distribution(logits, **options)[0] > 0, shown > 0)


def test_a_patched_head_is_that_of_activation_patching(explorer):
    loaded = loaded_of(explorer)
    texts = [torch.tensor(loaded.tokens(text)) for text in (OTHER, TEXT)]
    right, wrong = 65, 97
    for position in (None, 7):
        found = patch_heads(loaded.model, *texts, LogitDifference(right, wrong), position=position)
        copies = [{"head": "L0H0", "position": position}]
        asked = {"text": TEXT, "other": OTHER, "right": right, "wrong": wrong}
        answer = ask(explorer, "patch", copies=copies, every_head=position is None, **asked)
        close(answer["difference"]["before"], found.corrupted)
        close(answer["difference"]["other"], found.clean)
        close(answer["difference"]["after"], found.denoised[0, 0])
        if position is None:
            close(answer["every_head"], found.denoised.flatten())
    for name, text in (("before", TEXT), ("other", OTHER)):
        expected = loaded.logits(text)[-1].softmax(-1)
        for each in answer["next"]:
            close(each[name], expected[each["id"]])


def test_a_text_that_does_not_fit_is_shown_as_such(default, explorers):
    answer = ask(default, "patch", text="We", other="You")
    assert "2 and 3 tokens" in answer["problem"]
    answer = ask(default, "read", text="0123456789")
    assert (answer["ids"], answer["text"]) == (list(b"0123456789"), "0123456789")
    assert answer["history"]["labels"] == list("23456789")
    letters = explorers("model.layers=2", char(["We the people"]))
    answer = ask(letters, "read", text="Wé\u200de")
    assert [(each["at"], each["label"]) for each in answer["unknown"]] == [(1, "é"), (2, "U+200D")]
    assert answer["text"] == "We"
    assert ask(letters, "patch", text="We", other="W☃e")["unknown"][1][0]["at"] == 1
    end = loaded_of(letters).tokenizer.end_of_text
    tokens = [*loaded_of(letters).tokenizer.encode_prompt("We"), end, 0]
    for count, same in ((len(tokens), False), (2, True)):
        assert ask(letters, "read", tokens=tokens[:count])["same"] == same
    empty = ask(letters, "read", text="")
    assert (empty["ids"], empty["loss"]) == ([end], None)


def test_a_text_is_read_as_the_request_says(explorers):
    explorer = explorers("model.block_size=64 model.layers=1", for_chats())
    tokenizer = loaded_of(explorer).tokenizer
    for text, options in (
        *(("To<|end_of_text|>", {"begin": on, "special": off}) for on in BOTH for off in BOTH),
        ("To be", ASK),
    ):
        tokens = tokenizer.typed(**options).encode_prompt(text)
        answer = ask(explorer, "read", text=text, **options)
        assert answer["ids"] == tokens
        assert answer["history"]["labels"] == tokenizer.labels(tokens)
        again = {"question": False, "special": options.get("special", True)}
        for given in ({"tokens": tokens}, {"text": answer["text"]}):
            comes_back = ask(explorer, "read", **options | again | given)
            assert comes_back["ids"] == tokens
            assert comes_back["text"] == answer["text"]
            assert comes_back["same"]
    other = ask(explorer, "patch", text="ab", other="cd", question=True)["tokens"]
    assert other[1] == tokenizer.labels(tokenizer.typed(question=True).encode_prompt("cd"))
    about = ask(explorer, "open")
    assert about["can"] == {"begin": True, "special": True, "question": True}
    assert about["typed"] == {"begin": False, "special": False}


def test_a_text_that_needs_more_memory_than_is_left_is_refused(default, monkeypatch):
    ask(default, "read", text=TEXT, zero=["L1H1"])
    monkeypatch.setattr("headscope.show.explore.reader.available_memory", lambda: 10_000.0)
    with refused("8 tokens", "GB", "shorten the text"):
        ask(default, "read", text=TEXT, zero=["L1H0"])
    assert ask(default, "read", text="We", zero=["L1H0"])["ids"]


def test_what_does_not_fit_the_model_is_refused_in_one_line(default):
    for name, request, *words in [
        ("read", {}, "text"),
        ("read", {"text": "a", "tokens": [1]}, "text"),
        ("read", {"tokens": [257]}, "257"),
        ("read", {"text": "a", "position": 1}, "position=1"),
        ("read", {"text": "a", "zero": ["L2H0"]}, "L2H0", "L1H3"),
        ("read", {"text": "a", "zero": ["L1H0"], "mean": ["L1H0"]}, "twice"),
        ("read", {"text": "a", "layers": [2]}, "layers", "0 to 1"),
        ("read", {"text": "a", "temperature": -1}, "temperature=-1"),
        ("read", {"text": "a", "top_p": 0}, "top_p=0"),
        ("read", {"text": "\ud800"}, "UTF-8"),
        ("read", {"text": "a" * 100_001}, "100,000"),
        ("read", {"text": "a", "model": "no"}, "model=no", "this"),
        ("read", {"text": "a", "against": {"model": "no"}}, "model=no", "this"),
        ("read", {"text": "a", "against": {"zero": ["L2H0"]}}, "L2H0", "L1H3"),
        ("read", {"text": "a", "colour": 1}, "colour"),
        ("read", {"text": "a", "question": True}, "question=true", "chat"),
        ("write", {"text": "a", "max_new_tokens": 10_001}, "max_new_tokens=10001"),
        ("deciders", {"text": "a", "position": -2}, "position=-2"),
        ("deciders", {"text": "a", "target": 257}, "257"),
        ("why", {"text": "ab", "head": "L0H0", "query": 2}, "query=2"),
        ("why", {"text": "ab", "head": "L0H0", "query": 0, "key": 1}, "key=1"),
        ("why", {"text": "ab", "head": "L2H0"}, "L2H0"),
        ("patch", {"text": "a", "other": "b", "copies": [{"head": "L0H0", "position": 1}]}, "=1"),
        ("read", {"tokens": [1], "zero": ["L0H0"] * 5_001}, "zero", "5,000"),
        ("read", {"tokens": [1], "also": [1] * 501}, "also", "500"),
        ("write", {"text": "ab", "skip": 2}, "skip=2", "2 tokens"),
        ("read", [], "object"),
    ]:  # fmt: skip
        with refused(*words):
            found = getattr(default, name)(parse_request(name, request))
            list(found)


def test_examples_are_those_of_the_model_and_a_missing_text_is_a_line(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("We the people of the United States. " * 90)
    data = {"_target_": "headscope.TextFiles", "path": str(text)}
    kept = tmp_path / "run" / "checkpoints"
    loaded = saved(kept, "model.layers=2", data=data)
    copy_at_step(loaded.path, kept / "step_000010.safetensors", 10)
    explorer = Explorer(Models(str(kept.parent), None, "cpu"))
    found = ask(explorer, "examples", head="L1H2")
    assert found["measured"] == "320 tokens of the validation split"
    of_heads = find_examples(loaded.model, loaded.windows_elsewhere()[0], loaded.tokenizer)
    for each, expected in zip(found["examples"], of_heads[1][2], strict=True):
        assert each == json.loads(json.dumps(asdict(expected)))
    text.unlink()
    assert ask(explorer, "examples", head="L1H2") == found
    with refused(text.name):
        ask(explorer, "examples", head="L1H2", model="this@10")
    with refused("L9H9"):
        ask(explorer, "examples", head="L9H9")


def test_the_last_forward_passes_are_kept_and_no_more(default):
    passes = default.models.get("this").passes
    for number in range(40):
        ask(default, "read", tokens=[number])
    before = [*passes]
    assert len(before) == 16
    ask(default, "read", tokens=[39], position=0, layers=[0])
    assert [*passes] == before


@pytest.mark.parametrize(("number", "stored"), [(100, 300), (300, 100), (300, 300)])
def test_another_model_and_kept_steps_are_offered_by_the_step_in_the_file(tmp_path, number, stored):
    kept = tmp_path / "one" / "checkpoints"
    for folder in (kept, tmp_path / "two" / "checkpoints"):
        saved(folder, "model.layers=2")  # at step 7
    file = kept / f"step_{number:06}.safetensors"
    copy_at_step(kept / "best.safetensors", file, stored)
    copy_at_step(kept / "best.safetensors", kept / "last.safetensors", 850)
    (kept / "step_000999.safetensors").write_bytes(b"damaged")
    explorer = Explorer(Models(str(tmp_path / "one"), str(tmp_path / "two"), "cpu"))
    listed = {each["name"]: each for each in ask(explorer, "open", model="this")["models"]}
    assert [*listed] == ["this", f"this@{number}", "this@999", "other"]
    assert [listed[name]["last"] for name in ("this", "other")] == [850, None]
    noted, about = listed[f"this@{number}"], ask(explorer, "open", model=f"this@{number}")
    assert (file.name in noted["title"]) == (number != stored)
    assert (noted["title"], noted["step"]) == (about["title"], about["step"])
    assert about["step"] == stored
    for name in ("this", f"this@{number}", "other"):
        assert ask(explorer, "read", text=TEXT, model=name)["loss"] > 0
    with refused("step_000999.safetensors"):
        ask(explorer, "open", model="this@999")


def test_a_text_whose_characters_need_several_tokens_is_reported(explorers):
    explorer = explorers("model.layers=1", bpe(["We the people " * 9], vocab_size=300))
    assert not ask(explorer, "read", text=TEXT)["split"]
    assert ask(explorer, "read", text="\u9053\u53ef\u9053")["split"]


def test_a_run_that_saves_newer_weights_does_not_change_what_is_shown(tmp_path):
    kept = tmp_path / "checkpoints"
    saved(kept, "model.layers=2")
    steps = range(10, 60, 10)
    for step in steps:
        shutil.copy(kept / "best.safetensors", kept / f"step_{step:06}.safetensors")
    explorer = Explorer(Models(str(tmp_path), None, "cpu"))
    before = ask(explorer, "read", text=TEXT)
    saved(kept, "model.layers=1")
    for step in steps:
        ask(explorer, "read", text=TEXT, model=f"this@{step}")
    assert len(explorer.models.opened) == 1 + MAX_STEPS
    explorer.models.get("this").passes.clear()
    assert ask(explorer, "read", text=TEXT) == before


@pytest.mark.parametrize("size", [-3e38, 1e38])
def test_weights_that_are_too_large_are_a_mistake_of_the_user(tmp_path, size):
    """All weights are finite. With a logit of minus infinity, only sampling is possible: it gives
    the token the probability 0."""
    saved(tmp_path / "checkpoints", "model.tied_head=false")
    explorer = Explorer(Models(str(tmp_path), None, "cpu"))
    loaded, tokens = loaded_of(explorer), torch.tensor([[97, 98, 99, 65]])
    with torch.no_grad():
        x = loaded.model.norm(loaded.model.hidden(tokens))[0, 2]
        loaded.model.head.weight[65] = size * x.sign()
    text = ValidationText(tokens[0].numpy(), loaded.tokenizer.byte_lengths())
    calls = [
        lambda: ask(explorer, "read", text="abc"),
        lambda: ask(explorer, "patch", text="abc", other="abc"),
        lambda: export(explorer, parse_request("export", {"text": "abc", "format": "html"})),
        lambda: evaluate(loaded.model, text, batch_size=1),
        lambda: measure_ablation(loaded.model, text, "zero", windows=1),
        lambda: loaded.read("abc").predictions(),
    ]
    writes = [
        lambda: ask(explorer, "write", text="abc", temperature=0, max_new_tokens=1),
        lambda: loaded.generate("abc", max_new_tokens=1),
    ]
    if size < 0:
        assert all(call() for call in writes)
    for call in [*calls, *(writes if size > 0 else [])]:
        with refused("not finite"):
            call()


# ---- Files to keep -------------------------------------------------------------------------------


WALK = [{"head": "L1H2", "query": 5, "key": 3}]


def exported(explorer, format, **request):
    request = {"text": TEXT, "format": format, **SWITCHES, "half": ["L1H2"], **request}
    return export(explorer, parse_request("export", request))


def test_the_program_prints_what_the_page_shows(default, tmp_path, capsys):
    sampled = {"max_new_tokens": 8, "seed": 4}
    name, _, text = exported(default, "python", target=65, position=-2, walk=WALK, **sampled)
    (tmp_path / name).write_text(text, "utf-8")
    runpy.run_path(str(tmp_path / name), run_name="__main__")
    said = capsys.readouterr().out
    lines = said.splitlines()
    answer = ask(default, "read", text=TEXT, **SWITCHES, half=["L1H2"], position=-2, target=65)
    close(float(lines[0].split()[1]), answer["loss"])
    for line, each in zip(lines[1:11], answer["next"], strict=True):
        close(float(line.split()[0]), each["probability"], 2e-6)
    loaded = loaded_of(default)
    ablate = loaded.ablate
    with ablate(["L1H0"], by="mean", text=TEXT), ablate(["L0H0"]), ablate(["L1H2"], by="half"):
        reading = loaded.read(TEXT)
        shares, pairs = reading.attribution(-2, 65), reading.why("L1H2", 5, 3).rows()[:5]
    for line, (part, share) in zip(lines[11:], shares.items(), strict=False):
        assert line.split(" ", 1)[1] == part
        close(float(line.split(" ", 1)[0]), share, 2e-5)
    sampling = {"temperature": 1.0, "max_new_tokens": 8, "seed": 4}
    written = ask(default, "write", text=TEXT, **SWITCHES, half=["L1H2"], **sampling)
    ids = [*answer["ids"], *(each["id"] for each in written)]
    expected = loaded.tokenizer.decode(ids)
    before, *last = said.rstrip("\n").rsplit("\n", len(pairs))
    assert before.endswith(f"\n{expected}")
    close([float(line.split()[-1]) for line in last], [pair["score"] for pair in pairs])


def test_the_page_keeps_the_walk(default):
    data = Elements(exported(default, "html", walk=WALK, against={})[2]).data
    assert data["start"]["walk"] == WALK
    [why] = data["runs"][0]["why"]
    assert why == ask(default, "why", text=TEXT, **SWITCHES, half=["L1H2"], **WALK[0])
    assert data["runs"][1]["why"] == []
    for format in ("html", "python"):
        with refused("this model has no such head"):
            exported(default, format, walk=[{"head": "L2H0"}])


def test_the_table_has_the_losses_and_the_likely_tokens(default):
    rows = list(csv.DictReader(io.StringIO(exported(default, "csv")[2])))
    answer = ask(default, "read", text=TEXT, **SWITCHES, half=["L1H2"])
    assert [row["token"] for row in rows] == answer["history"]["labels"]
    losses = answer["history"]["steps"][0]["losses"]
    close([float(row["loss"]) for row in rows[1:]], losses, ROUNDED)
    for number, each in enumerate(answer["next"][:5], start=1):
        assert rows[-1][f"next_{number}"] == each["label"]
        close(float(rows[-1][f"probability_{number}"]), each["probability"])


def test_the_page_to_keep_compares_with_all_heads_on(default):
    data = Elements(exported(default, "html", against={})[2]).data
    names = [run["name"].partition(", ")[2] for run in data["runs"]]
    assert names == ["L0H0 off, L1H0 mean, L1H2 half", "all heads on"]
    answer = ask(default, "read", text=TEXT, **SWITCHES, half=["L1H2"])
    [step] = data["runs"][0]["history"]["steps"]
    assert step["losses"] == answer["history"]["steps"][0]["losses"]
