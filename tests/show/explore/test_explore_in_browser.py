"""The page to play with, in a browser: each action, on a run and on a model of another tool."""

import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pytest
import torch
from checkpoint_files import copy_at_step, opened, save
from composing import training_config
from conversion.models import saved
from hf_tokenizers import for_chats
from running import ROOT
from viewer_page import Keys, Page, percent

import headscope
from headscope.analysis.patching import LogitDifference, patch_heads
from headscope.config.parts import build_part
from headscope.conversion.imported import write_checkpoint
from headscope.data.tokenizer import bpe, char
from headscope.show.explore import server
from headscope.show.explore.answers import Explorer
from headscope.show.explore.models import Models

pytest.importorskip("transformers", reason="needs transformers, of the dev extra")
MINUS = "\N{MINUS SIGN}"
TEXT, OTHER = "When Mary and John", "When John and Mary"
PARTS = [TEXT[:end] for end in range(1, len(TEXT))]
LONG = "incomprehensibilities counterrevolutionaries "
EXAMPLES = [
    text
    for name in ("sotu", "repeats", "names")
    for text in build_part(training_config(f"data={name}").data, "data").starting_texts
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models: a run with kept steps, another run, and the folder of a GPT-2."""
    from foreign_models import foreign_model, write_folder

    found = {}
    for name in ("run", "other"):
        found[name] = tmp_path_factory.mktemp(name)
        kept = found[name] / "checkpoints"
        seed = {"run": "model.qkv_bias=true", "other": "model.qkv_bias=false"}[name]
        saved(kept, f"model.layers=2 model.block_size=32 {seed}")
        for step in (10, 300):
            file = kept / f"step_{step:06}.safetensors"
            copy_at_step(kept / "best.safetensors", file, step)
    found["gpt2"] = write_folder(
        tmp_path_factory.mktemp("gpt2"), foreign_model("GPT2LMHeadModel", n_positions=32)
    )
    letters = tmp_path_factory.mktemp("letters") / "checkpoints"
    sizes, tokenizer = "model.layers=2 model.block_size=32", char(["When Mary and John"])
    step = saved(tmp_path_factory.mktemp("step"), f"{sizes} model.qkv_bias=true", tokenizer)
    text = letters.parent / "text.txt"
    text.write_text("When John and Mary " * 300)
    data = {"_target_": "headscope.TextFiles", "path": str(text)}
    saved(letters, sizes, tokenizer, data=data)
    copy_at_step(step.path, letters / "step_000010.safetensors", 10)
    found["letters"] = letters.parent
    write_checkpoint(found["gpt2"] / "run", headscope.load(found["gpt2"]))
    found["imported"] = found["gpt2"] / "run"
    # So large that the page shows the maps of some heads only.
    found["large"] = saved(
        tmp_path_factory.mktemp("large"),
        "model.layers=8 model.heads=8 model.embed_dim=256 model.block_size=128",
    ).path
    save(opened(found["large"]) | {"texts": ["We the people"]}, found["large"])
    tokenizer = bpe([LONG * 50], vocab_size=330)
    sizes = "model.layers=2 model.block_size=32 model.embed_dim=64"
    found["long"] = saved(tmp_path_factory.mktemp("long"), sizes, tokenizer).path
    held = saved(tmp_path_factory.mktemp("held"), "model.layers=2 model.block_size=32").path
    chat = saved(tmp_path_factory.mktemp("chat"), "model.layers=2 model.block_size=64", for_chats())
    found["chat"] = chat.path
    found["held"], content = held, opened(held)
    heads, width = 4, 8
    mask = (torch.arange(width) < width // heads).float()  # L0H0
    name = "model.blocks.0.attention.out_proj.held"
    content["tensors"] |= {f"{name}.mask": mask, f"{name}.values": torch.zeros(width)}
    save(content, held)
    tokenizer = bpe([(ROOT / "README.md").read_text("utf-8")], vocab_size=400)
    for number, text in enumerate(EXAMPLES):
        found[text] = tmp_path_factory.mktemp(f"example_{number}")
        kept = found[text] / "checkpoints"
        best = saved(kept, "model.layers=4 model.heads=4 model.block_size=64", tokenizer).path
        save(opened(best) | {"texts": [text]}, best)
        copy_at_step(best, kept / "step_000003.safetensors", 3)
    return found


@pytest.fixture(scope="module")
def addresses(folders: dict[str, Path]) -> dict[str, str]:
    """The address of the page of each model."""
    found = {}
    for name, folder in folders.items():
        models = Models(str(folder), str(folders["other"]), "cpu")
        if name == "large":  # what decides is asked for on request
            models.get("this").deciders_seconds = lambda tokens: 10.0  # type: ignore[method-assign]
        _, found[name] = server.serve(Explorer(models), host="127.0.0.1", port=0)
    return found


class ExplorePage(Page):
    """The page that the browser shows."""

    def open(self, address: str, **state: str) -> None:
        entries = "&".join(
            f"{name.replace('_', '.', 1)}={quote(text)}" for name, text in state.items()
        )
        self.browser.get("about:blank")
        self.browser.get(f"{address}#{entries}")
        self.ready()

    def ready(self) -> None:
        """Waits until the newest reading is shown."""
        end = time.monotonic() + 30
        quiet = 0
        while quiet < 3:  # an action may need a moment to begin
            assert time.monotonic() < end, "the page is not ready"
            ready = self.browser.execute_script(
                "const { ready, busy } = document.documentElement.dataset;"
                "return ready === '1' && busy === undefined "
                "&& document.querySelectorAll('.tokens [data-token]').length > 0"
            )
            quiet = quiet + 1 if ready else 0
            time.sleep(0.05)

    def click(self, element: Any) -> None:
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        self.ready()

    def press(self, words: str) -> None:
        """Clicks the button that begins with these words."""
        [found, *_] = [each for each in self.all("button") if each.text.startswith(words)]
        self.click(found)

    def type(self, text: str, selector: str = ".editor-card textarea") -> None:
        field = self.one(selector)
        field.clear()
        field.send_keys(text)
        self.ready()

    @property
    def heads(self) -> list[Any]:
        """The button of each head: its map or, in a large model, its cell."""
        return self.all(":is(.grid, .cells) button")

    def switch(self, head: int, way: str) -> None:
        self.click(self.heads[head])
        self.click(self.one(f".switches-card label:has([value={way}])"))

    @property
    def labels(self) -> list[str]:
        return [each.text.split("\n")[0] for each in self.tokens]

    @property
    def likely(self) -> list[tuple[str, str]]:
        """The listed tokens and their probabilities."""
        notes = [row.text.split("\n")[1] for row in self.all(".bar-row")]
        return list(zip([each.text for each in self.all(".pick")], notes, strict=True))


READS = """return performance.getEntriesByType("resource")
    .filter(({ name }) => name.endsWith("/v1/read")).length"""


def expected(loaded: Any, text: str, count: int = 10) -> list[tuple[str, str]]:
    """What the page must list after a text."""
    values, tokens = loaded.logits(text)[-1].softmax(-1).topk(count)
    labels = [loaded.tokenizer.labels([token])[0] for token in tokens.tolist()]
    return list(zip(labels, map(percent, values.tolist()), strict=True))


@pytest.fixture
def page(browser: Any) -> Iterator[ExplorePage]:
    """Afterwards the console may hold no error."""
    found = ExplorePage(browser)
    found.resize(1400)
    yield found
    assert browser.get_log("browser") == []


@pytest.fixture(params=["run", "gpt2"])
def model(request: pytest.FixtureRequest, page: ExplorePage, addresses: Any, folders: Any) -> Any:
    """The model of the page, which shows TEXT."""
    page.open(addresses[request.param], x_text=TEXT)
    return headscope.load(folders[request.param])


def test_type_and_see_what_the_model_says_and_what_top_k_removes(
    page: ExplorePage, model: Any
) -> None:
    page.type("We the people")
    labels = model.tokenizer.labels(model.tokens("We the people"))
    assert page.labels == labels
    assert page.likely == expected(model, "We the people")
    losses = model.read("We the people").losses.tolist()
    found = [each.text for each in page.all(".tokens small")]
    assert found == ["–", *(f"{loss:.1f}" for loss in losses)]
    assert len(page.heads) == sum(each.heads for each in model.model.attentions)
    assert len(page.all(".lens .row")) == len(model.model.blocks) + 1
    assert page.all(".heads .row")
    page.click(page.tokens[3])
    assert page.likely == expected(model, "We t")
    Page.press(page, Keys.ESCAPE)
    page.click(page.one(".sampling summary"))
    field = page.one(".sampling input[placeholder]")
    field.clear()
    field.send_keys("3\t")
    page.ready()
    assert len(page.all(".bar-row.cut")) == 7
    removed = 1 - model.logits("We the people")[-1].div(0.8).softmax(-1).topk(3).values.sum().item()
    assert percent(removed) in page.text(".bars-card > .quiet")


def test_it_writes_stops_goes_back_and_goes_on_from_another_token(
    page: ExplorePage, model: Any
) -> None:
    before = model.tokens(TEXT)
    page.press("▶ Write")
    wanted = model.generate(
        before, max_new_tokens=40, do_sample=True, temperature=0.8, top_p=0.95, seed=0
    )
    end = time.monotonic() + 30
    while page.text(".editor-card .play").startswith("■"):
        assert time.monotonic() < end
        time.sleep(0.1)
    page.ready()
    field = page.one(".editor-card textarea")
    value = field.get_attribute("value")
    assert value == model.tokenizer.decode(wanted).replace("\r\n", "\n").replace("\r", "\n")
    page.press("\N{MINUS SIGN} 1 token")
    page.press("+ 1 token")
    assert field.get_attribute("value") == value
    for _ in range(3):
        page.press("Undo")
    assert field.get_attribute("value") == TEXT
    third = page.likely[2][0]
    page.click(page.all(".pick")[2])
    assert page.labels[-1] == third
    assert len(page.labels) == len(before) + 1
    page.press("\N{MINUS SIGN} 1 token")
    page.press("+ 1 token")
    assert len(page.labels) == len(before) + 1


def test_an_action_uses_what_was_just_typed(page: ExplorePage, model: Any) -> None:
    page.browser.execute_script(
        """const field = document.querySelector(".editor-card textarea");
        field.value = "We the"; field.dispatchEvent(new Event("input"));
        const buttons = [...document.querySelectorAll("button")];
        const one = buttons.find((each) => each.textContent === "+ 1 token");
        one.click(); one.click();"""
    )
    page.ready()
    sampled = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "seed": 0}
    tokens = model.generate(model.tokens("We the"), max_new_tokens=2, **sampled)
    assert page.labels == model.tokenizer.labels(tokens)


def test_switched_heads_change_the_probabilities_and_the_loss(
    page: ExplorePage, model: Any
) -> None:
    plain = expected(model, TEXT)
    page.click(page.heads[1])
    before_switching = page.script(READS)
    page.switch(1, "zero")
    assert page.script(READS) == before_switching + 1
    with model.ablate(["L0H1"]):
        wanted = expected(model, TEXT)
        shares = dict(expected(model, TEXT, 250))
        assert [each for each in page.likely if each in wanted] == wanted
        after = model.read(TEXT).loss()
    assert f"to {after:.3f}" in page.text(".loss-change")
    assert f"from {model.read(TEXT).loss():.3f}" in page.text(".loss-change")
    [(label, before), *_] = plain
    verb = "rises" if float(shares[label].split()[0]) > float(before.split()[0]) else "falls"
    assert f"“{label}” {verb} from {before} to {shares[label]}." in page.text(
        ".switches-card .effect"
    )
    assert "minus" not in page.text(".moment")  # the colours stay
    assert page.all(".metrics-card .comparing") == []  # the metrics are those of the model
    page.switch(1, "mean")
    with model.ablate(["L0H1"], by="mean", text=TEXT):
        assert f"to {model.read(TEXT).loss():.3f}" in page.text(".loss-change")
    page.press("Write both")
    time.sleep(1)
    written = [each.text for each in page.all(".written h4")]
    assert written == ["all heads on", "L0H1 at its mean"]
    page.press("all on")
    page.press("layer L0")
    assert [chip.text for chip in page.all(".chip")] == ["layer L0 off \N{MULTIPLICATION SIGN}"]
    page.press("L0H1 alone")
    assert [chip.text for chip in page.all(".chip")] == ["L0H1 alone \N{MULTIPLICATION SIGN}"]
    page.press("all on")
    assert page.likely == plain


@pytest.mark.parametrize(("by", "switched"), [("mean", "at its mean"), ("zero", "off")])
def test_what_decides_is_said_of_the_model_with_switched_heads_and_of_each_kept_step(
    page: ExplorePage, addresses: Any, folders: Any, by: Any, switched: str
) -> None:
    """What is said names what replaces the part."""
    page.open(addresses["letters"], x_text=TEXT, x_zero="L0H1", x_target="13", x_by=by)
    loaded = headscope.load(folders["letters"])
    kept = headscope.load(folders["letters"] / "checkpoints" / "step_000010.safetensors")
    with loaded.ablate(["L0H1"]), kept.ablate(["L0H1"]):
        parts = kept.deciders(TEXT, token=13, by=by)
        deciders = loaded.deciders(TEXT, token=13, by=by)
    size = (deciders["probability"] - deciders["without"]).abs()
    token, before = f"“{deciders['token'][0]}”", percent(deciders["probability"][0])
    said = []
    for kind in (r"L\dH\d", r"L\d feed-forward"):
        of_kind = deciders[deciders["part"].str.fullmatch(kind)]
        largest = of_kind.loc[size[of_kind.index].nlargest(5).index]
        named = largest.index[:1] if "H" in kind else largest.index[:0]  # by the sentence
        largest = largest[(size[largest.index] >= 0.01) | largest.index.isin(named)]
        rises = largest["without"] - largest["probability"] >= 0.01
        for row in pd.concat([largest[~rises], largest[rises]]).itertuples():
            verb = "falls" if row.probability - row.without >= 0.01 else "rises"
            after = percent(row.without)
            said.append(f"with {row.part} {switched}, {token} {verb} from {before} to {after}")
    assert len(said) >= 2
    first = len(said)
    for step, table in ((7, deciders), (10, parts)):
        row = table.iloc[0]
        more = f", and {percent(row['without'])} with {row['part']} {switched}"
        decides = row["probability"] - row["without"] >= 0.01
        said.append(
            f"step {step}: {token} has {percent(row['probability'])}{more if decides else ''}"
        )

    def sentences() -> list[str]:
        time.sleep(0.5)
        labelled = page.all(".deciders-card .rows [aria-label]")
        return [each.get_attribute("aria-label").replace("\xa0", " ") for each in labelled]

    assert sentences() == said[:first]
    assert "with L0H1 off" in page.text(".deciders-card .quiet")
    assert page.text(".deciders-card .effect").endswith(f" {switched}.")
    page.press("Since")
    assert sentences() == said
    for part in deciders["part"]:
        page.select("part", part)
        wanted = []
        for step, table in ((7, deciders), (10, parts)):
            [row] = table[table["part"] == part].to_dict("records")
            shares = percent(row["probability"]), percent(row["without"])
            text = "step {}: {} has {}, and {} with {} {}"
            wanted.append(text.format(step, token, *shares, part, switched))
        assert sentences()[first:] == wanted
    page.select("part", "")
    page.click(page.all(".kept-rows button")[1])
    assert page.one("select[aria-label='model']").get_attribute("value") == "this@10"
    assert sentences()[-2:] == said[-2:]
    page.type(TEXT[:1])
    assert (sentences() == []) == (by == "mean")
    assert ("text of one token" in page.text(".deciders-card .quiet")) == (by == "mean")


def test_a_copied_output_changes_the_answer(page: ExplorePage, model: Any) -> None:
    page.click(page.one(".patch-card summary"))
    page.type(OTHER, ".patch-card textarea")
    assert len(page.all(".token-pair")) == len(TEXT)
    page.click(page.all(".token-pair")[6])
    page.click(page.heads[2])
    head = page.text("h2").split()[0]
    page.press(f"Copy {head} at “")
    texts = [torch.tensor(model.tokens(text)) for text in (OTHER, TEXT)]
    chosen = [
        int(page.one(f'select[aria-label="{name}"]').get_attribute("value"))
        for name in ("other text's answer", "yours")
    ]
    found = patch_heads(model.model, *texts, LogitDifference(*chosen), position=6)
    values = [found.corrupted, found.clean, found.denoised.flatten()[2]]
    shown = re.findall(rf"[+{MINUS}]\d+\.\d\d|±0", page.text(".patch-card [role=status]"))
    assert [float(each.replace(MINUS, "-").strip("±")) for each in shown] == pytest.approx(
        [float(value) for value in values], abs=0.006
    )
    page.press("Try every head")
    time.sleep(0.5)
    assert page.all(".effects .row")


def test_two_models_and_two_steps_are_compared(page: ExplorePage, model: Any, folders: Any) -> None:
    options = [
        each.get_attribute("value") for each in page.all("select[aria-label='compare with'] option")
    ]
    assert "model:other@10" in options
    page.click(page.one("select[aria-label='compare with'] option[value='model:other']"))
    if "model:this@10" in options:  # a run, whose vocabulary is that of the other one
        other = dict(expected(headscope.load(folders["other"]), TEXT, 257))
        for row in page.all(".bar-row"):
            was = row.find_elements("css selector", ".note")[1].text
            assert was == f"other {other[row.find_element('css selector', '.pick').text]}"
        page.browser.execute_script(
            "arguments[0].value = 1; arguments[0].dispatchEvent(new Event('input'))",
            page.one("input[type=range]"),
        )
        page.ready()
        assert page.one("select[aria-label='model']").get_attribute("value") == "this@10"
        assert "minus" in page.text(".moment")


def test_a_model_with_other_tokens_is_not_compared_token_by_token(
    page: ExplorePage, addresses: Any, folders: Any
) -> None:
    page.open(addresses["letters"], x_text="Mary", x_other="other", v_token="0")
    assert "other" not in " ".join(share for _, share in page.likely)
    label, share = expected(headscope.load(folders["other"]), "Mary", 1)[0]
    assert f"expects its own tokens: “{label}” {share}, " in page.text(
        ".bars-card .quiet:nth-of-type(2)"
    )


def test_the_head_that_decides_is_opened_unless_the_person_has_chosen_one(
    page: ExplorePage, addresses: Any
) -> None:
    def opened() -> str:
        time.sleep(1)
        return page.text("h2").split()[0]

    def reload() -> None:
        time.sleep(1)  # until the URL has the head
        page.browser.refresh()
        page.ready()

    page.open(addresses["gpt2"], x_text=TEXT)
    decider = opened()
    assert decider == re.search(r"L\dH\d", page.text(".deciders-card .effect"))[0] != "L0H1"
    page.click(page.one(".switches-card label:has([value=zero])"))
    reload()
    assert opened() == decider
    page.open(addresses["gpt2"], x_text=TEXT)
    page.click(page.heads[1])
    page.type("We the people")
    assert opened() == "L0H1"
    reload()
    assert opened() == "L0H1"


SEQUENCES = [
    ["why", "leave", "find", "type", "find"],
    ["find", "why", "leave", "type", "find", "try"],
    ["try", "why", "leave", "type", "find", "why", "leave"],
    ["find", "why", "type", "leave", "find", "try", "why", "leave"],
]


@pytest.mark.parametrize("actions", SEQUENCES, ids=" ".join)
def test_the_sentence_and_the_map_speak_of_one_head_unless_the_person_has_opened_another(
    page: ExplorePage, addresses: Any, actions: list[str]
) -> None:
    letters = random.Random(0)

    def settle() -> None:
        time.sleep(0.3)
        page.ready()
        end = time.monotonic() + 60
        while page.all(".deciders-card.asking"):
            assert time.monotonic() < end
            time.sleep(0.1)
        time.sleep(0.7)  # until the URL is written

    def act(action: str) -> None:
        walks = page.one(".why-card").is_displayed()
        if action == "why":
            page.click(page.one(".map-card > .action"))
        elif action == "leave" and walks:
            Page.press(page, Keys.ESCAPE)
        elif action == "find":
            button = page.one(".deciders-card > button")
            if button.is_displayed():
                page.click(button)
        elif action == "type" and not walks:
            page.type("".join(letters.choices("abcdefgh ", k=64)))
        elif action == "try" and not walks:
            page.click(page.one(".tries button"))
        settle()

    def named() -> list[str]:
        return re.findall(
            r"L\dH\d", "".join(each.text for each in page.all(".deciders-card .effect"))
        )

    page.open(addresses["large"], x_text="the " * 16)
    said = set()
    for action in actions:
        act(action)
        assert "v.head" not in page.browser.current_url
        if not page.one(".why-card").is_displayed():
            for head in named():
                said.add(head)
                assert page.text("h2").split()[0] == head, action
    assert said
    mine = next(number for number in range(64) if f"L{number // 8}H{number % 8}" not in said)
    page.click(page.heads[mine])
    for action in actions:
        act(action)
        assert page.text("h2").split()[0] == f"L{mine // 8}H{mine % 8}" or action == "try"
        if action == "try":  # an experiment is as new
            break


def test_the_token_that_is_asked_about_stays_when_the_step_changes(
    page: ExplorePage, addresses: Any, folders: Any
) -> None:
    kept = folders["letters"] / "checkpoints" / "step_000010.safetensors"
    models = [headscope.load(folders["letters"]), headscope.load(kept)]
    tops = {text: {int(each.logits(text)[-1].argmax()) for each in models} for text in PARTS}
    page.open(addresses["letters"], x_text=next(text for text in PARTS if len(tops[text]) == 2))
    question = page.text(".deciders-card h3")
    slider = page.one("input[type=range]")
    for place in (1, 0, 1):
        page.script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
            slider,
            place,
        )
        page.ready()
        assert page.text(".deciders-card h3") == question
    page.type("Mary")  # another question: again the most likely token
    assert page.all(".ask")[0].get_attribute("aria-pressed") == "true"
    page.open(addresses[EXAMPLES[0]], x_text="the", x_target="1")
    page.click(page.one(".tries button"))
    assert page.all(".ask")[0].get_attribute("aria-pressed") == "true"


BROKEN = """return [...document.querySelectorAll(".row")].filter((row) => {
  const [name, bar] = [".token-name", ".share"].map((each) => row.querySelector(each));
  return name?.getClientRects().length && bar && bar.clientWidth > 40
    && name.clientHeight > 1.5 * parseFloat(getComputedStyle(name).lineHeight);
}).map((row) => row.textContent);"""


@pytest.mark.parametrize("width", [390, 1000, 1280, 1400])
def test_no_word_is_broken_beside_an_empty_bar(
    page: ExplorePage, addresses: Any, width: int
) -> None:
    page.resize(width)
    page.open(addresses["long"], x_text=LONG, v_walk="L1H0.1.0")
    time.sleep(0.5)
    assert page.script(BROKEN) == []
    words = [line[-2] for line in page.lines(".keys .row")]
    assert max(map(len, words)) > 20
    assert page.script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("heads", [4, 8])
def test_a_phone_shows_all_heads(page: ExplorePage, addresses: Any, heads: int) -> None:
    page.resize(390)
    page.open(addresses["large" if heads == 8 else "run"], x_text=TEXT)
    assert len(page.heads) == (64 if heads == 8 else 2 * heads)
    box = page.one(".cells" if heads == 8 else ".grid")
    assert page.script("return arguments[0].scrollWidth <= arguments[0].clientWidth", box)


def test_the_name_of_the_model_is_not_cut(page: ExplorePage, folders: Any, tmp_path: Path) -> None:
    """The name that a run has by default."""
    run = tmp_path / "gpt_2026-11-29_12-16-59"
    (run / "checkpoints").mkdir(parents=True)
    for name, step in (("best", 7), ("step_000010", 10)):
        file = folders["run"] / "checkpoints" / "best.safetensors"
        copy_at_step(file, run / "checkpoints" / f"{name}.safetensors", step)
    explorer = Explorer(Models(str(run), str(folders["other"]), "cpu"))
    page.resize(1280, 720)
    page.open(server.serve(explorer, host="127.0.0.1", port=0)[1], x_text=TEXT, x_other="other@300")
    shown = """const select = document.querySelector("select[aria-label='model']");
      const context = document.createElement("canvas").getContext("2d");
      context.font = getComputedStyle(select).font;
      const { width } = context.measureText(arguments[0]);
      return [width, select.clientWidth];"""
    needed, width = page.script(shown, run.name)
    assert needed + 36 < width  # the arrow, and the dots of what follows
    assert page.script("return document.querySelector('header').scrollWidth") <= 1280
    other = page.one("select[aria-label='compare with']")
    assert other.size["width"] > 70


def test_an_imported_model_has_no_step(page: ExplorePage, addresses: Any, folders: Any) -> None:
    for name in ("gpt2", "imported"):
        page.open(addresses[name], x_text=TEXT)
        shown = page.text("body") + page.text("select[aria-label='model']")
        assert "step 0" not in shown
        assert "imported" in page.moment
        assert "step" not in repr(headscope.load(folders[name]))
    assert "step 7" in repr(headscope.load(folders["run"]))


def test_a_held_head_is_not_opened_first_and_its_switch_says_so(
    page: ExplorePage, addresses: Any
) -> None:
    page.open(addresses["held"], x_text=TEXT)
    assert page.text("h2").split()[0] != "L0H0"
    assert "held" not in page.text(".way-of")
    page.click(page.heads[0])
    assert page.text(".way-of") == "L0H0 held"
    page.press("Why there?")
    assert "held" in page.text(".why-card [role=status]")


def test_keys_are_buttons_and_mostly_is_said_above_half_of_the_score(
    page: ExplorePage, addresses: Any, folders: Any
) -> None:
    reading = headscope.load(folders["gpt2"]).read(TEXT)
    said = set()
    for layer in (0, 1):
        page.open(addresses["gpt2"], x_text=TEXT, v_walk=f"L{layer}H0.9.9")
        keys = [int(line[0]) for line in page.lines(".keys button")]
        assert len(keys) > 5
        for key in keys[:5]:
            place = [int(line[0]) for line in page.lines(".keys button")].index(key)
            page.script("arguments[0].focus()", page.all(".keys button")[place])
            Page.press(page, Keys.ENTER)
            page.ready()
            time.sleep(0.7)  # until the answer is there
            assert f"L{layer}H0.9.{key}" in page.browser.current_url
            [marked] = page.lines(".keys .marked")
            assert int(marked[0]) == key
            weight = float(reading.attention[layer, 0, 9, key])
            assert float(marked[-1].split()[-1]) == pytest.approx(weight, abs=6e-4)
            why = reading.why(f"L{layer}H0", 9, key)
            scores = [row["score"] for row in why.rows()]
            largest = max(score * (1 if sum(scores) > 0 else -1) for score in scores)
            mostly = page.text(".why-card .effect").startswith("Mostly")
            assert mostly == (largest > abs(sum(scores)) / 2)
            said.add(mostly)
    assert said == {True, False}


def test_switches_say_how_a_text_is_read_and_a_question_goes_on_as_a_chat(
    page: ExplorePage, addresses: Any
) -> None:
    tokenizer, text = for_chats(), "To<|end_of_text|>be"

    def labels(text: str, **options: bool) -> list[str]:
        return tokenizer.labels(tokenizer.typed(**options).encode_prompt(text))

    page.open(addresses["chat"], x_text=text, x_length="3")
    assert page.labels == labels(text)
    page.all(".sampling summary")[1].click()
    page.click(page.one("input[aria-label='begin of text']"))
    assert page.labels == labels(text, begin=True)
    page.click(page.one("input[aria-label='special tokens']"))
    assert page.labels == labels(text, begin=True, special=True)
    page.click(page.one("input[aria-label='as a question']"))
    page.type("To be?")
    question = labels("To be?", question=True)
    assert page.labels == question
    page.press("▶ Write")
    page.ready()
    assert page.labels[: len(question)] == question
    assert len(page.labels) == len(question) + 3
    field = page.one(".editor-card textarea").get_attribute("value")
    assert field.startswith("[user]\nTo be?</s>[a]")  # it begins with the token of the switch
    assert not page.one("input[aria-label='as a question']").is_selected()
    page.press("Undo")
    assert page.labels == question
    page.open(addresses["run"], x_text="a")
    assert not page.one("input[aria-label='as a question']").is_displayed()


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_an_experiment_begins_with_a_button_and_needs_no_scrolling(
    page: ExplorePage, addresses: Any, number: int
) -> None:
    text = EXAMPLES[min(number, 4) - 1]
    page.resize(1280, 720)
    page.open(addresses[text])
    page.press(f"{number} ")
    assert page.one(".editor-card textarea").get_attribute("value") == text
    model = page.one("select[aria-label='model']").get_attribute("value")
    assert model == ("this@3" if number == 5 else "this")
    needed = [".task", ".says", ".switches-card", ".grid", ".map canvas", ".lines"]
    needed.append(".patch-card [role=status]" if number == 4 else ".deciders-card .effect")
    page.script("scrollTo(0, 0)")
    for selector in needed:
        box = page.script("return arguments[0].getBoundingClientRect()", page.one(selector))
        assert 0 < box["width"] <= box["right"] <= 1280, selector
        assert box["bottom"] <= 720, selector
    assert page.script("return document.documentElement.scrollWidth") <= 1280
    assert page.script("return document.querySelector('header').offsetHeight") < 60


def test_hostile_text_is_text(page: ExplorePage, addresses: Any) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    page.open(addresses["run"], x_text=hostile, x_second=hostile[::-1], x_zero="L0H1")
    assert page.one(".editor-card textarea").get_attribute("value") == hostile
    assert page.all("img") == []
    page.open(addresses["letters"], x_text="a☃")
    assert [each.text for each in page.all("mark")] == ["☃"]  # outside the vocabulary
    wrong = {"x_temperature": "abc", "x_zero": "L9H9", "x_top_k": "0", "v_token": "50"}
    page.open(addresses["letters"], x_text="a", **wrong)
    assert page.labels == ["a"]
    page.browser.get_log("browser")  # the server has refused top_k=0


def test_every_control_has_a_name_and_an_explanation(page: ExplorePage, addresses: Any) -> None:
    page.open(addresses["run"], x_text=TEXT, x_second=OTHER, x_zero="L0H1", x_other="other")
    assert page.unexplained() == []
    words = page.script("return document.querySelector('dialog').textContent")
    titles = page.script(
        "return [...document.querySelectorAll('.card > :is(h3, summary)')]"
        ".filter((title) => title.getClientRects().length).map((title) => title.textContent)"
    )
    assert "*" not in words
    for title in titles:  # the help panel names each panel
        found = re.sub(r"( working …| after “.*| “.*)$", "", title)
        assert re.sub(r"L\dH\d", "L0H1", found) in words, title
    page.browser.execute_cdp_cmd("Accessibility.enable", {})
    nodes = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    kinds = ("button", "combobox", "textbox", "slider", "radio", "spinbutton")
    controls = [each for each in nodes if each.get("role", {}).get("value") in kinds]
    assert len(controls) > 40
    assert [each for each in controls if not each.get("name", {}).get("value")] == []


def test_what_a_head_does_elsewhere_is_asked_for_on_request_and_of_all_heads_on(
    page: ExplorePage, addresses: Any, folders: Any
) -> None:
    loaded = headscope.load(folders["letters"])
    page.open(addresses["letters"], x_text=TEXT, x_zero="L0H0", v_head="L1H1")
    sent = "performance.getEntriesByType('resource').filter(({ name }) => /v1.ex/.test(name))"
    asked = f"return {sent}.length"

    def shown() -> list[str]:
        time.sleep(1)
        return [each.text.replace("\n", "") for each in page.all(".example p")]

    def unmarked(text: str) -> str:
        return text.translate(dict.fromkeys(map(ord, "【】«»")))

    assert page.script(asked) == len(shown()) == 0
    page.click(page.one(".elsewhere-card summary"))
    assert shown() == [unmarked(text) for text in loaded.examples("L1H1")["text"]]
    page.type(TEXT[:4])
    assert page.script(asked) == 1
    page.click(page.heads[0])
    assert shown() == [unmarked(text) for text in loaded.examples("L0H0")["text"]]
    imported = headscope.load(folders["gpt2"])  # its corpus is unknown
    page.open(addresses["gpt2"], x_text=TEXT, v_head="L1H1")
    page.click(page.one(".elsewhere-card summary"))
    assert shown() == [unmarked(text) for text in imported.examples("L1H1")["text"]]
    assert "tokens of the speeches" in page.text(".elsewhere-card .quiet")


HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding")


@contextmanager
def reverse_proxy(address: str, prefix: str) -> Iterator[int]:
    """A proxy as JupyterHub has one in front of the servers of its users. It forwards requests
    below `prefix`, such as `/user/x`, to the server at `address`, without the prefix and with the
    Host and the Origin that the browser sends. Yields its port."""

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(prefix):
                self.send_error(404)
                return
            path = f"/{self.path.removeprefix(prefix).removeprefix('/')}"
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = HTTPConnection(address, timeout=30)
            connection.request(self.command, path, body, dict(self.headers))
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.end_headers()
            while part := answer.read1(2**16):
                self.wfile.write(part)
                self.wfile.flush()
            connection.close()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *message: object) -> None:
            """Prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("host", "prefix", "allowed"),
    [
        ("localhost", "", []),  # as with ssh -L
        ("hub.localhost", "/user/x/proxy/8765", ["hub.localhost"]),
        ("hub.localhost", "/user/x/proxy/8765", ["*"]),
    ],
    ids=["ssh", "JupyterHub", "token"],
)
def test_the_page_works_at_another_address(
    page: ExplorePage, folders: Any, host: str, prefix: str, allowed: list[str]
) -> None:
    explorer = Explorer(Models(str(folders["run"]), None, "cpu"))
    _, url = server.serve(explorer, host="127.0.0.1", port=0, allowed_hosts=allowed)
    behind, _, query = url.removeprefix("http://").partition("/")
    with reverse_proxy(behind, prefix) as port:
        page.open(f"http://{host}:{port}{prefix}/{query}", x_text=TEXT)
        loaded = headscope.load(folders["run"])
        assert page.likely == expected(loaded, TEXT)
        page.press("+ 1 token")
        page.switch(1, "zero")
        time.sleep(0.5)  # until the URL has it
        labels, likely = page.labels, page.likely
        assert len(labels) == len(loaded.tokens(TEXT)) + 1
        assert f"{host}:{port}{prefix}/{query}#" in page.browser.current_url
        page.browser.refresh()
        page.ready()
        assert (page.labels, page.likely) == (labels, likely)
        assert "Add a slash" not in page.text("body")
        if prefix:
            page.browser.get(f"http://{host}:{port}{prefix}{query}")
            assert "Add a slash at its end" in page.text("body")
            page.browser.get_log("browser")  # its files are not found
