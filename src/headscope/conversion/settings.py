"""What reading with transformers needs: its errors, and which settings were not read."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headscope.errors import UserError, library_errors, short

SAFE: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
"""Arguments with which transformers runs no code of a folder, and opens no other folder."""

ALSO_READ = [
    *("rope_theta", "rotary_pct", "tie_word_embeddings", "scale_attn_weights", "attention_bias"),
    *("sliding_window", "use_sliding_window", "layer_types", "max_window_layers", "mlp_bias"),
    *("window_size", "attention_types", "attention_layers", "use_parallel_residual"),
    "final_logit_softcapping",
]
"""Entries of config.json that are read, but are not in the table of keys of their class."""

WITHOUT_EFFECT = re.compile(
    r"dropout|_pdrop|drop_rate|token_id|^_|^summary_|^output_|dtype|architectures|version|task_"
    r"|initializer|use_cache|vocab_size|model_type|auto_map|^attn_impl|use_return_dict|name"
    r"|chunk_size|id2label|label2id|problem_type"
)
"""Entries of config.json that do not change logits, or that the shapes of the weights say too."""


def unread(config: Any, raw: dict[str, Any], read: Iterable[str]) -> str:
    """The entries of a config.json that may have an effect and are not among those `read`, first
    those without defaults. `raw` is the file, and `config` is how transformers understands it."""
    known = {*read, *ALSO_READ, *getattr(config, "attribute_map", {})}
    unread = [
        key
        for key, value in raw.items()
        if value and key not in known and not WITHOUT_EFFECT.search(key)
    ]
    defaults = type(config)().to_dict()
    unread.sort(key=lambda key: raw[key] == defaults.get(key))
    return ", ".join(f"{key}={short(raw[key])}" for key in unread[:6])


@contextmanager
def quiet_transformers(key: str) -> Iterator[None]:
    """Inside the `with` block, transformers prints no warnings and no progress bars. Raises
    UserError if transformers, which `key` needs, is not installed."""
    if find_spec("transformers") is None:
        raise UserError(f"{key} needs transformers: pip install 'headscope[huggingface]'")
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
    """For calls of transformers with a folder. Its errors, of any type, become one line."""
    problem = f"{folder}: transformers cannot open this model"
    with quiet_transformers(f"source={folder}"), library_errors(problem):
        yield
