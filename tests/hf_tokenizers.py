"""Tokenizers as other tools train them, in folders of Hugging Face's form."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headscope.data.tokenizer import Tokenizer as Ours
from headscope.data.tokenizer_state import tokenizer_from_state
from headscope.data.tokenizers_tokenizer import TokenizersTokenizer

CHINESE = "今天天气很好，我们去公园。学习注意力机制，多头注意力。"
TEXT = [CHINESE, "Don't look back, Élan: 2024 été naïve."] * 9
TEXT += ["To be,  or not\nto be\t12345.", "🦜 ok"] * 9
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def word_piece() -> Tokenizer:
    """As BERT's, with Chinese characters."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    made.train_from_iterator(TEXT, trainer)
    return made


def unigram() -> Tokenizer:
    """As SentencePiece's."""
    made = Tokenizer(models.Unigram())
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), spaces])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    special = {"special_tokens": ["<unk>", "<s>", "</s>"], "unk_token": "<unk>"}
    trainer = trainers.UnigramTrainer(vocab_size=200, show_progress=False, **special)
    made.train_from_iterator(TEXT, trainer)
    return made


def byte_level_bpe(texts: Iterable[str], pattern: str, **options: Any) -> Tokenizer:
    """As GPT-2's, with a pattern that splits words."""
    made = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    symbols = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, symbols])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False, **options)
    made.train_from_iterator(texts, trainer)
    return made


def llama3() -> Tokenizer:
    """With the pattern of Llama 3, and its special tokens first."""
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    return byte_level_bpe(TEXT, LLAMA3, vocab_size=320, special_tokens=special)


def llama2() -> Tokenizer:
    """A BPE whose unknown characters become bytes."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence(marks)
    decode = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*decode, decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    made.train_from_iterator([text.replace(" ", "▁") for text in TEXT], trainer)
    content = json.loads(made.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # the bytes are plain tokens
    return Tokenizer.from_str(json.dumps(content))


END = {"word_piece": "[SEP]", "unigram": "</s>", "llama3": "<|end_of_text|>", "llama2": "</s>"}
"""The end-of-text token of each tokenizer."""


def make(name: str) -> Tokenizer:
    return globals()[name]()


def imported(name: str) -> TokenizersTokenizer:
    """The tokenizer as headscope imports it."""
    made = make(name)
    return TokenizersTokenizer(made.to_str(), end_of_text=made.token_to_id(END[name]))


CHAT = """{% for message in messages %}{{ '<s>' if loop.first else '' }}[{{ message.role }}]
{{ message['content'] | trim }}</s>{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"""


def for_chats() -> Ours:
    """The tokenizer of Llama 3 as headscope imports it, with a chat template."""
    begin = "<|begin_of_text|>"
    state = imported("llama3").state() | {"chat_template": CHAT.replace("<s>", begin)}
    return tokenizer_from_state(state | {"begin_token": make("llama3").token_to_id(begin)})


def write_folder(folder: Path, name: str, **config: object) -> Path:
    """The folder of a model with the tokenizer `name`, as transformers writes it, without the
    model. `config` is for tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(make(name).to_str(), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END[name]} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
