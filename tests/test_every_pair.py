"""Every choice of attention and position goes the whole way: train, save, load, sample, resume."""

import copy
import signal
from pathlib import Path

import pytest
import torch
from checkpoint_files import SIZES, assert_same_weights, opened, weights
from choices import EACH, PAIRS, slow_unless
from composing import training_config
from rich.console import Console

from headscope import trained
from headscope.cli.words import quote
from headscope.stop import Interrupted
from headscope.trained.generation.generate import generate_tokens
from headscope.training.build import Run, build
from headscope.training.module import LanguageModel
from headscope.training.resume import newest_checkpoint
from headscope.training.run import fit

TINY = [
    *SIZES,
    *("data=text", "tokenizer=byte", "model.dropout=0.1", "trainer.max_steps=4"),
    *("trainer.batch_size=4", "schedule.warmup_steps=1", "callbacks.samples.max_new_tokens=0"),
    *("callbacks.attention.images=0", "callbacks.attention.steps=0"),
]


@pytest.fixture(scope="module")
def text(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The beginnings of ten speeches, and the store of their tokens, which all runs share."""
    folder = tmp_path_factory.mktemp("text")
    for file in sorted(speeches.iterdir())[:10]:
        (folder / file.name).write_text(file.read_text()[:300])
    return folder


@pytest.fixture
def start(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """start("run", "multi_head", "learned") builds a run in the folder `run`."""
    monkeypatch.chdir(tmp_path)

    def build_run(folder: str, attention: str, position: str, *words: str, resume=False) -> Run:
        tiny = (*TINY, f"data.path={quote(str(text))}", *words)
        config = training_config(
            *tiny, f"model/attention={attention}", f"model/position={position}"
        )
        config.store_dir = str(text / "store")
        config.logger = {}
        found = newest_checkpoint(Path(folder)) if resume else None
        return build(config, folder=Path(folder), console=Console(quiet=True), resume=found)

    return build_run


def last(run: Run) -> Path:
    return run.folder / "checkpoints" / "last.safetensors"


def pressing_ctrl_c(*, step: int):
    """`training_step`, and Ctrl-C pressed during this one."""
    own = LanguageModel.training_step

    def training_step(module: LanguageModel, batch: tuple, batch_idx: int) -> torch.Tensor:
        if module.global_step == step:
            signal.raise_signal(signal.SIGINT)
        return own(module, batch, batch_idx)

    return training_step


MODERN = ("multi_head", "rotary", "model=modern", "optimizer=muon", "schedule=linear")


@pytest.mark.parametrize("choices", [*slow_unless(EACH, PAIRS), MODERN], ids="-".join)
def test_it_is_trained_loaded_and_sampled_from_and_resumed_bit_for_bit(start, monkeypatch, choices):
    run = start("whole", *choices)
    fresh = copy.deepcopy(run.module.model).eval()
    assert fit(run)["steps"] == 4
    loaded = trained.load(last(run))
    tokens = torch.arange(8)[None]
    logits = loaded.model(tokens)
    assert torch.equal(logits, run.module.model.eval()(tokens))
    assert not torch.equal(logits, fresh(tokens))
    prompt = loaded.tokenizer.encode_prompt("My fellow citizens")  # longer than the context
    new = list(generate_tokens(loaded.model, prompt, max_new_tokens=5, seeds=[1]))
    assert len(new) == 5
    assert all(0 <= token < loaded.tokenizer.vocab_size for (token,) in new)

    stopped = start("stopped", *choices)
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "training_step", pressing_ctrl_c(step=1))
        with pytest.raises(Interrupted):
            fit(stopped)
    half = opened(last(stopped))
    assert half["step"] == 2  # the step under way was finished
    fit(start("stopped", *choices, resume=True))
    assert_same_weights("whole", "stopped")
    for name, weight in weights("whole").items():
        assert not torch.equal(half["tensors"][name], weight), name
