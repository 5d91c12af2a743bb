"""The laws of bits per byte with a tokenizer that loses text: the bytes of the text count."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
from checkpoint_files import configuration, content, save
from corpora import jsonl, write
from hf_tokenizers import CHINESE, imported
from running import Script

from headscope import checkpoint
from headscope.data import encode
from headscope.data.hub import Hub
from headscope.data.own_files import TextFiles
from headscope.data.store import open_store, prepare_store
from headscope.data.tokenizer import CharTokenizer, Tokenizer, stored
from headscope.errors import UserError
from headscope.evaluation import evaluate, validation_text

DOCUMENTS = [f"{CHINESE}  Look   BACK, Élan!\n\n" * (1 + number % 7) for number in range(40)]
VALIDATION = "".join(DOCUMENTS[9::10])
ALPHABET = "".join(sorted(set("".join(DOCUMENTS))))
TOKENIZERS: dict[str, Tokenizer] = {
    "word_piece": imported("word_piece"),
    "char that knows few": CharTokenizer("".join(sorted(set("Look BACK, lan!\n")))),
    "char without special tokens": CharTokenizer(ALPHABET, special_tokens=False),
}
WORD_PIECE = TOKENIZERS["word_piece"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "rows", {"train.jsonl": jsonl(DOCUMENTS)})


def saved(tokenizer: Tokenizer, path: Path, *overrides: str) -> checkpoint.Checkpoint:
    save(content(configuration(*overrides), tokenizer)[0], path)
    return checkpoint.load(path)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_store_and_an_evaluation_know_the_bytes_of_the_text(folder, tmp_path, kind):
    tokenizer, corpus = TOKENIZERS[kind], TextFiles(path=str(folder))
    store = prepare_store(corpus, partial(stored, state=tokenizer.state()), root=tmp_path / "data")
    start = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    documents = [[*start, *tokenizer.encode(text)] for text in DOCUMENTS[9::10]]
    assert store.validation.tolist() == [token for document in documents for token in document]
    token_bytes = int(tokenizer.byte_lengths()[store.validation].sum())
    size = len(VALIDATION.encode())
    assert (token_bytes == size) == (kind == "char without special tokens")
    assert token_bytes * store.text_per_token_byte == pytest.approx(size)
    assert open_store(store.folder).text_per_token_byte == store.text_per_token_byte
    description = json.loads((store.folder / "store.json").read_text())
    assert description["validation_bytes"] == size
    assert description["train_bytes"] == len("".join(DOCUMENTS).encode()) - size

    text = validation_text(corpus, tokenizer)
    found = evaluate(saved(tokenizer, tmp_path / "a.safetensors").model, text, batch_size=4)
    if start:  # the first token, which is not predicted, has no bytes
        assert found["bytes"] == size
    nats = found["loss_nats_per_token"] * found["tokens"]
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / found["bytes"])


def test_a_limited_split_has_its_share_of_the_bytes(folder, tmp_path):
    limited = Hub(name=str(folder), max_tokens=901)
    tokens, text_bytes = encode.encode_validation(limited, WORD_PIECE)
    assert len(tokens) == 100
    make_tokenizer = partial(stored, state=WORD_PIECE.state())
    store = prepare_store(limited, make_tokenizer, root=tmp_path / "data")
    description = json.loads((store.folder / "store.json").read_text())
    assert description["validation_bytes"] == text_bytes
    assert 0.5 < text_bytes / len(VALIDATION.encode()) / (100 / 440) < 2


def test_without_a_token_for_it_an_unknown_character_is_an_error():
    with pytest.raises(UserError, match=r"character '~'"):
        TOKENIZERS["char without special tokens"].encode("a~")


@pytest.mark.slow
def test_a_run_goes_on_with_an_imported_tokenizer(script: Script, folder: Path) -> None:
    """Fine-tuning, evaluation and labels, all in the words of WordPiece."""
    saved(WORD_PIECE, Path("start.safetensors"))
    words = ["init_from=start.safetensors", "data=text", f"data.path={folder}", "~logger"]
    words += ["model.block_size=8", "model.embed_dim=8", "model.layers=2", "trainer.max_steps=3"]
    words += ["trainer.batch_size=2", "callbacks=plain", "callbacks.samples.max_new_tokens=4"]
    said = script("train", *words, "trainer.accelerator=cpu")
    assert said.code == 0, said.err
    [run] = Path("outputs").glob("gpt_*")
    summary = json.loads((run / "summary.json").read_text())
    loaded = checkpoint.load(checkpoint.find(str(run)))
    assert loaded.tokenizer.state() == WORD_PIECE.state()
    found = json.loads(script("evaluate", f"checkpoint={run}", "device=cpu").out)
    assert found["bytes"] == len(VALIDATION.encode())
    assert summary["val_bits_per_byte"] == pytest.approx(found["bits_per_byte"], rel=1e-3)
    assert loaded.attention("look 天天").labels == ["look", "天", "天"]


def test_a_document_mask_uses_the_end_of_text_of_the_tokenizer(tmp_path):
    loaded = saved(WORD_PIECE, tmp_path / "a.safetensors", "model.document_mask=true")
    assert loaded.model.end_of_text == WORD_PIECE.end_of_text == 3
    plain = CharTokenizer("abc", special_tokens=False)
    with pytest.raises(UserError, match=r"document_mask=true.*no end-of-text token"):
        saved(plain, tmp_path / "b.safetensors", "model.document_mask=true")
