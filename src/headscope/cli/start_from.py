"""The words of a run that starts from a checkpoint: resume= and init_from=.

Hydra composes such a run from the user's words alone. Nothing of the checkpoint goes through Hydra,
because a checkpoint may come from an untrusted source.
"""

import re
from pathlib import Path

from headscope.cli.conf import is_group
from headscope.cli.words import WRITES_NOTHING, key_of, value_of
from headscope.errors import UserError
from headscope.training import processes, run_folder

FIXED = (
    *("model", "tokenizer", "data", "seed", "init_from", "experiment", "name", "optimizer"),
    *("trainer.batch_size", "trainer.accumulate", "trainer.val_every_steps"),
)
"""Keys and groups that cannot change when a run is resumed. The choice of an optimizer cannot, but
its keys can, such as `optimizer.lr`."""


def arguments(words: list[str]) -> list[str]:
    """The words for Hydra. Raises UserError if a word changes what must stay the same in a resumed
    run, or if `hydra.run.dir=` names a folder that another run uses or has used."""
    resumed, folder = value_of(words, "resume"), value_of(words, "hydra.run.dir")
    if resumed is None:
        if folder and run_folder.is_run(Path(folder)):
            raise already_a_run(folder)
        if folder and Path(folder).is_dir() and processes.rank() == 0:
            with run_folder.locked(Path(folder)):
                pass  # before Hydra writes to it
        return words
    if folder is not None:
        own = f"resume={resumed} continues one run in its own folder"
        raise UserError(f"{own}: leave out hydra.run.dir=")
    for word in words:
        key = key_of(word).replace("/", ".")
        inside = [name for name in FIXED if key.startswith(f"{name}.") and name != "optimizer"]
        if fixed := [name for name in FIXED if key == name] + inside:
            raise UserError(
                f"{word}: {fixed[0]} cannot change in a resumed run; to change it, start a new run "
                f"from these weights with init_from={resumed}"
            )
    # ++ sets a key also if the configuration of the words alone does not have it.
    plain = [re.match(r"(?!hydra\.)[\w.]+=", each) and not is_group(key_of(each)) for each in words]
    forced = [f"++{word}" if key else word for word, key in zip(words, plain, strict=True)]
    return [*forced, *WRITES_NOTHING]


def already_a_run(folder: str | Path) -> UserError:
    return UserError(
        f"hydra.run.dir={folder} already holds a run: continue it with resume={folder}, or name "
        "another folder"
    )
