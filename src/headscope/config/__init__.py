"""Typed schemas of conf/: values stand in conf/, types stand here.

Every key is typed, so that a misspelt key or a word where a number belongs fails when the
configuration is composed. A schema with a `_target_` is what that target is called with; the
others are read key by key. conf/ refers to them as /schema/<group>/<name>. `parse` and `from_hydra`
make instances of them from plain data, `build_part` builds what an instance describes.
"""

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


def register_schemas() -> None:
    """Make the schemas known to Hydra, and ${every:...} to conf/compare."""
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
