"""The training steps of a model of another tool: revisions on the hub, or folders in a folder."""

import math
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from headscope.conversion.folder import HUB_FILES, weight_files
from headscope.errors import UserError, library_errors
from headscope.terminal import note
from headscope.trained.checkpoint import is_model_folder

STEP = re.compile(r"step[-_]?(\d{1,15})(?![\da-z.])", re.ASCII | re.IGNORECASE)
"""The number of a step in names such as step512, step-240000 and stage1-step1000-tokens5B."""
NUMBER = re.compile(r"(?<![\da-z.])(\d{1,15})(?![\da-z.])", re.ASCII | re.IGNORECASE)
"""The number in other names, such as checkpoint-500."""
SEVERAL = re.compile(r"all|log:([1-9]\d{0,8})", re.ASCII)


class FolderSteps:
    """The model folders in a folder, such as those that the Trainer of transformers has saved."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    @classmethod
    def are_in(cls, source: str) -> bool:
        """Whether `source` is a folder of model folders, and no model itself."""
        folder = Path(source)
        return folder.is_dir() and not is_model_folder(folder) and bool(cls(folder).names())

    def names(self) -> list[str]:
        return sorted(each.name for each in self.path.iterdir() if is_model_folder(each))

    def size(self, name: str) -> int:
        """The bytes of the weights."""
        return sum(file.stat().st_size for file in weight_files(self.path / name))

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        yield self.path / name


class HubSteps:
    """The branches and tags of the model `source` on the hub. One revision at a time is downloaded
    to the folder `downloads`, and removed after use. What an interrupted download has left there is
    continued. Methods raise UserError if the hub cannot be reached or has no such revision."""

    def __init__(self, source: str, downloads: Path) -> None:
        self.source, self.downloads = source, downloads
        self.errors = f"source={source}: the hub failed; repeat the command to continue"

    def names(self) -> list[str]:
        from huggingface_hub import HfApi

        problem = f"source={self.source} is no folder here, and the hub does not list its revisions"
        with library_errors(problem):
            refs = HfApi().list_repo_refs(self.source)
        return sorted({ref.name for ref in (*refs.branches, *refs.tags)})

    def size(self, name: str) -> int:
        """The bytes of the weights."""
        files = self._files(name)[1].items()
        return sum(size for file, size in files if file.endswith((".safetensors", ".bin")))

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        from huggingface_hub import snapshot_download

        commit, files = self._files(name)
        folder = self.downloads / f"step_{step_of(name)}"  # a name may contain any characters
        options: Any = {"local_dir": folder, "allow_patterns": [*files]}
        with library_errors(self.errors):
            snapshot_download(self.source, revision=commit, **options)
        yield folder
        shutil.rmtree(self.downloads)

    def _files(self, name: str) -> tuple[str, dict[str, int]]:
        """The commit of a revision, and the sizes of its files that are needed."""
        from huggingface_hub import HfApi

        with library_errors(self.errors):
            found = HfApi().model_info(self.source, revision=name, files_metadata=True)
        sizes = {each.rfilename: each.size or 0 for each in found.siblings or ()}
        top = [file for file in sizes if "/" not in file]
        used = [file for file in top if any(fnmatch(file, each) for each in HUB_FILES)]
        if any(file.endswith(".safetensors") for file in used):
            used = [file for file in used if not file.startswith("pytorch_model")]
        return str(found.sha), {file: sizes[file] for file in used}


def step_of(name: str) -> int | None:
    """The training step in the name of a revision. None if there is no number, or several."""
    found = {int(number) for number in STEP.findall(name) or NUMBER.findall(name)}
    return found.pop() if len(found) == 1 else None


def chosen_steps(
    names: Sequence[str], revisions: Sequence[str] | None, source: str
) -> dict[str, int]:
    """The revisions to import with their steps, the last step first: those that `revisions` lists,
    or by default all `names`, or with ["log:12"] twelve of all, evenly spaced on a logarithmic
    scale. Raises UserError if there is none, or if one does not exist, has no step in its name, or
    has the same step as another one."""
    several = SEVERAL.fullmatch("all" if revisions is None else " ".join(revisions))
    every = [name for name in names if step_of(name) is not None]
    every.sort(key=lambda name: step_of(name) or 0)
    steps: dict[int, str] = {}
    for name in every if several else dict.fromkeys(revisions or ()):
        if name not in every:
            problem = "has no number of a step" if name in names else f"is not in source={source}"
            advice = f"choose some of {', '.join(every)[:300] or 'another model: it has no steps'}"
            raise UserError(f"revisions={name} {problem}: {advice}, or log:12")
        step = int(step_of(name) or 0)
        if step in steps:
            both = f"{steps[step]} and {name} are both step {step:,}"
            raise UserError(
                f"revisions: {both}: list only one of them, as in revisions=[step0,step512]"
            )
        steps[step] = name
    if several and any(map(STEP.search, every)):  # not a branch such as release-2024
        steps = {step: name for step, name in steps.items() if STEP.search(name)}
    if not steps:
        problem = f"revisions= chooses none of source={source}, or none has a step in its name"
        raise UserError(f"{problem}: list some, as in revisions=[step0,step512]")
    if several and (others := sorted({*names} - {*steps.values(), "main"})):
        note(f"No steps, by their names: {', '.join(others)[:300]}")
    chosen = spread([*steps], int(several[1])) if several and several[1] else [*steps]
    return {steps[step]: step for step in sorted(chosen, reverse=True)}


def spread(steps: Sequence[int], number: int) -> list[int]:
    """Up to `number` of the steps: those nearest to numbers that are evenly spaced on a logarithmic
    scale, from the last step to the first."""
    left = sorted(steps)
    logs = {step: math.log(1 + step) for step in left}
    first, last, chosen = logs[left[0]], logs[left[-1]], []
    for place in range(min(number, len(left))):
        wanted = last - (last - first) * place / max(1, number - 1)
        chosen.append(min(left, key=lambda step: abs(logs[step] - wanted)))
        left.remove(chosen[-1])
    return chosen
