"""What reading with transformers needs: its errors, and which settings were read."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headscope.config.parse import short
from headscope.errors import UserError

SAFE: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
"""Arguments with which transformers runs no code of a folder, and opens no other folder."""

WITHOUT_EFFECT = re.compile(
    r"dropout|_pdrop|drop_rate|token_id|^_|^summary_|^output_|dtype|architectures|version|task_"
    r"|initializer|use_cache|vocab_size|model_type|auto_map|^attn_impl|use_return_dict|name"
    r"|chunk_size|id2label|label2id|problem_type"
)
"""Entries of config.json that do not change the logits of a trained model, or that the shapes of
the weights say too."""


PLAIN = {"rope_type": "default", "partial_rotary_factor": 1.0, "rotary_pct": 1.0}
"""Entries of rotary positions that are not scaled and rotate all dimensions."""


def is_plain(rope_parameters: Any) -> bool:
    given = rope_parameters if isinstance(rope_parameters, dict) else {"rope_type": None}
    return all(given.get(key, value) == value for key, value in PLAIN.items())


class Settings:
    """The entries of a config.json, as transformers understands them. `raw` is the file itself."""

    def __init__(self, config: Any, raw: dict[str, Any]) -> None:
        self.config, self.raw = config, raw
        self.keys_read = {"rope_theta", "tie_word_embeddings"}

    def get(self, key: str) -> Any:
        """The value of an entry, or None if the class has no such entry."""
        self.keys_read.add(key)
        return getattr(self.config, key, None)

    def rotary_base(self, old: Any) -> Any:
        """The base of rotary positions. Transformers 4 has it in another entry, with the value
        `old`."""
        parameters = getattr(self.config, "rope_parameters", None) or {}
        return parameters.get("rope_theta", 10000.0 if old is None else old)

    def unread(self) -> str:
        """The entries of config.json that were not read and may have an effect: those that differ
        from the defaults of the class, or if there are none, all."""
        known = self.keys_read | set(getattr(self.config, "attribute_map", {}))
        entries = {
            key: value
            for key, value in self.raw.items()
            if value and key not in known and not WITHOUT_EFFECT.search(key)
            if value != PLAIN.get(key) and not (key == "rope_parameters" and is_plain(value))
        }
        defaults = type(self.config)().to_dict()
        changed = {key: each for key, each in entries.items() if each != defaults.get(key)}
        shown = [*(changed or entries).items()][:6]
        return ", ".join(f"{key}={short(value)}" for key, value in shown)


def require_transformers(key: str) -> None:
    """Raises UserError if transformers, which `key` needs, is not installed."""
    if find_spec("transformers") is None:
        raise UserError(f"{key} needs the package transformers: pip install -e '.[huggingface]'")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Inside the `with` block, transformers prints no warnings and no progress bars."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def transformers_for(folder: Path) -> Iterator[None]:
    """For calls of transformers with a folder. Its errors can be of any type if the folder is
    damaged: they become one line. Nothing of ours may be called inside."""
    try:
        with quiet_transformers():
            yield
    except MemoryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # such as KeyboardInterrupt; the Rust code of tokenizers raises the other
        raise UserError(
            f"{folder}: transformers cannot open this model ({type(error).__name__}): "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
