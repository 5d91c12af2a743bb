"""Corpora of generated text, on which a small model learns an algorithm that one can then look for.

Every example of a task is a document, so with `model.document_mask=true` no example sees another
one. All numbers and names are single characters, for `tokenizer=char`.
"""

import hashlib
import json
import string
from collections.abc import Iterator
from random import Random

from headscope.data.corpus import HOLD_OUT, Corpus, Document, Split, Wanted, pieces
from headscope.errors import UserError
from headscope.seeds import mixed_seed

CHARACTERS = string.ascii_letters + string.digits + string.punctuation
"""All characters that a text can have: the 94 visible characters of ASCII."""

SYMBOLS = CHARACTERS.replace("=", "")
"""The characters that stand for numbers and names: 0 is `a`, 26 is `A`, and 52 is `0`."""

MAX_CHARACTERS = 10**7
"""Maximum length of a text. A checkpoint from a stranger could fill the memory without a limit."""


class Generated(Corpus):
    """A generated corpus. The same attributes give the same text."""

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(vars(self), sort_keys=True).encode()).hexdigest()


class Repeats(Generated):
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
            raise UserError(f"data.characters={characters} must be from 1 to {MAX_CHARACTERS:,}")
        self.lengths, self.copies = (min_length, max_length), (min_copies, max_copies)
        for key, (low, high) in (("length", self.lengths), ("copies", self.copies)):
            if not 1 <= low <= high:
                raise UserError(f"data.min_{key}={low} must be from 1 to data.max_{key}={high}")
        if max_length * max_copies > characters // HOLD_OUT:
            longest = f"data.max_length={max_length} x data.max_copies={max_copies}"
            text = f"the validation text, a tenth of data.characters={characters}"
            raise UserError(f"{longest} does not fit in {text}: make the text longer")
        self.alphabet, self.characters, self.seed = CHARACTERS[:alphabet], characters, seed
        one_copy = "QxBnEaPfL" if "V" in self.alphabet else self.alphabet[:9]
        self.starting_texts = (2 * one_copy,)

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


class Modular(Generated):
    """Addition modulo a prime p (Power 2022): `ab=c` with c = (a + b) mod p, for all p^2 pairs.

    A random `share` of the pairs is for training, the others for validation; ab and ba are in the
    same split. A model that only memorizes fails in validation. Raises UserError for wrong values.
    """

    name = "modular"
    answer_after = "="  # the numbers of a sum cannot be predicted

    def __init__(self, *, prime: int, share: float, seed: int) -> None:
        if not 3 <= prime <= len(SYMBOLS) or any(prime % n == 0 for n in range(2, prime)):
            raise UserError(f"data.prime={prime} must be a prime from 3 to {len(SYMBOLS)}")
        if not 0 < share < 1:
            raise UserError(f"data.share={share} must be above 0 and below 1")
        self.prime, self.share, self.seed = prime, share, seed
        self.starting_texts = (f"{SYMBOLS[prime - 1]}{SYMBOLS[2]}=",)

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        random = Random(mixed_seed(self.seed, 0))
        pairs = [(a, b) for a in range(self.prime) for b in range(a + 1)]
        random.shuffle(pairs)
        train = max(1, min(len(pairs) - 1, round(self.share * len(pairs))))
        examples: list[tuple[Split, str]] = []
        for number, (a, b) in enumerate(pairs):
            answer = f"={SYMBOLS[(a + b) % self.prime]}"
            orders = {SYMBOLS[a] + SYMBOLS[b]: 0, SYMBOLS[b] + SYMBOLS[a]: 0}
            split: Split = "train" if number < train else "validation"
            examples += [(split, order + answer) for order in orders]
        yield from shuffled(examples, random)


class Names(Generated):
    """Identification of the indirect object, with symbols (Wang 2022; Adhikari 2025).

    As in "When Mary and John met, John gave a drink to Mary", an example has two different names,
    one of them again, "=", and the other one: `MJJ=M` or `MJM=J`. `names` is the number of names.
    All pairs of names occur in both orders; a random tenth of the pairs, in both orders and with
    both names repeated, is for validation. Raises UserError if `names` is out of range.
    """

    name = "names"

    def __init__(self, *, names: int, seed: int) -> None:
        if not 5 <= names <= len(SYMBOLS):
            raise UserError(f"data.names={names} must be between 5 and {len(SYMBOLS)}")
        self.names, self.seed = SYMBOLS[:names], seed
        self.starting_texts = ("ETT=",) if "T" in self.names else ("abb=",)

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        random = Random(mixed_seed(self.seed, 0))
        pairs = [(a, b) for a in self.names for b in self.names if a < b]
        random.shuffle(pairs)
        examples: list[tuple[Split, str]] = []
        for number, (a, b) in enumerate(pairs):
            split: Split = "validation" if number % 10 == 0 else "train"
            texts = (f"{a}{b}{b}={a}", f"{a}{b}{a}={b}", f"{b}{a}{a}={b}", f"{b}{a}{b}={a}")
            examples += [(split, text) for text in texts]
        yield from shuffled(examples, random)


def shuffled(examples: list[tuple[Split, str]], random: Random) -> Iterator[Document]:
    """The examples in random order, each as a document."""
    random.shuffle(examples)
    for split, example in examples:
        yield Document(split, [example])
