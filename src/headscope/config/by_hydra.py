"""What Hydra's `instantiate` builds: callbacks and loggers that are not headscope's, and arguments
of lightning.Trainer. Only the person composes these, never a checkpoint."""

from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from headscope.config.parts import GROUPS, Part, locate
from headscope.errors import UserError, first_line


def made_by_hydra(part: Part, group: str, name: str, **given: Any) -> Any:
    """A callback or logger that is not headscope's. Raises UserError if it cannot be made."""
    named = f"{group}.{name}._target_={part['_target_']}"
    try:
        made = built_by_hydra(part, **given)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, ModuleNotFoundError):
            advice = f"pip install {cause.name or name}"
            raise UserError(f"{named}: {first_line(cause)}; install it: {advice}") from error
        raise UserError(f"{named}: {first_line(cause)}") from error
    if not isinstance(made, locate(GROUPS[group].base)):
        raise UserError(f"{named} must make a {GROUPS[group].base}")
    return made


def built_by_hydra(plain: Mapping[str, Any], **given: Any) -> Any:
    """What Hydra makes of plain data that the person composed: each `_target_` in it is called."""
    return instantiate(dict(plain), _convert_="all", **given)
