"""The texts that explore starts with: those of the corpus, or one from the validation split."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from headscope.data.corpus import Corpus
from headscope.data.store import TokenStore
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError

MAX_EXAMPLES, MAX_BYTES = 3, 1000
"""Maximum number of examples, and of the bytes of each."""
SEARCHED = 4096
"""The number of validation tokens in which a text is searched."""
SHORTEST, LONGEST = 12, 24
"""The number of tokens of a text from the validation split, if there is such a text."""

SENTENCE_END = re.compile(r"\w{4}[.!?…][\"”’)\]]*\s+|[。！？][”’」』）]*\s*|\n\s*\n")
"""The end of a sentence, but not of an abbreviation such as "Mr.", or an empty line."""
WORD_END = re.compile(r"\w(?=\s)|[\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fef]")


def examples_of(corpus: Corpus, store: TokenStore) -> list[str]:
    """The examples of the corpus that its tokenizer can encode, or a text from the validation split
    if the corpus names none. The list may be empty."""
    examples = []
    for text in corpus.examples or validation_text(store):
        with suppress(UserError):  # a character is not in the vocabulary
            if store.tokenizer.encode_prompt(text) and is_example(text):
                examples.append(text)
    return examples[:MAX_EXAMPLES]


def is_example(text: Any) -> bool:
    """Whether this is a text of at most MAX_BYTES. Raises ValueError if it is not valid UTF-8."""
    return type(text) is str and len(text.encode()) <= MAX_BYTES


def validation_text(store: TokenStore) -> list[str]:
    """The beginning of a sentence or of a document in the validation split, up to the end of a
    word. Empty if there is no text."""
    tokens, tokenizer = store.validation[:SEARCHED], store.tokenizer
    begins = np.flatnonzero(tokens == tokenizer.end_of_text)
    documents = [tokenizer.decode(part) for part in np.split(tokens, begins)]
    longest, most = "", 0
    # The first document may be the last tenth of a text, and begin in the middle of a word.
    for number, document in enumerate(documents):
        for sentence in sentences(document, is_whole=number > 1):
            text = beginning(sentence, tokenizer)
            if (count := len(tokenizer.encode(text))) > most:
                longest, most = text, count
            if most >= SHORTEST:
                return [longest]
    text = "".join(documents)
    found = longest or beginning(text.partition(" ")[2] or text, tokenizer)
    return [found] if found else []


def sentences(document: str, *, is_whole: bool) -> Iterator[str]:
    """The rest of the document from each sentence on."""
    if is_whole:
        yield document
    for match in SENTENCE_END.finditer(document):
        first = document[match.end() : match.end() + 1]
        if first.strip() and (match[0].count("\n") > 1 or not first.islower()):
            yield document[match.end() :]


def beginning(text: str, tokenizer: Tokenizer) -> str:
    """The longest beginning of a text that ends with a word and has at most LONGEST tokens. If
    there is none, it may end anywhere."""
    text = text[: MAX_BYTES // 4]

    def fitting(ends: Iterable[int]) -> list[str]:
        return [text[:end] for end in ends if len(tokenizer.encode(text[:end])) <= LONGEST]

    words = fitting(match.end() for match in WORD_END.finditer(text))
    return (words or fitting(range(1, len(text) + 1)) or [""])[-1]
