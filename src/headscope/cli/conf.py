"""The files of conf/: headscope's own, those in conf/ of the current folder, and --config-dir."""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from headscope.config.parts import CONF


class OwnChoices(SearchPathPlugin):
    """Lets Hydra find the choices in conf/ of the current folder and in --config-dir, after all
    others. So a file in conf/ acts only if its choice is named, also a file in conf/hydra/. A run
    gets --config-dir from Hydra too, but --help does not."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("schema", "structured://")  # Hydra's own choices, before conf/hydra/
        for folder in conf_folders()[1:]:
            search_path.append("own", f"file://{folder}")


def conf_folders() -> list[Path]:
    """Where Hydra looks for choices."""
    folders = [CONF, *([Path("conf").absolute()] if Path("conf").is_dir() else [])]
    for word, following in pairwise([*sys.argv, ""]):
        flag, equals, value = word.partition("=")
        if flag == "-cd" or (flag.startswith("--config-d") and "--config-dir".startswith(flag)):
            folders.append(Path(value if equals else following).absolute())
    return list({folder.resolve(): folder for folder in folders}.values())


def choices_of(group: str) -> list[str]:
    """The choices in a configuration group, such as model/attention."""
    files = [file for folder in conf_folders() for file in (folder / group).glob("*.yaml")]
    return sorted({file.stem for file in files})


def conf_files(name: str) -> list[Path]:
    """The files of a choice, such as model/attention/multi_head, the one that Hydra uses first."""
    files = [folder / f"{name}.yaml" for folder in conf_folders()]
    return [file for file in files if file.is_file()]


def is_group(name: str) -> bool:
    """Whether `name` is a configuration group, such as `model/attention`."""
    return any((folder / name).is_dir() for folder in conf_folders())


def chosen_by_experiment(name: str) -> Iterator[str]:
    """The groups for which the experiment `name` makes a choice, such as "data"."""
    for file in conf_files(f"experiment/{name}")[:1]:
        keys: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        for entry in keys.get("defaults", ()) if isinstance(keys, dict) else ():
            if isinstance(entry, dict):
                yield from (str(key).split()[-1].lstrip("/") for key in entry)
            elif entry != "_self_":
                yield from chosen_by_experiment(str(entry))
