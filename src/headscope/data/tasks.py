"""Corpora of short tasks, on which a small model learns an algorithm that one can then look for.

Every example is a document, so with `model.document_mask=true` no example sees another one. All
numbers and names are single characters, for `tokenizer=char`.
"""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator
from random import Random

from headscope.data.corpus import Corpus, Document, Split, Wanted
from headscope.data.repeats import CHARACTERS
from headscope.errors import UserError
from headscope.seeds import mixed_seed

SYMBOLS = CHARACTERS.replace("=", "")
"""The characters that stand for numbers and names: 0 is `a`, 26 is `A`, and 52 is `0`."""


class Tasks(Corpus):
    """A corpus of examples, each with a split. The same arguments give the same examples."""

    def __init__(self, **settings: float) -> None:
        self.settings = settings

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        for split, example in self.examples():
            yield Document(split, [example])

    @abstractmethod
    def examples(self) -> Iterator[tuple[Split, str]]:
        """All examples, each with its split."""


class Modular(Tasks):
    """Addition modulo a prime p (Power 2022): `ab=c` with c = (a + b) mod p, for all p^2 pairs.

    A random `share` of the pairs is for training, and the others for validation; ab and ba are in
    the same split. A model that has only memorized its pairs fails in validation. Raises UserError
    if a value is out of range.
    """

    name = "modular"
    answer_after = "="  # the numbers of a sum cannot be predicted

    def __init__(self, *, prime: int, share: float, seed: int) -> None:
        if not 3 <= prime <= len(SYMBOLS) or any(prime % n == 0 for n in range(2, prime)):
            raise UserError(f"data.prime={prime} must be a prime from 3 to {len(SYMBOLS)}")
        if not 0 < share < 1:
            raise UserError(f"data.share={share} must be above 0 and below 1")
        super().__init__(prime=prime, share=share, seed=seed)
        self.prime, self.share, self.seed = prime, share, seed

    def examples(self) -> Iterator[tuple[Split, str]]:
        random = Random(mixed_seed(self.seed, 0))
        pairs = [(a, b) for a in range(self.prime) for b in range(a + 1)]
        random.shuffle(pairs)
        train = max(1, min(len(pairs) - 1, round(self.share * len(pairs))))
        found: list[tuple[Split, str]] = []
        for number, (a, b) in enumerate(pairs):
            split: Split = "train" if number < train else "validation"
            answer = f"={SYMBOLS[(a + b) % self.prime]}"
            orders = {SYMBOLS[a] + SYMBOLS[b]: 0, SYMBOLS[b] + SYMBOLS[a]: 0}
            found += [(split, order + answer) for order in orders]
        random.shuffle(found)
        yield from found


class Names(Tasks):
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
        super().__init__(names=names, seed=seed)
        self.names, self.seed = SYMBOLS[:names], seed

    def examples(self) -> Iterator[tuple[Split, str]]:
        random = Random(mixed_seed(self.seed, 0))
        pairs = [(a, b) for a in self.names for b in self.names if a < b]
        random.shuffle(pairs)
        found: list[tuple[Split, str]] = []
        for number, (a, b) in enumerate(pairs):
            split: Split = "validation" if number % 10 == 0 else "train"
            texts = (f"{a}{b}{b}={a}", f"{a}{b}{a}={b}", f"{b}{a}{a}={b}", f"{b}{a}{b}={a}")
            found += [(split, text) for text in texts]
        random.shuffle(found)
        yield from found
