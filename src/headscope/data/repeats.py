"""A corpus of random strings, each repeated, on which a small model learns induction quickly."""

import hashlib
import json
import string
from collections.abc import Iterator
from random import Random

from headscope.data.corpus import HOLD_OUT, Corpus, Document, Wanted, pieces
from headscope.errors import UserError
from headscope.seeds import mixed_seed

CHARACTERS = string.ascii_letters + string.digits + string.punctuation
"""All characters that a text can have: the 94 visible characters of ASCII."""

MAX_CHARACTERS = 10**7
"""Maximum length of a text. A checkpoint from a stranger also contains this setting, and a length
without a limit would fill the memory."""


class Repeats(Corpus):
    """Strings of random characters, one after the other, each repeated a few times in a row.

    The first copy of a string cannot be predicted. A model can predict the other copies only if it
    finds the earlier copy in its context, as induction heads do (Olsson 2022).

    - `alphabet` is the number of different characters.
    - The length of a string is drawn from `min_length` to `max_length`, and its number of copies
      from `min_copies` to `max_copies`. The ends are included, and all values are equally likely.
    - `characters` is the length of the training text. The validation text has a tenth of this
      length and other strings. The end of a text may cut the last string.

    The same `seed` gives the same texts. Raises UserError if a value is out of range.
    """

    name = "repeats"

    def __init__(
        self,
        *,
        alphabet: int,
        min_length: int,
        max_length: int,
        min_copies: int,
        max_copies: int,
        characters: int,
        seed: int,
    ) -> None:
        if not 2 <= alphabet <= len(CHARACTERS):
            raise UserError(f"data.alphabet={alphabet} must be between 2 and {len(CHARACTERS)}")
        if not 1 <= characters <= MAX_CHARACTERS:
            raise UserError(
                f"data.characters={characters} must be between 1 and {MAX_CHARACTERS:,}"
            )
        ranges = {"length": (min_length, max_length), "copies": (min_copies, max_copies)}
        for key, (low, high) in ranges.items():
            if not 1 <= low <= high:
                raise UserError(
                    f"data.min_{key}={low} must be at least 1, and at most data.max_{key}={high}"
                )
        if max_length * max_copies > characters // HOLD_OUT:
            raise UserError(
                f"data.max_length={max_length} x data.max_copies={max_copies} does not fit in the "
                f"validation text of {characters // HOLD_OUT} characters, a tenth of "
                f"data.characters={characters}: make the text longer"
            )
        self.alphabet = CHARACTERS[:alphabet]
        self.lengths, self.copies = ranges["length"], ranges["copies"]
        self.characters, self.seed = characters, seed

    def fingerprint(self) -> str:
        parts = [self.alphabet, self.lengths, self.copies, self.characters, self.seed]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        train = self._text(self.characters, mixed_seed(self.seed, 0))
        yield Document("train", pieces([train]))
        validation = self._text(self.characters // HOLD_OUT, mixed_seed(self.seed, 1))
        yield Document("validation", pieces([validation]))

    def _text(self, characters: int, seed: int) -> str:
        """A text of `characters` characters, drawn with `seed`."""
        random = Random(seed)
        strings, written = [], 0
        while written < characters:
            one_copy = "".join(random.choices(self.alphabet, k=random.randint(*self.lengths)))
            strings.append(one_copy * random.randint(*self.copies))
            written += len(strings[-1])
        return "".join(strings)[:characters]
