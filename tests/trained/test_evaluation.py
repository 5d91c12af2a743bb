"""The laws of evaluation: it gives the loss with which a run ended, also at several lengths."""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch
import yaml
from checkpoint_files import configuration, content, save
from choices import slow_unless

import headscope
from headscope import trained
from headscope.cli.conf import CONF, choices_of
from headscope.data.corpus import TinyShakespeare
from headscope.data.encode import validation_text
from headscope.data.own_files import TextFiles
from headscope.nn.loss import next_token_loss
from headscope.trained.evaluation import evaluate, evaluate_lengths


def saved(path, *overrides):
    save(content(configuration(*overrides))[0], path)
    return trained.load(path)


def text_of(speeches, loaded, size):
    """The first tokens of the validation split."""
    text = validation_text(TextFiles(path=str(speeches)), loaded.tokenizer)
    return type(text)(text.tokens[:size], text.byte_lengths)


@pytest.mark.parametrize("size", [1, 5, 8, 20])
def test_the_loss_is_that_of_every_token_in_windows_of_that_length(tmp_path, speeches, size):
    loaded = saved(tmp_path / "a.safetensors", "model/position=alibi")
    text = text_of(speeches, loaded, 203)
    [found] = evaluate_lengths(loaded, text, batch_size=3, block_sizes=[size])
    model = loaded.with_block_size(20)
    nats = 0.0
    for start in range(0, 202, size):
        window = torch.tensor(text.tokens[start : start + size + 1].astype("int64"))[None]
        with torch.no_grad():
            nats += next_token_loss(model(window[:, :-1]), window[:, 1:], reduction="sum").item()
    assert found["block_size"] == size
    assert found["loss_nats_per_token"] == pytest.approx(nats / 202, rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / found["bytes"], rel=1e-5)


@pytest.mark.parametrize("position", choices_of("model/position"))
def test_a_position_reaches_further_or_says_why_not(tmp_path, speeches, position):
    loaded = saved(tmp_path / "a.safetensors", f"model/position={position}")
    text = text_of(speeches, loaded, 500)
    short, own, far = evaluate_lengths(loaded, text, batch_size=16, block_sizes=[4, 8, 16])
    assert own == {"block_size": 8, **evaluate(loaded.model, text, batch_size=16)}
    assert short["tokens"] == own["tokens"] == 499
    limit = loaded.model.position.limit
    if limit:
        assert far.keys() == {"block_size", "not_possible"}
        assert limit in far["not_possible"]
        assert "block_size=8" in far["not_possible"]
    else:
        assert far["tokens"] == 499
        longer = loaded.with_block_size(16)
        tokens = torch.arange(8)[None]
        torch.testing.assert_close(longer(tokens), loaded.model(tokens))


def test_evaluating_in_bf16_changes_nothing_of_the_callers_model(tmp_path, speeches):
    loaded = saved(tmp_path / "a.safetensors", "model/position=alibi")
    text = text_of(speeches, loaded, 100)
    before = evaluate(loaded.model, text, batch_size=16)
    for sizes in ([8, 16], [4], [8]):
        evaluate_lengths(loaded, text, batch_size=16, block_sizes=sizes, precision="bf16")
    assert {weight.dtype for weight in loaded.model.state_dict().values()} == {torch.float32}
    assert evaluate(loaded.model, text, batch_size=16) == before


def test_the_script_prints_a_list_and_refuses_what_is_no_list_of_lengths(script, speeches):
    saved(Path("a.safetensors"), "data=text", f"data.path={speeches}", "model/position=learned")
    said = script("evaluate", "checkpoint=a.safetensors", "block_size=[8,16]")
    assert said.code == 0, said.err
    own, far = json.loads(said.out)
    assert own == {"block_size": 8} | json.loads(script("evaluate", "checkpoint=a.safetensors").out)
    assert "Learned was trained at block_size=8" in far["not_possible"]
    for wrong in ("block_size=[0]", "block_size=8"):
        said = script("evaluate", "checkpoint=a.safetensors", wrong)
        assert said.err.splitlines()[-1].startswith("Error: block_size")


ROWS = [{"text": f"{n}, {n + 1}, {n * n}.", "other": 2 * f"{n} apples. "} for n in range(40)]
REPEATED = [*ROWS[:30], *ROWS[9:12], *ROWS[30:]]
SET = "data.name=set data.template={other}\\n{text}"
BOTH = "data.validation_split=validation"
SHORT = "data.characters=3000"
WORDS = {
    "hub": {
        "name": "data.name=set",
        "subset": "data.name=set data.subset=twice",
        "column": "data.name=set data.column=other",
        "template": SET,
        "train_split": f"{SET} data.train_split=train[:70%]",
        "validation_split": f"{SET} {BOTH}",
        "revision": f"{SET} data.revision=main",
        "streaming": f"{SET} {BOTH} data.streaming=true",
        "max_tokens": f"{SET} {BOTH} data.max_tokens=900",
        "deduplicate": f"{SET} data.deduplicate=true",
        "deduplicate, two splits": f"{SET} {BOTH} data.deduplicate=true",
        "deduplicate, limited": f"{SET} {BOTH} data.deduplicate=true data.max_tokens=900",
        "all": f"{SET} {BOTH} data.deduplicate=true data.max_tokens=900 data.streaming=true",
    },
    "text": {
        "path": "data.path=texts",
        "column": "data.path=set data.column=other",
        "template": "data.path=set/*.jsonl data.template={other}{text}",
        "deduplicate": "data.path=set data.deduplicate=true",
    },
    "modular": {"prime": "data.prime=11", "share": "data.share=0.7", "seed": "data.seed=7"},
    "names": {"names": "data.names=9", "seed": "data.seed=7"},
    "repeats": {
        "alphabet": f"{SHORT} data.alphabet=9",
        **{f"{end}_length": f"{SHORT} data.{end}_length=15" for end in ("min", "max")},
        **{f"{end}_copies": f"{SHORT} data.{end}_copies=3" for end in ("min", "max")},
        "characters": SHORT,
        "seed": f"{SHORT} data.seed=7",
    },
    "sotu": {"": ""},
    "tinyshakespeare": {"path": "data.path=texts/a.txt"},
}
"""For every option of every corpus in conf/, words with which the option has an effect."""

QUICK = [("hub", "deduplicate, two splits"), ("modular", "share")]
EVERY = [(corpus, option) for corpus, options in WORDS.items() for option in options]


def test_every_option_of_every_corpus_is_listed():
    keys = {name: yaml.safe_load((CONF / f"data/{name}.yaml").read_text()) for name in WORDS}
    assert {*WORDS} == {*choices_of("data")}
    listed = {name: {option for option in WORDS[name] if option.isidentifier()} for name in WORDS}
    listed["hub"] -= {"all"}
    assert listed == {name: {*keys[name]} - {"_target_"} for name in WORDS}


@pytest.fixture
def corpora_here(tmp_path, monkeypatch):
    """A folder with small corpora for `WORDS`."""
    datasets = pytest.importorskip("datasets", reason="needs datasets, to read text")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    Path("set").mkdir()
    Path("texts").mkdir()
    files = {"train": REPEATED, "validation": [*ROWS[:5], *(row | {"text": "x"} for row in ROWS)]}
    for split, rows in files.items():
        Path(f"set/{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    train = {"split": "train", "path": ["train.jsonl", "validation.jsonl"]}
    both = [train, {"split": "validation", "path": "validation.jsonl"}]
    plain = [{"split": split, "path": f"{split}.jsonl"} for split in files]
    configs = [{"config_name": "default", "data_files": plain, "default": True}]
    configs += [{"config_name": "twice", "data_files": both}]
    Path("set/README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    text = "".join(row["other"] for row in ROWS)
    Path("texts/a.txt").write_text(text)
    monkeypatch.setattr(TinyShakespeare, "sha256", hashlib.sha256(text.encode()).hexdigest())


SMALL_RUN = ["model.layers=1", "model.embed_dim=16", "model.block_size=16", "tokenizer=char"]
SMALL_RUN += ["trainer.max_steps=2", "trainer.batch_size=2", "trainer.final_validation=whole"]
SMALL_RUN += ["model.document_mask=true", "callbacks=plain", "~logger", "hydra.run.dir=run"]


@pytest.mark.parametrize("choice", slow_unless(QUICK, EVERY), ids=" ".join)
def test_evaluating_the_last_checkpoint_gives_the_loss_with_which_the_run_ended(
    corpora_here, script, choice
):
    corpus, option = choice
    words = [f"data={corpus}", *WORDS[corpus][option].split()]
    summary = headscope.train([*SMALL_RUN, *words]).summary
    said = script("evaluate", "checkpoint=run/checkpoints/last.safetensors").succeeded()
    found = json.loads(said.out)
    assert found["loss_nats_per_token"] == pytest.approx(summary["val_loss"], rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(summary["val_bits_per_byte"], rel=1e-6)
