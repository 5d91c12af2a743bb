"""Typed schemas of the configuration. The files in conf/ contain the values, and this folder
defines their types.

Every key has a type, so a misspelt key or a value of the wrong type raises an error when the
configuration is composed. The files in conf/ refer to a schema as /schema/<group>/<name>.

`parse` and `from_hydra` check plain data and return an instance of a schema. If a schema has a
`_target_` (a class or function), `build_part` calls this target with the values of the instance.
"""

from functools import cache

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from headscope.config import model, scripts, text, training
from headscope.config.parse import from_hydra, parse
from headscope.config.parts import build_part

__all__ = ["SCHEMAS", "build_part", "from_hydra", "parse", "register_schemas"]

SCHEMAS: dict[str, dict[str, type]] = {
    **model.SCHEMAS,
    **text.SCHEMAS,
    **training.SCHEMAS,
    **scripts.SCHEMAS,
}
"""The schemas of all files in conf/, as a dictionary {group: {file name: schema}}."""


@cache  # once per process, as it takes a quarter of the time to compose a configuration
def register_schemas() -> None:
    """Registers the schemas in Hydra, and the resolver `${every:...}` that conf/compare uses."""
    store = ConfigStore.instance()
    for group, schemas in SCHEMAS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)
    OmegaConf.register_new_resolver("every", every_choice, replace=True)


def every_choice(group: str, *exceptions: str) -> list[str]:
    """The overrides that select each choice of a group: `model/norm=layer` and so on, for the group
    model/norm. Each item of `exceptions` replaces the choice that is its first word. For example,
    `layer model.bias=true` replaces `layer`."""
    longer = {words.split()[0]: words for words in exceptions}
    return [f"{group}={longer.get(name, name)}" for name in SCHEMAS[group.split("/")[-1]]]
