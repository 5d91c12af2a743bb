"""Values that run code, read a file or write one where a configuration is interpolated or
instantiated."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def traps(folder: Path) -> list[Any]:
    """Each would leave a file in `folder`, or read bait.txt there, if anything evaluated it."""
    marker, bait = folder / "ran", folder / "bait.txt"
    bait.write_text("bait")
    write = f"{{_target_: pathlib.Path.write_text, _args_: ['{marker}', x]}}"
    create = f"${{oc.create:{write}}}"
    return [
        create,
        f"\\{create}",
        f"\\\\{create}",
        f"${{oc.select:none,{create}}}",
        "${oc.env:HOME}",
        "${oc.decode:${oc.env:HOME}}",
        "${hydra:runtime.cwd}",
        "${name}",
        {"_target_": "os.mkdir", "path": str(marker)},
        {"_target_": "os.system", "command": f"touch {marker}"},
        {"_target_": "os.mkdir", "_args_": [str(marker)], "_partial_": False},
        {"_target_": "builtins.open", "_args_": [str(bait)]},
        {"_target_": "headscope.nn.attention.torch.hub.load", "repo_or_dir": str(folder)},
        {"_target_": ["os.mkdir"], "path": str(marker)},
        {"_target_": "hydra.utils.instantiate", "config": {"_target_": "os.mkdir"}},
        {"_args_": [create], "_recursive_": True, "_convert_": "object"},
        [create, {"_target_": "os.mkdir", "path": str(marker)}],
    ]


def places(config: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path of every value in nested plain data, groups included."""
    for key, value in config.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def put(config: dict, path: tuple, value: Any) -> None:
    """Set the value at `path`."""
    *groups, last = path
    for key in groups:
        config = config[key]
    config[last] = value
