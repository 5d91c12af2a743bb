"""The laws of bits per byte with a tokenizer that loses text: the bytes of the text count."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
from checkpoint_files import configuration, content, save
from hf_tokenizers import CHINESE, make, write_folder
from running import Script

from headscope import checkpoint
from headscope.conversion.tokenizer_in import read_tokenizer
from headscope.data import encode
from headscope.data.char_tokenizer import CharTokenizer
from headscope.data.hub import Hub
from headscope.data.own_files import TextFiles
from headscope.data.preparing import prepare_store
from headscope.data.store import open_store
from headscope.data.tokenizer import Tokenizer, byte, stored
from headscope.errors import UserError
from headscope.evaluation import evaluate, validation_text

LINE = f"{CHINESE}  Look   BACK, Élan!\n\n"
DOCUMENTS = [LINE * (1 + number % 7) for number in range(40)]


@pytest.fixture(scope="module")
def word_piece(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("models") / "word_piece"
    return read_tokenizer(write_folder(folder, make("word_piece"), "[SEP]"))


@pytest.fixture
def corpus(tmp_path) -> TextFiles:
    return TextFiles(path=str(rows(tmp_path / "rows") / "train.jsonl"))


def rows(folder: Path) -> Path:
    folder.mkdir()
    lines = (json.dumps({"text": text}) for text in DOCUMENTS)
    (folder / "train.jsonl").write_text("\n".join(lines))
    return folder


VALIDATION = "".join(DOCUMENTS[9::10])


def saved(tokenizer: Tokenizer, path: Path, *overrides: str) -> checkpoint.Checkpoint:
    save(content(configuration(*overrides), tokenizer)[0], path)
    return checkpoint.load(path)


def test_a_store_knows_the_bytes_of_the_text(corpus, tmp_path, word_piece):
    store = prepare_store(corpus, partial(stored, state=word_piece.state()), root=tmp_path / "data")
    whole = [[word_piece.end_of_text, *word_piece.encode(text)] for text in DOCUMENTS[9::10]]
    assert store.validation.tolist() == [token for document in whole for token in document]
    token_bytes = int(word_piece.byte_lengths()[store.validation].sum())
    assert token_bytes != len(VALIDATION.encode())
    assert token_bytes * store.text_per_token_byte == pytest.approx(len(VALIDATION.encode()))
    assert open_store(store.folder).text_per_token_byte == store.text_per_token_byte
    description = json.loads((store.folder / "store.json").read_text())
    assert description["validation_bytes"] == len(VALIDATION.encode())
    assert description["train_bytes"] == len("".join(DOCUMENTS).encode()) - len(VALIDATION.encode())


def test_a_store_of_a_tokenizer_that_loses_nothing_has_the_ratio_one(tmp_path):
    limited = Hub(name=str(rows(tmp_path / "rows")), validation_split=None, max_tokens=901)
    store = prepare_store(limited, byte, root=tmp_path / "data")
    assert len(store.validation) == 100
    assert store.text_per_token_byte == 1


def test_a_limited_split_has_its_share_of_the_bytes(tmp_path, word_piece):
    limited = Hub(name=str(rows(tmp_path / "rows")), validation_split=None, max_tokens=901)
    tokens, text_bytes = encode.encode_validation(limited, word_piece)
    assert len(tokens) == 100
    store = prepare_store(
        limited, partial(stored, state=word_piece.state()), root=tmp_path / "data"
    )
    description = json.loads((store.folder / "store.json").read_text())
    assert description["validation_bytes"] == text_bytes
    assert 0.5 < text_bytes / len(VALIDATION.encode()) / (100 / 440) < 2


def test_an_evaluation_divides_by_the_bytes_of_the_text(corpus, tmp_path, word_piece):
    loaded = saved(word_piece, tmp_path / "a.safetensors")
    text = validation_text(corpus, word_piece)
    found = evaluate(loaded.model, text, batch_size=4)
    # The first token, which is not predicted, has no bytes.
    assert found["bytes"] == len(VALIDATION.encode())
    nats = found["loss_nats_per_token"] * found["tokens"]
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / found["bytes"])


def test_unknown_characters_count(corpus, tmp_path):
    tokenizer = CharTokenizer("".join(sorted(set("Look BACK, lan!\n"))))
    text = validation_text(corpus, tokenizer)
    found = evaluate(saved(tokenizer, tmp_path / "a.safetensors").model, text, batch_size=4)
    assert found["bytes"] == len(VALIDATION.encode())


def test_a_tokenizer_without_end_of_text_has_documents(corpus, tmp_path):
    tokenizer = CharTokenizer("".join(sorted(set("".join(DOCUMENTS)))), special_tokens=False)
    store = prepare_store(corpus, partial(stored, state=tokenizer.state()), root=tmp_path / "data")
    assert tokenizer.decode(store.validation) == VALIDATION
    with pytest.raises(UserError, match=r"character '~'"):
        tokenizer.encode("a~")


@pytest.mark.slow
def test_a_run_goes_on_with_an_imported_tokenizer(
    script: Script, corpus: TextFiles, tmp_path: Path, word_piece: Tokenizer
) -> None:
    """Fine-tuning, then sampling, evaluation and labels, all in the words of WordPiece."""
    saved(word_piece, Path("start.safetensors"))
    words = [
        "init_from=start.safetensors",
        "data=text",
        f"data.path={corpus.path}",
        "model.block_size=8",
    ]
    words += ["model.embed_dim=8", "model.layers=2", "trainer.max_steps=3", "trainer.batch_size=2"]
    words += ["callbacks=plain", "callbacks.samples.max_new_tokens=4", "trainer.accelerator=cpu"]
    said = script("train", *words, "~logger")
    assert said.code == 0, said.err
    [run] = Path("outputs").glob("gpt_*")
    summary = json.loads((run / "summary.json").read_text())
    loaded = checkpoint.load(checkpoint.find(str(run)))
    assert loaded.tokenizer.state() == word_piece.state()
    found = json.loads(script("evaluate", f"checkpoint={run}", "device=cpu").out)
    assert found["bytes"] == len(VALIDATION.encode())
    assert summary["val_bits_per_byte"] == pytest.approx(found["bits_per_byte"], rel=1e-3)
    assert loaded.attention("look 天天").labels == ["look", "天", "天"]
    sampled = script("sample", f"checkpoint={run}", "prompt=今天", "max_new_tokens=5", "device=cpu")
    assert sampled.code == 0, sampled.err
    assert "今天" in sampled.out


def test_a_document_mask_uses_the_end_of_text_of_the_tokenizer(tmp_path, word_piece):
    loaded = saved(word_piece, tmp_path / "a.safetensors", "model.document_mask=true")
    assert loaded.model.end_of_text == word_piece.end_of_text == 3
    plain = CharTokenizer("abc", special_tokens=False)
    with pytest.raises(UserError, match=r"document_mask=true.*no end-of-text token"):
        saved(plain, tmp_path / "b.safetensors", "model.document_mask=true")
