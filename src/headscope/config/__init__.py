"""Typed schemas of the configuration. conf/ contains the values, this folder the types.

Every key has a type, so that a misspelt key or a value of the wrong type fails when the
configuration is composed. conf/ refers to a schema as /schema/<group>/<name>.

`parse` and `from_hydra` check plain data and make instances of the schemas. A schema with a
`_target_` describes a call: `build_part` calls the target with the values of an instance.
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
"""Every choice of every group of conf/: group -> name of the file -> schema."""


@cache  # once per process: it takes a quarter of the time of composing
def register_schemas() -> None:
    """Registers the schemas in Hydra, and ${every:...} for conf/compare."""
    store = ConfigStore.instance()
    for group, schemas in SCHEMAS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)
    OmegaConf.register_new_resolver("every", every_choice, replace=True)


def every_choice(group: str, *exceptions: str) -> list[str]:
    """`model/norm=layer` and so on, for each choice of a group such as model/norm. An exception
    such as `layer model.bias=true` replaces the choice with which it begins."""
    longer = {words.split()[0]: words for words in exceptions}
    return [f"{group}={longer.get(name, name)}" for name in SCHEMAS[group.split("/")[-1]]]
