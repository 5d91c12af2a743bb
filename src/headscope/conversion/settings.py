"""Reads the configuration of a model of transformers, and remembers what was read."""

import re
from typing import Any

from headscope.config.parse import short

WITHOUT_EFFECT = re.compile(
    r"dropout|_pdrop|drop_rate|token_id|^_|^summary_|^output_|dtype|architectures|version|task_"
    r"|initializer|use_cache|vocab_size|model_type|auto_map|^attn_impl|use_return_dict|name"
    r"|chunk_size|id2label|label2id|problem_type|tie_word_embeddings"
)
"""Entries of config.json that do not change the logits of a trained model, or that the shapes of
the weights say too."""


class Settings:
    """The entries of a config.json, as transformers understands them. `raw` is the file itself."""

    def __init__(self, config: Any, raw: dict[str, Any]) -> None:
        self.config, self.raw = config, raw
        self.keys_read = {"rope_theta", "rope_parameters"}

    def get(self, key: str) -> Any:
        """The value of an entry, or None if the class has no such entry."""
        self.keys_read.add(key)
        return getattr(self.config, key, None)

    def rotary_base(self, old_key: str) -> Any:
        """The base of rotary positions, which transformers 4 calls `old_key`."""
        old = self.get(old_key)
        parameters = getattr(self.config, "rope_parameters", None) or {}
        return parameters.get("rope_theta", 10000.0 if old is None else old)

    def unread(self) -> str:
        """The entries of config.json that were not read and may have an effect: those that differ
        from the defaults of the class, or if there are none, all."""
        ours = self.keys_read | set(getattr(self.config, "attribute_map", {}))
        names = [key for key in self.raw if key not in ours and not WITHOUT_EFFECT.search(key)]
        if any(self.raw.get(key) for key in ("rope_parameters", "rope_scaling")):
            names += [key for key in ("rope_parameters",) if key in self.raw]
        defaults = type(self.config)().to_dict()
        changed = [key for key in names if self.raw[key] != defaults.get(key)]
        return ", ".join(f"{key}={short(self.raw[key])}" for key in (changed or names)[:6])
