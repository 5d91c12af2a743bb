"""The validation split of a corpus, encoded: what a model is evaluated on."""

from dataclasses import dataclass

import numpy as np

from headscope.data.corpus import Corpus
from headscope.data.encode import EncodedCorpus, answers_of
from headscope.data.tokenizer import Tokenizer
from headscope.nn.loss import Answers


@dataclass(frozen=True)
class ValidationText:
    """The N tokens of a validation split.

    - `byte_lengths` (V,): the number of bytes of each token in the vocabulary.
    - `probe`: the `probe_text` of the corpus.
    - `text_per_token_byte`: bytes of text per byte of its tokens, 1 if the tokenizer is lossless.
    - `answers`: if it is not None, the losses count only these targets.
    """

    tokens: np.ndarray
    byte_lengths: np.ndarray
    probe: str | None = None
    text_per_token_byte: float = 1.0
    answers: Answers | None = None


def validation_text(corpus: Corpus, tokenizer: Tokenizer) -> ValidationText:
    """The validation split of `corpus`, encoded by `tokenizer`."""
    encoded = EncodedCorpus(corpus, tokenizer, ("validation",))
    arrays = [array for split, array in encoded.token_arrays() if split == "validation"]
    ratio = encoded.counts["validation"].text_per_token_byte
    answers = answers_of(corpus, tokenizer)
    tokens, lengths = np.concatenate(arrays), tokenizer.byte_lengths()
    return ValidationText(tokens, lengths, corpus.probe_text, ratio, answers)
