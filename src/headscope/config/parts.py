"""Parts of headscope that conf/ offers as choices, such as a position encoding or a tokenizer.

A part is a class or function, registered by name with the types of its keys. A configuration refers
to it by the target under which it is registered. The targets and types are written as names here,
because --help and errors in the command line must not wait for the import of torch.
"""

from dataclasses import asdict, dataclass, fields, make_dataclass
from functools import partial
from importlib import import_module
from typing import Any

from headscope.config.parse import HYDRA_KEYS, parse


@dataclass(kw_only=True)
class Part:
    """The configuration of a part. Each group of parts has a subclass, and each part of the group a
    subclass of that. With `_partial_`, the part is called later, with the remaining arguments."""

    _target_: str = ""
    _partial_: bool = True

    def __reduce__(self) -> Any:  # pickle cannot find the class of a registered part
        return parse, (type(self).__base__, asdict(self))


def part(group: type[Part], target: str, **keys: Any) -> Any:
    """Registers the class or function `target` in a group. `keys` maps each of its keys to a type,
    or to a type and a default. A default is needed only for a key that is newer than some
    checkpoints."""
    types = [(name, *(key if isinstance(key, tuple) else (key,))) for name, key in keys.items()]
    return make_dataclass(
        target.rpartition(".")[2],
        [("_target_", str, target), *types],
        bases=(group,),
        kw_only=True,
    )


def target_of(config: Any) -> Any:
    """The class or function `_target_`, which the schema of `config` names."""
    module, _, name = type(config)._target_.rpartition(".")
    return getattr(import_module(module), name)


def build_part(config: Any, **more: Any) -> Any:
    """Calls the class or function `_target_`, which the schema of `config` names. The arguments are
    the values of `config` and `more`.

    Nested parts are built first. If the schema has `_partial_`, the result is a `functools.partial`
    that takes the remaining arguments.

    The target comes from the schema class, never from the values, so a configuration from a
    malicious checkpoint cannot choose which function is called.
    """
    settings = {
        field.name: build_part(value) if hasattr(value, "_target_") else value
        for field in fields(config)
        if field.name not in HYDRA_KEYS
        for value in [getattr(config, field.name)]
    }
    partial_call, target = getattr(type(config), "_partial_", False), target_of(config)
    return partial(target, **settings, **more) if partial_call else target(**settings, **more)
