"""Chinese from end to end: what TensorBoard, the report, the page and the samples say of it."""

import re
from functools import partial

import pytest
from checkpoint_files import configuration, content, save
from viewer_data import Elements

import headscope
from headscope.data.own_files import TextFiles
from headscope.data.store import prepare_store
from headscope.data.tokenizer import bpe, byte, char
from headscope.data.windows import first_passage

MAKERS = {"char": char, "byte": byte, "bpe": partial(bpe, vocab_size=400)}
CLAUSE = "多言數窮，不如守中。"
TEXT = f"""
道可道，非常道；名可名，非常名。無名天地之始，有名萬物之母。故常無欲以觀其妙，常有欲以觀其徼。
此兩者同出而異名，同謂之玄。玄之又玄，眾妙之門。天下皆知美之為美，斯惡已；皆知善之為善，斯不善已。
天地不仁，以萬物為芻狗；聖人不仁，以百姓為芻狗。天地之間，其猶橐籥乎？虛而不屈，動而愈出。{CLAUSE}
"""
"""From the Tao Te Ching, in the public domain."""


@pytest.mark.parametrize("kind", MAKERS)
def test_labels_while_training_and_of_a_checkpoint_and_its_page(kind, tmp_path):
    """A character may be cut off at the end."""
    (tmp_path / "text.txt").write_text(TEXT.strip() * 20, encoding="utf-8")
    corpus = TextFiles(path=str(tmp_path / "text.txt"))
    tokenizer = (store := prepare_store(corpus, MAKERS[kind], root=tmp_path / "stores")).tokenizer
    save(content(configuration("model.block_size=64"), tokenizer)[0], tmp_path / "a.safetensors")
    reading = headscope.load(tmp_path / "a.safetensors").read(CLAUSE)
    part = r"[^\x00-\x7f]( [1-3](–[1-3])?/3)?"
    for labels in (tokenizer.labels(first_passage(store.validation, 64)), reading.labels):
        assert all(re.fullmatch(rf"{part}( ?{part})*", label) for label in labels[:-2]), labels
        assert not any("\N{REPLACEMENT CHARACTER}" in label or "U+" in label for label in labels)
    first = {"char": ["多", "言"], "byte": ["多 1/3", "多 2/3"]}
    assert reading.labels[:2] == first.get(kind, reading.labels[:2])
    reading.save_html(tmp_path / "page.html")
    [run] = Elements((tmp_path / "page.html").read_text("utf-8")).data["runs"]
    assert run["history"]["labels"] == reading.labels
