"""Build a part of headscope from its configuration: the one way from data to a call."""

from dataclasses import fields
from functools import partial
from importlib import import_module
from typing import Any

from headscope.config.parse import HYDRA_KEYS


def build_part(config: Any, **more: Any) -> Any:
    """Call what the schema of `config` names with its values and `more`.

    What is called is written in the schema, a class of `headscope.config`; it is never read from
    the values. Parts within parts are built first. A schema with `_partial_` gives a
    `functools.partial`, to be called with the rest.
    """
    settings = {
        field.name: build_part(value) if hasattr(value, "_target_") else value
        for field in fields(config)
        if field.name not in HYDRA_KEYS
        for value in [getattr(config, field.name)]
    }
    schema = type(config)
    partly = getattr(schema, "_partial_", False)
    module, _, name = schema._target_.rpartition(".")
    part = getattr(import_module(module), name)
    return partial(part, **settings, **more) if partly else part(**settings, **more)
