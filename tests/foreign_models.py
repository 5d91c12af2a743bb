"""Models of Hugging Face transformers in which every parameter is random, and their folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headscope.conversion.tokenizer_files import tokenizer_files
from headscope.data.tokenizer import byte
from headscope.trained import TrainedModel

transformers = pytest.importorskip("transformers", reason="needs transformers, of the dev extra")

ROWS = 264
"""The rows of the embedding: 256 bytes, the end-of-text token, and seven without a token."""

LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 12,
}
MPT = {"d_model": 24, "n_layers": 2, "n_heads": 3, "max_seq_len": 12}
SMALL: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12},
    "GPTNeoXForCausalLM": {**LLAMA, "num_attention_heads": 2},
    "MptForCausalLM": MPT,
    "LlamaForCausalLM": LLAMA,
    "ArceeForCausalLM": LLAMA,
    "MistralForCausalLM": {**LLAMA, "num_key_value_heads": 2, "head_dim": 6, "sliding_window": 5},
    "Qwen2ForCausalLM": {**LLAMA, "num_key_value_heads": 2},
    "Qwen3ForCausalLM": {**LLAMA, "head_dim": 8, "num_key_value_heads": 4},
    "NanoChatForCausalLM": LLAMA,
    "GPTNeoForCausalLM": {
        "hidden_size": 16,
        "num_layers": 3,
        "num_heads": 4,
        "max_position_embeddings": 12,
        "attention_types": [[["global", "local", "local"], 1]],
        "window_size": 4,
    },
}
"""A small configuration of each class."""


def foreign_model(name: str, **settings: Any) -> Any:
    """A small model of the class `name`, whose biases and gains are random too."""
    made = getattr(transformers, name, None)
    if made is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    torch.default_generator.manual_seed(0)
    config = made.config_class(**{"vocab_size": ROWS, **SMALL[name], **settings})
    model = made._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def write_folder(folder: Path, model: Any, **options: Any) -> Path:
    """Saves a model as transformers does, with a tokenizer of bytes."""
    model.save_pretrained(folder, **options)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes, whose tokens end with the end-of-text token."""
    for name, content in tokenizer_files(byte([])).items():
        (folder / name).write_text(content, "utf-8")


def edit(file: Path, *, keep_null: bool = False, **changes: Any) -> None:
    """Changes entries of a JSON file. None removes an entry, unless `keep_null`."""
    content = json.loads(file.read_text("utf-8")) | changes
    kept = {key: value for key, value in content.items() if keep_null or value is not None}
    file.write_text(json.dumps(kept), "utf-8")


@torch.no_grad()
def assert_same(ours: TrainedModel, theirs: Any, length: int = 12) -> None:
    """Both give the same logits, to 1e-4, or to 1e-5 of the largest if that is more, and the same
    attention weights, to 1e-5."""
    tokens = torch.randint(ROWS, (length,), generator=torch.Generator().manual_seed(1))
    result = theirs(tokens[None], output_attentions=True)
    assert result.logits.std() > 0.1  # the comparison says something
    atol = 1e-4 * max(1.0, result.logits.abs().max().item() / 10)
    torch.testing.assert_close(ours.model(tokens[None]), result.logits, atol=atol, rtol=0)
    weights = torch.cat(result.attentions)
    torch.testing.assert_close(ours.read(tokens).attention, weights, atol=1e-5, rtol=0)
