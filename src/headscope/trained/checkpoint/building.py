"""Builds models from their configuration.

A size may be a typo. So sizes that need too much memory raise an error before it is allocated.
"""

from headscope.config.parts import Part, build_part
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.machine import machine_memory
from headscope.nn import GPT

TABLE_SHARE = 16  # masks and position tables may use 1 / TABLE_SHARE of the machine's memory


def build_model(config: Part, *, vocab_size: int, end_of_text: int | None = None) -> GPT:
    """Build a model with untrained weights from the group `model` of a configuration. A document
    mask needs the id of the end-of-text token, by default the last one. Raises UserError if the
    sizes in `config` are too large or contradict one another."""
    try:
        check_limits(config)
        return build_part(config, "model", vocab_size=vocab_size, end_of_text=end_of_text)
    except RuntimeError as error:  # out of memory, or a size that overflows an integer
        problem = f"a model of these sizes cannot be built: {str(error).splitlines()[0]}"
        raise UserError(f"{problem}; choose smaller sizes") from error


def build_model_for(config: Part, tokenizer: Tokenizer) -> GPT:
    """Build a model with untrained weights for the tokens of a tokenizer. Raises UserError as
    `build_model` does, and if a document mask needs an end-of-text token but there is none."""
    if config.document_mask and tokenizer.end_of_text is None:
        problem = "model.document_mask=true: this tokenizer has no end-of-text token"
        raise UserError(f"{problem}: set model.document_mask=false")
    return build_model(config, vocab_size=tokenizer.vocab_size, end_of_text=tokenizer.end_of_text)


def check_limits(settings: Part) -> None:
    """Raises UserError for sizes that would make endlessly many Python objects, or if the masks and
    position tables need more than 1 / TABLE_SHARE of this machine's memory."""
    for key, limit in (("layers", 10_000), ("heads", 4_096), ("ngrams", 64)):
        if getattr(settings, key) > limit:
            raise UserError(f"model.{key}={getattr(settings, key)} must be at most {limit:,}")
    size, width = settings.block_size, max(settings.embed_dim, settings.head_dim or 0)
    # The bytes of a boolean mask in each layer, and of a position table, computed in float64.
    needed = size * (settings.layers * size + 32 * width)
    allowed = machine_memory() / TABLE_SHARE
    if needed > allowed:
        problem = f"model.block_size={size} needs {in_gib(needed)} for masks and position tables"
        most = f"the limit is {in_gib(allowed)}, 1/{TABLE_SHARE} of this machine's memory"
        raise UserError(f"{problem}, but {most}: lower model.block_size")


def in_gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
