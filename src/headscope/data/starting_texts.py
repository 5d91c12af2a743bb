"""The texts that explore starts with: those of the corpus, or one from the validation split."""

import re
from contextlib import suppress

import numpy as np

from headscope.data.corpus import Corpus
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError

MAX_TEXTS, MAX_BYTES = 3, 1000
SHORTEST, LONGEST = 12, 24
"""The number of tokens of a text from the validation split, if possible."""
SENTENCE = re.compile(r"\w{4}[.!?]\s+(?=[^\Wa-z])|[\u3002\uff01\uff1f]\s*(?=\w)|\n\s*\n(?=\S)")
"""What comes before a sentence: the end of another one, not a short "Mr.", or an empty line."""
WORD_END = re.compile(r"\w(?=\s)|[\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fef]")


def starting_texts(corpus: Corpus, tokenizer: Tokenizer, validation: np.ndarray) -> list[str]:
    """The starting texts of the corpus that the tokenizer can encode. If the corpus names none, the
    beginning of a sentence in the validation tokens (N,), up to the end of a word."""
    texts = []
    for text in corpus.starting_texts or [sentence_in(validation[:2048], tokenizer)]:
        with suppress(UserError):  # a character is not in the vocabulary
            if tokenizer.encode_prompt(text) and len(text.encode()) <= MAX_BYTES:
                texts.append(text)
    return texts[:MAX_TEXTS]


def sentence_in(tokens: np.ndarray, tokenizer: Tokenizer) -> str:
    """The beginning of the first sentence after a boundary, or of the second word."""
    documents = np.split(tokens, np.flatnonzero(tokens == tokenizer.end_of_text))
    text = "\n\n".join(map(tokenizer.decode, documents)).strip()
    # The text may begin in the middle of a word: it may be the last tenth of a document.
    starts = [text[match.end() :] for match in SENTENCE.finditer(text)]
    found = []
    for start in starts or re.split(r"\s", text, maxsplit=1)[-1:]:
        paragraph = start.partition("\n\n")[0][: MAX_BYTES // 4]
        cuts = [paragraph[: match.end()] for match in WORD_END.finditer(paragraph)]
        fitting = [cut for cut in cuts if len(tokenizer.encode(cut)) <= LONGEST]
        found.append(fitting[-1] if fitting else paragraph[:LONGEST])
    # The first one that is long enough, or the longest one.
    return max(found, key=lambda cut: min(SHORTEST, len(tokenizer.encode(cut))))
