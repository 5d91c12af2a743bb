"""Lightning as its users know it, with the examples of the page docs/lightning.md."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

import lightning
import pandas
import pytest
import torch
import yaml
from checkpoint_files import assert_same_weights, opened, save
from composing import training_config
from lightning.pytorch.callbacks import LearningRateMonitor
from many_processes import TINY
from refusals import refused
from running import ROOT, events, scalars, snapshot_headers, summary
from test_every_pair import pressing_ctrl_c

import headscope
from headscope.config.parts import OWN_FOLDERS
from headscope.training.module import LanguageModel
from headscope.training.trainer import build_trainer

PAGE = (ROOT / "docs" / "lightning.md").read_text("utf-8")
CALLBACK, IN_PYTHON, PLAIN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[YAML] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("headscope train ")]
FAST = [*TINY[:-1], "callbacks.attention.images=0", "data=repeats", "data.characters=2000"]
FAST += ["trainer.final_validation=part", "trainer.max_steps=4", "trainer.val_every_steps=2"]
RUN = "hydra.run.dir=outputs/run"
NORMS = "+callbacks.norms._target_=my_callbacks.GradientNorms"
STOP = "lightning.pytorch.callbacks.EarlyStopping"
RATES = "+callbacks.rates._target_=lightning.pytorch.callbacks.LearningRateMonitor"


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch) -> Iterator[None]:
    """The current folder has the files of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("my_callbacks.py").write_text(CALLBACK)
    Path("conf/callbacks").mkdir(parents=True)
    Path("conf/callbacks/norms.yaml").write_text(YAML)
    yield
    OWN_FOLDERS.clear()
    sys.modules.pop("my_callbacks", None)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """A finished run, which tests read or copy."""
    with chdir(tmp_path_factory.mktemp("plain")):
        return headscope.train([*FAST, RUN]).folder.absolute()


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_work(command, script):
    words = shlex.split(command)[2:]
    words += ["callbacks.norms.every=1"] * ("norms" in command)
    script("train", *words[:1], *FAST, *words[1:], RUN).succeeded()
    fast = words == ["debug=fast"]
    assert fast != Path("outputs/run/checkpoints/last.safetensors").exists()
    if any("norms" in word for word in words):
        assert events("outputs/run").Scalars("gradient/block_0")
    if "+callbacks.best.save_top_k=3" in words:
        files = [*Path("outputs/run/model_checkpoints").glob("*.safetensors")]
        assert [headscope.load(file).step for file in sorted(files)] == [2, 4]
    if "~callbacks.samples" in words:
        assert "samples/text_summary" not in events("outputs/run").Tags()["tensors"]


@pytest.mark.slow
@pytest.mark.parametrize("source", [IN_PYTHON, PLAIN], ids=["headscope.train", "plain Trainer"])
def test_the_python_of_the_page_works(source, monkeypatch):
    fast = [*FAST[:-3], "trainer.max_steps=4"]
    for old, new in {
        '"trainer.max_steps=100", ': f"*{fast}, ",
        "headscope.Sotu()": "headscope.TextFiles(path='my_callbacks.py')",
        "block_size=64": "block_size=8",
        "warmup_steps=10,": "warmup_steps=2,",
        "=100": "=6",
        "=50": "=3",
    }.items():
        source = source.replace(old, new)
    monkeypatch.syspath_prepend(".")
    names: dict[str, Any] = {}
    exec(source, names)
    if "result" in names:
        assert names["result"].summary["steps"] == 4
        assert "train/loss" in Path("logs/lightning_logs/version_0/metrics.csv").read_text()
        return
    assert [*Path("logs").rglob("events.*")]
    [file] = Path("logs").rglob("*.ckpt")
    assert torch.load(file, weights_only=True)["global_step"] == 6


def test_a_plain_trainer_resumes_as_lightning_does(tmp_path):
    """The weights are those of an uninterrupted run."""
    store = headscope.prepare_store(headscope.TextFiles(path="my_callbacks.py"), headscope.char)
    data = headscope.TokenDataModule(store, block_size=8, batch_size=2)
    sizes = {"embed_dim": 8, "layers": 1, "heads": 1, "block_size": 8}
    quiet = ("logger", "enable_progress_bar", "enable_model_summary")

    def arguments() -> dict[str, Any]:
        torch.manual_seed(1)
        model = headscope.GPT(vocab_size=store.tokenizer.vocab_size, **sizes)
        parts = {"model": model, "tokenizer": store.tokenizer}
        return parts | {"optimizer": lambda each: torch.optim.Adam(each.parameters())}

    def fit(steps: int, folder: str, resume: str | None = None) -> LanguageModel:
        module = headscope.LanguageModel(**arguments())
        saver = headscope.CheckpointSaver(keep_steps=(2,))
        held = headscope.Hold(heads=("L0H0",), by="mean", from_step=1)
        trainer = lightning.Trainer(
            max_steps=steps,
            limit_val_batches=2,
            val_check_interval=2,
            check_val_every_n_epoch=None,
            callbacks=[saver, held, headscope.EarlyStopping()],
            accelerator="cpu",
            default_root_dir=folder,
            **dict.fromkeys(quiet, False),
        )
        trainer.fit(module, datamodule=data, ckpt_path=resume)
        [found] = trainer.validate(module, datamodule=data, verbose=False)
        assert found.keys() == {"val/loss", "val/bits_per_byte"}
        return module

    whole = fit(5, "whole").model
    fit(2, "half")
    files = {file.name for file in Path("half/checkpoints").iterdir()}
    assert files == {"last.ckpt", "best.ckpt", "step_000002.ckpt"}
    resumed = fit(5, "more", "half/checkpoints/last.ckpt").model
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)
    loaded = LanguageModel.load_from_checkpoint("whole/checkpoints/last.ckpt", **arguments())
    tokens = torch.arange(8)
    torch.testing.assert_close(loaded.model(tokens), whole.eval()(tokens), rtol=0, atol=0)
    assert whole.attentions[0].out_proj.held.values.any()


def test_rates_and_steps_are_right_also_after_a_resume():
    words = [*FAST, "schedule.warmup_steps=4", RUN]
    for last in (2, 3, 6):  # with and without a validation just before the checkpoint
        headscope.train([*words, f"trainer.max_steps={last}", RATES, NORMS])
        words = ["resume=outputs/run"]
    [tag] = [each for each in events("outputs/run").Tags()["scalars"] if each.endswith("/matrices")]
    ours = scalars("outputs/run", "train/lr")
    config = opened("outputs/run/checkpoints/last.safetensors")["config"]
    keys = {key: each for key, each in config["schedule"].items() if key != "_target_"}
    schedule = headscope.WarmupLinear(max_steps=6, **keys)
    for step in range(3, 6):
        assert ours[step + 1] == pytest.approx(config["optimizer"]["lr"] * schedule(step))
    rates = scalars("outputs/run", tag.replace("matrices", "vectors"))
    assert {step - 1: value for step, value in ours.items()} == pytest.approx(rates)
    assert [*scalars("outputs/run", "gradient/block_0")] == [*range(6)]


@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize("validates", [True, False])
def test_a_callback_logs_each_step_once_also_if_ctrl_c_stops_the_run(monkeypatch, step, validates):
    given = [NORMS] if validates else [NORMS, "+trainer.limit_val_batches=0"]
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "training_step", pressing_ctrl_c(step=step))
        with pytest.raises(KeyboardInterrupt):
            headscope.train([*FAST, "trainer.max_steps=6", *given, RUN])
    assert opened("outputs/run/checkpoints/last.safetensors")["step"] == step + 1
    headscope.train(["resume=outputs/run", *given])
    logged = [event.step for event in events("outputs/run").Scalars("gradient/block_0")]
    assert logged == [*range(6)]


@pytest.mark.parametrize("patience", [0, 1])
def test_a_run_that_a_callback_of_lightning_stopped_early_stops_there_again(patience):
    words = [f"+callbacks.stop._target_={STOP}", "+callbacks.stop.monitor=val/loss"]
    words += [f"+callbacks.stop.patience={patience}"]
    bad = ["optimizer=adamw", "optimizer.lr=1", "trainer.max_steps=40"]
    stopped = headscope.train([*FAST, *bad, *words, RUN]).summary
    assert 0 < stopped["steps"] < 40
    Path("outputs/run/summary.json").unlink()  # as if the run had been killed before it wrote it
    again = headscope.train(["resume=outputs/run", *words]).summary
    assert (again["steps"], again["val_loss"]) == (stopped["steps"], stopped["val_loss"])


def test_the_state_of_a_callback_is_restored_after_a_stop(script, monkeypatch):
    Path("my_states.py").write_text(
        "import torch\nfrom lightning.pytorch import Callback\n"
        "class Sum(Callback):\n"
        "    state = {'sum': torch.zeros(2), 'more': [1, {'a': None}]}\n"
        "    def on_train_batch_end(self, trainer, module, outputs, batch, number):\n"
        "        self.state['sum'] += outputs['loss']\n"
        "    def on_train_end(self, trainer, module): print('sum', self.state['sum'].tolist())\n"
        "    def state_dict(self): return self.state\n"
        "    def load_state_dict(self, state): self.state = state\n"
        "class Wrong(Sum):\n    state = {'sum': torch.zeros(2), 'more': {1, 2}}\n"
    )
    words = [*FAST, "callbacks=plain", "+callbacks.sum._target_=my_states.Sum"]
    wrong = ["+callbacks.wrong._target_=my_states.Wrong", "hydra.run.dir=outputs/whole"]
    with pytest.warns(UserWarning, match="state of the callback Wrong is not saved"):
        whole = script("train", *words, *wrong)
    sys.modules.pop("my_states")
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "training_step", pressing_ctrl_c(step=2))
        said = script("train", *words, RUN)
    [command] = re.findall("To continue: (.*)", said.out)
    sys.modules.pop("my_states")
    resumed = script("train", *shlex.split(command)[2:])  # after python and the script
    [sums, *_] = re.findall("sum .*", whole.out)
    assert sums in resumed.out
    assert_same_weights("outputs/whole", "outputs/run")
    twice = ["+callbacks.more._target_=my_states.Sum", "hydra.run.dir=outputs/twice"]
    with refused("state_key"):
        headscope.train([*words, *twice])
    more = script("train", "resume=outputs/run", "trainer.max_steps=5")
    assert "left out    callbacks.sum" in more.out


def test_each_logger_gets_scalars_samples_and_hyperparameters():
    words = ["logger=[csv,tensorboard]", "callbacks.samples.max_new_tokens=5", *FAST, RUN]
    headscope.train(words)
    folder = Path("outputs/run/csv/version_0")
    table = pandas.read_csv(folder / "metrics.csv")
    for tag in ("train/loss", "val/loss", "watch/diversity"):
        found = table[["step", tag]].dropna()
        logged = scalars("outputs/run", tag)
        assert dict(zip(found["step"], found[tag], strict=True)) == pytest.approx(logged)
    assert table["samples"].count() == 2
    assert table["final/val_loss"].max() == pytest.approx(summary("outputs/run")["val_loss"])
    assert "model.heads: 2" in (folder / "hparams.yaml").read_text()
    assert snapshot_headers("outputs/run")
    headscope.train(["resume=outputs/run", "trainer.max_steps=6", "logger=csv"])
    assert pandas.read_csv("outputs/run/csv/version_1/metrics.csv")["step"].max() == 6


@pytest.mark.slow
def test_wandb_offline_and_mlflow_get_the_run(script, monkeypatch):
    import mlflow

    uri = f"sqlite:///{Path('mlflow.db').absolute()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    words = ["logger=[wandb,mlflow]", "logger.wandb.offline=true", *FAST, RUN]
    script("train", *words, "callbacks.samples.max_new_tokens=5").succeeded()
    [file] = Path("outputs/run/wandb").glob("offline-run-*/*.wandb")
    written = file.read_bytes()
    assert all(text in written for text in (b"val/loss", b"model.heads", b"final/val_loss"))
    assert [*file.parent.glob("files/media/table/samples_*")]
    client = mlflow.MlflowClient(uri)
    [experiment] = client.search_experiments(filter_string="name = 'headscope'")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.data.params["model.heads"] == "2"
    assert run.data.metrics["final/val_loss"] == pytest.approx(summary("outputs/run")["val_loss"])
    assert [each.step for each in client.get_metric_history(run.info.run_id, "val/loss")] == [2, 4]
    assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["samples"]


CHECKING = ["detect_anomaly=true", "deterministic=true", "max_time=00:00:01:00"]
CHECKING += ["num_sanity_val_steps=2", "enable_progress_bar=false", "enable_model_summary=true"]


@pytest.mark.parametrize(
    ("flags", "validation"),
    [
        (CHECKING, "whole"),
        (["limit_val_batches=1"], "part"),
        (["limit_val_batches=0.5"], "part"),
        (["limit_val_batches=0"], "none"),
    ],
)
def test_flags_of_the_trainer(flags, validation, plain):
    """They do not change the weights."""
    words = [f"+trainer.{flag}" for flag in flags]
    found = headscope.train([*FAST, "trainer.final_validation=whole", *words, RUN]).summary
    assert (found["steps"], found["validation"]) == (4, validation)
    assert (found["val_loss"] is None) == (validation == "none")
    torch.use_deterministic_algorithms(False)  # Lightning sets it for the process
    assert_same_weights(plain, "outputs/run")
    if flags == CHECKING:
        assert scalars("outputs/run", "val/loss") == scalars(plain, "val/loss")


def test_overfitting_repeats_the_first_steps_batches_also_after_a_resume(monkeypatch):
    seen, step = [], LanguageModel.training_step

    def recorded(module: LanguageModel, batches: Any, *given: Any) -> Any:
        seen.append(batches[0][0].tolist())
        return step(module, batches, *given)

    monkeypatch.setattr(LanguageModel, "training_step", recorded)
    flag = "+trainer.overfit_batches=3"
    assert headscope.train([*FAST, flag, RUN]).summary["validation"] == "part"
    headscope.train(["resume=outputs/run", "trainer.max_steps=8", flag])
    assert len({str(each) for each in seen[:3]}) == 3
    assert seen == (seen[:3] * 3)[:8]


@pytest.mark.parametrize("choice", ["limit", "overfit", "profiler"])
def test_every_debug_choice_runs(choice):
    """The commands of the page have the choice fast."""
    headscope.train([*FAST[:-3], f"debug={choice}", "trainer.max_steps=2", RUN])
    assert Path("outputs/run").exists()


REFUSED = {
    "max_epochs: 1": "trainer.max_steps",
    "gradient_clip_val: 1": "trainer.gradient_clip",
    "default_root_dir: x": "hydra.run.dir",
    "plugins: x": "trainer.precision",
    "max_stps: 1": "did you mean max_steps?",
    "profiler: slow": "simple",
    "max_time: 5": "max_time=5",
    "strategy: ddp_spawn": "trainer.devices",
    "limit_val_batches: -1": "limit_val_batches=-1",
}


@pytest.mark.parametrize(("given", "advice"), REFUSED.items())
def test_a_flag_that_headscope_sets_is_refused_with_the_key(given, advice):
    config = training_config("data=repeats")
    config.trainer.arguments |= yaml.safe_load(given)
    with refused(f"trainer.{given.partition(':')[0]}", advice):
        build_trainer(config, Path("run"), [], [], {})


SWA = "+callbacks.x._target_=lightning.pytorch.callbacks.StochasticWeightAveraging"
MISTAKES = {
    "+trainer.max_epochs=1": "trainer.max_steps",
    "+callbacks.x._target_=pathlib.Path": "lightning.pytorch.Callback",
    f"{NORMS} +callbacks.norms.ever=1": "ever",
    "+callbacks.x.every=1": "_target_",
    "+logger.x._target_=pathlib.Path": "lightning.pytorch.loggers.Logger",
    "callbacks.early_stopping_patience=2": "did you mean early_stopping?",
    f"{SWA} +callbacks.x.swa_epoch_start=1": "EMAWeightAveraging",
    f"{SWA} +callbacks.x.swa_lrs=0.1": "EMAWeightAveraging",
    "logger=null": "~logger",
    "callbacks=null": "~callbacks",
    # The message of Lightning says what can be monitored.
    f"+callbacks.x._target_={STOP} +callbacks.x.monitor=val_loss": "val/loss",
}


@pytest.mark.parametrize(("words", "names"), MISTAKES.items())
def test_a_mistake_is_refused_before_a_checkpoint_is_written(words, names):
    with refused(names):
        headscope.train([*FAST, *words.split(), RUN])
    assert not Path("outputs/run/checkpoints").exists()


def test_objects_from_python_are_used():
    monitor = LearningRateMonitor()
    words = [*FAST, "callbacks=plain"]
    with refused("LearningRateMonitor"):
        headscope.train(words, callbacks=[monitor], logger=False)
    assert headscope.train(words, callbacks=[monitor]).summary["steps"] == 4
    assert monitor.lrs


@pytest.mark.parametrize("word", ["+trainer.fast_dev_run=true", "debug=fast"])
def test_a_run_that_keeps_nothing_names_no_folder(word):
    result = headscope.train([*FAST, word, RUN])
    assert (result.folder, result.summary) == (None, {})
    assert not Path("outputs/run").exists()


def of_a_stranger(part: str, key: str, value: Any, *words: str) -> None:
    """Resumes a copy of outputs/whole whose newest checkpoint comes from a stranger."""
    shutil.rmtree("outputs/run", ignore_errors=True)
    shutil.copytree("outputs/whole", "outputs/run")
    Path("outputs/run/checkpoints/best.safetensors").unlink(missing_ok=True)
    stored = opened("outputs/run/checkpoints/last.safetensors")
    stored[part][key] = value
    save(stored, "outputs/run/checkpoints/last.safetensors")
    with suppress(headscope.UserError):
        headscope.train(["resume=outputs/run", "trainer.max_steps=6", *words])


def test_a_checkpoint_builds_no_callback_and_no_logger():
    """Not even one that the person has used before in this process, with a trap inside."""
    trap = {"_target_": "os.mkdir", "path": "ran"}
    logger = {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": trap}
    rates = {"_target_": RATES.partition("=")[2], "logging_interval": trap}
    headscope.train([*FAST, RATES, "hydra.run.dir=outputs/whole"])
    for name, part in (("logger", {"csv": logger}), ("callbacks", {"rates": rates})):
        of_a_stranger("config", name, part)
        assert not Path("ran").exists()


def test_a_state_of_a_stranger_removes_nothing():
    best = ["+callbacks.best._target_=lightning.pytorch.callbacks.ModelCheckpoint"]
    best += ["+callbacks.best.monitor=val/loss", "+callbacks.best.save_last=true"]
    headscope.train([*FAST, *best, RUN])  # in the folder that the state names
    Path("outputs/run").rename("outputs/whole")
    Path("mine").mkdir()
    Path("mine/a.safetensors").touch()
    states = opened("outputs/whole/checkpoints/last.safetensors")["training"]["callbacks"]
    [name] = [key for key in states if key.startswith("ModelCheckpoint")]
    within = Path("outputs/run/model_checkpoints").absolute()
    for file in (f"{within}/../../../mine/a.safetensors", f"local://{Path('mine').absolute()}"):
        paths = {key: file for key in states[name] if key.endswith("_path")}
        state = states[name] | paths | {"best_k_models": {file: 99.0}, "best_model_score": 99.0}
        of_a_stranger("training", "callbacks", {name: state}, *best)
        assert Path("mine/a.safetensors").exists()
