"""Builds parts of headscope, such as a model or a tokenizer, from their configuration."""

from dataclasses import fields
from functools import partial
from importlib import import_module
from typing import Any

from headscope.config.parse import HYDRA_KEYS


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
    schema = type(config)
    partial_call = getattr(schema, "_partial_", False)
    module, _, name = schema._target_.rpartition(".")
    part = getattr(import_module(module), name)
    return partial(part, **settings, **more) if partial_call else part(**settings, **more)
