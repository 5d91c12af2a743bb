"""The types of all keys, and the parts that a configuration names with `_target_`.

Hydra composes the files in conf/ and the command line to plain data. `parse` checks this data, or
that of a checkpoint, against a dataclass of `training.py` or `scripts.py`, and against the
constructors of the parts. `build_part` calls the constructor of a part.
"""

from headscope.config.parse import from_hydra, parse, parse_part
from headscope.config.parts import (
    CONF,
    Part,
    build_part,
    defaults_in_conf,
    full_keys,
    load_parts,
    parts_words,
)

__all__ = [
    "CONF",
    "Part",
    "build_part",
    "defaults_in_conf",
    "from_hydra",
    "full_keys",
    "load_parts",
    "parse",
    "parse_part",
    "parts_words",
]
