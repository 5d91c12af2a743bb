"""The registry of all parts and keys. The files in conf/ contain the values, and this folder
defines their types.

Hydra composes the files in conf/ and the command line to plain data. `parse` and `from_hydra` check
this data, or that of a checkpoint, and return an instance of a schema. So a misspelt key or a value
of the wrong type raises an error. If a schema has a `_target_` (a class or function), `build_part`
calls this target with the values of the instance.
"""

from pathlib import Path

from headscope.config import model, scripts, text, training
from headscope.config.parse import from_hydra, parse
from headscope.config.parts import build_part, target_of

__all__ = ["CONF", "SCHEMAS", "build_part", "every_choice", "from_hydra", "parse", "target_of"]

INSTALLED = Path(__file__).parents[1] / "conf"
CONF = INSTALLED if INSTALLED.is_dir() else INSTALLED.parents[2] / "conf"
"""conf/ in the wheel, or in the checkout of an editable installation."""

SCHEMAS: dict[str, dict[str, type]] = {
    **model.SCHEMAS,
    **text.SCHEMAS,
    **training.SCHEMAS,
    **scripts.SCHEMAS,
}
"""The schemas of all files in conf/, as a dictionary {group: {file name: schema}}."""


def every_choice(group: str, *exceptions: str) -> list[str]:
    """The overrides that select each choice of a group: `model/norm=layer` and so on, for the group
    model/norm. Each item of `exceptions` replaces the choice that is its first word. For example,
    `layer model.bias=true` replaces `layer`."""
    longer = {words.split()[0]: words for words in exceptions}
    return [f"{group}={longer.get(name, name)}" for name in SCHEMAS[group.split("/")[-1]]]
