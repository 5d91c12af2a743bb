"""Lightning as its users know it, with the examples of the page docs/lightning.md."""

import json
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import pandas
import pytest
import torch
from checkpoint_files import assert_same_weights, opened, save
from lightning.pytorch.callbacks import LearningRateMonitor
from many_processes import TINY
from running import ROOT, Script, events, snapshot_headers, summary

import headscope
from headscope.config.parts import OWN_FOLDERS
from headscope.training.module import LanguageModel

PAGE = (ROOT / "docs" / "lightning.md").read_text("utf-8")
CALLBACK, IN_PYTHON, PLAIN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[YAML] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("headscope train ")]
FAST = [*TINY[:-1], "callbacks.attention.images=0", "data=repeats", "data.characters=2000"]
FAST += ["trainer.final_validation=part", "trainer.max_steps=4", "trainer.val_every_steps=2"]
RUN = "hydra.run.dir=outputs/run"
NORMS = "+callbacks.norms._target_=my_callbacks.GradientNorms"
RATES = "+callbacks.rates._target_=lightning.pytorch.callbacks.LearningRateMonitor"


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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


def scalars(run: str, tag: str) -> dict[int, float]:
    return {event.step: event.value for event in events(run).Scalars(tag)}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_work(command: str, script: Script) -> None:
    words = shlex.split(command)[2:]
    words += ["callbacks.norms.every=1"] * ("norms" in command)
    said = script("train", *words[:1], *FAST, *words[1:], RUN)
    assert said.code == 0, said.err
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
def test_the_python_of_the_page_works(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*FAST[:-3], "trainer.max_steps=4"]
    source = source.replace('"trainer.max_steps=100", ', f"*{words}, ").replace("=100", "=6")
    source = source.replace("headscope.Sotu()", "headscope.TextFiles(path='my_callbacks.py')")
    source = source.replace("block_size=64", "block_size=8")
    monkeypatch.syspath_prepend(".")
    source = source.replace("warmup_steps=10", "warmup_steps=2").replace("=50", "=3")
    names: dict[str, Any] = {}
    exec(source, names)
    if "result" in names:
        assert names["result"].summary["steps"] == 4
        assert "train/loss" in Path("logs/lightning_logs/version_0/metrics.csv").read_text()
        return
    assert [*Path("logs").rglob("events.*")]
    [file] = Path("logs").rglob("*.ckpt")
    assert torch.load(file, weights_only=True)["global_step"] == 6


def test_a_plain_trainer_resumes_as_lightning_does(tmp_path: Path) -> None:
    """The weights are those of an uninterrupted run."""
    store = headscope.prepare_store(headscope.TextFiles(path="my_callbacks.py"), headscope.char)
    data = {"block_size": 8, "batch_size": 2}

    def fit(steps: int, folder: str, resume: str | None = None) -> LanguageModel:
        torch.manual_seed(1)
        model = headscope.GPT(
            vocab_size=store.tokenizer.vocab_size, embed_dim=8, layers=1, heads=1, block_size=8
        )
        module = headscope.LanguageModel(
            model, store.tokenizer, optimizer=lambda each: torch.optim.Adam(each.parameters())
        )
        saver = headscope.CheckpointSaver(keep_steps=(2,))
        trainer = lightning.Trainer(
            max_steps=steps,
            limit_val_batches=2,
            val_check_interval=2,
            check_val_every_n_epoch=None,
            callbacks=[saver, headscope.EarlyStopping()],
            logger=False,
            accelerator="cpu",
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, datamodule=headscope.TokenDataModule(store, **data), ckpt_path=resume)
        [found] = trainer.validate(module, datamodule=trainer.datamodule, verbose=False)
        assert found.keys() == {"val/loss", "val/bits_per_byte"}
        return module

    whole = fit(5, "whole").model.state_dict()
    fit(2, "half")
    assert {file.name for file in Path("half/checkpoints").iterdir()} == {
        *("last.ckpt", "best.ckpt", "step_000002.ckpt")
    }
    resumed = fit(5, "more", "half/checkpoints/last.ckpt").model.state_dict()
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())


@pytest.mark.parametrize("steps", [(), (2,), (3,)])
def test_rates_and_steps_are_right_also_after_a_resume(script: Script, steps: tuple) -> None:
    words = [*FAST, "schedule.warmup_steps=4", "trainer.max_steps=6", RATES, NORMS, RUN]
    for last in steps:
        short = [f"trainer.max_steps={last}", "trainer.val_every_steps=2"]
        assert script("train", *words, *short).code == 0
        words = ["resume=outputs/run", "trainer.max_steps=6", RATES, NORMS]
    assert script("train", *words).code == 0
    [tag] = [each for each in events("outputs/run").Tags()["scalars"] if each.endswith("/matrices")]
    ours = scalars("outputs/run", "train/lr")
    config = opened("outputs/run/checkpoints/last.safetensors")["config"]
    keys = {key: each for key, each in config["schedule"].items() if key != "_target_"}
    schedule = headscope.WarmupLinear(max_steps=6, **keys)
    for step in range(max(steps, default=0), 6):
        expected = config["optimizer"]["lr"] * schedule(step)
        assert ours[step + 1] == pytest.approx(expected)
    rates = scalars("outputs/run", tag.replace("matrices", "vectors"))
    assert {step - 1: value for step, value in ours.items()} == pytest.approx(rates)
    assert [*scalars("outputs/run", "gradient/block_0")] == [*range(6)]


def test_the_state_of_a_callback_is_restored_after_a_stop(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    words = [*FAST, "+callbacks.sum._target_=my_states.Sum"]
    wrong = ["+callbacks.wrong._target_=my_states.Wrong", "hydra.run.dir=outputs/whole"]
    with pytest.warns(UserWarning, match="state of the callback Wrong is not saved") as warned:
        whole = script("train", *words, *wrong)
    assert len([each for each in warned if "is not saved" in str(each.message)]) >= 1
    step = LanguageModel.training_step

    def stopped(module: LanguageModel, *given: Any) -> Any:
        if module.global_step == 2:
            signal.raise_signal(signal.SIGINT)
        return step(module, *given)

    sys.modules.pop("my_states")
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "training_step", stopped)
        said = script("train", *words, RUN)
    assert said.code == 130
    [line] = [line for line in said.out.splitlines() if "To continue:" in line]
    again = shlex.split(line.partition("To continue: ")[2])[2:]  # after python and the script
    assert "+callbacks.sum._target_=my_states.Sum" in again
    without = script("train", *[word for word in again if "my_states" not in word], "--cfg", "job")
    assert without.code == 0
    sys.modules.pop("my_states")
    resumed = script("train", *again)
    assert resumed.code == 0, resumed.err
    [sums] = [line for line in whole.out.splitlines() if line.startswith("sum")][:1]
    assert sums in resumed.out
    assert_same_weights("outputs/whole", "outputs/run")
    twice = ["+callbacks.more._target_=my_states.Sum", "hydra.run.dir=outputs/twice"]
    said = script("train", *words, *twice)
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert "state_key" in said.err
    more = script("train", "resume=outputs/run", "trainer.max_steps=5")
    assert "left out    callbacks.sum" in more.out


def test_each_logger_gets_scalars_samples_and_hyperparameters(script: Script) -> None:
    words = ["logger=[csv,tensorboard]", "callbacks.samples.max_new_tokens=5", *FAST, RUN]
    assert script("train", *words).code == 0
    folder = Path("outputs/run/csv/version_0")
    table = pandas.read_csv(folder / "metrics.csv")
    for tag in ("train/loss", "val/loss", "watch/diversity"):
        found = table[["step", tag]].dropna()
        logged = scalars("outputs/run", tag)
        assert dict(zip(found["step"], found[tag], strict=True)) == pytest.approx(logged)
    assert [*table["samples"].dropna().index].__len__() == 2
    assert table["final/val_loss"].max() == pytest.approx(summary("outputs/run")["val_loss"])
    assert "model.heads: 2" in (folder / "hparams.yaml").read_text()
    assert snapshot_headers("outputs/run")
    assert script("train", "resume=outputs/run", "trainer.max_steps=6", "logger=csv").code == 0
    assert pandas.read_csv("outputs/run/csv/version_1/metrics.csv")["step"].max() == 6


@pytest.mark.slow
def test_wandb_offline_and_mlflow_get_the_run(script: Script, monkeypatch) -> None:
    import mlflow

    uri = f"sqlite:///{Path('mlflow.db').absolute()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    words = ["logger=[wandb,mlflow]", "logger.wandb.offline=true", *FAST, RUN]
    said = script("train", *words, "callbacks.samples.max_new_tokens=5")
    assert said.code == 0, said.err
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


FLAGS = {
    "detect_anomaly=true": {},
    "deterministic=true": {},
    "benchmark=true": {},
    "max_time=00:00:01:00": {},
    "num_sanity_val_steps=2": {},
    "limit_val_batches=1": {"validation": "part"},
    "limit_val_batches=0.5": {"validation": "part"},
    "limit_val_batches=0": {"validation": "none", "val_loss": None},
    "overfit_batches=2": {"validation": "part"},
    "enable_progress_bar=false": {},
    "enable_model_summary=true": {},
}


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_of_the_trainer(flag: str, script: Script) -> None:
    words = ["trainer.final_validation=whole", f"+trainer.{flag}", RUN]
    said = script("train", *FAST, *words)
    assert said.code == 0, said.err
    expected = {"steps": 4, "validation": "whole"} | FLAGS[flag]
    assert summary("outputs/run").items() >= expected.items()
    assert not torch.are_deterministic_algorithms_enabled()
    assert opened("outputs/run/checkpoints/last.safetensors")["step"] == expected["steps"]
    if "val" in flag or "det" in flag:
        assert script("train", *FAST, "hydra.run.dir=outputs/plain").code == 0
        assert_same_weights("outputs/plain", "outputs/run")
        same = scalars("outputs/plain", "val/loss")
        if "limit" not in flag:
            assert scalars("outputs/run", "val/loss") == same
    if flag == "overfit_batches=2":
        losses = scalars("outputs/run", "train/loss")
        more = script("train", "resume=outputs/run", "trainer.max_steps=6", f"+trainer.{flag}")
        assert more.code == 0
        assert losses[3] < losses[1]


def test_overfitting_repeats_the_first_steps_batches_also_after_a_resume(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, step = [], LanguageModel.training_step

    def recorded(module: LanguageModel, batches: Any, *given: Any) -> Any:
        seen.append(batches[0][0].tolist())
        return step(module, batches, *given)

    monkeypatch.setattr(LanguageModel, "training_step", recorded)
    flag = "+trainer.overfit_batches=3"
    assert script("train", *FAST, flag, RUN).code == 0
    assert script("train", "resume=outputs/run", "trainer.max_steps=8", flag).code == 0
    assert len(seen) == 8
    assert len({str(each) for each in seen[:3]}) == 3
    assert seen == (seen[:3] * 3)[:8]


@pytest.mark.parametrize("choice", ["fast", "limit", "overfit", "profiler"])
def test_every_debug_choice_runs(choice: str, script: Script) -> None:
    short = [] if choice == "fast" else ["trainer.max_steps=2"]
    said = script("train", *FAST[:-3], f"debug={choice}", *short, RUN)
    assert said.code == 0, said.err
    assert Path("outputs/run").exists() != (choice == "fast")
    assert Path("outputs/latest").exists() != (choice == "fast")


REFUSED = {
    "max_epochs=1": "trainer.max_steps",
    "val_check_interval=5": "trainer.val_every_steps",
    "accumulate_grad_batches=2": "trainer.accumulate",
    "gradient_clip_val=1": "trainer.gradient_clip",
    "log_every_n_steps=1": "trainer.log_every_steps",
    "limit_train_batches=2": "trainer.max_steps",
    "default_root_dir=x": "hydra.run.dir",
    "plugins=x": "trainer.precision",
    "barebones=true": "callbacks=plain",
    "max_stps=1": "did you mean max_steps?",
    "profiler=slow": "simple",
    "max_time=5": "max_time=5",
    "num_sanity_val_steps=abc": "an integer",
    "strategy=ddp_spawn": "trainer.devices",
    "limit_val_batches=-1": "limit_val_batches=-1",
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_flag_that_headscope_sets_is_refused_with_the_key(word: str, script: Script) -> None:
    said = script("train", *FAST, f"+trainer.{word}", RUN)
    assert (said.code, said.err.count("\n")) == (1, 1), said.err
    assert said.err.startswith(f"Error: trainer.{word.partition('=')[0]}")
    assert REFUSED[word] in said.err
    assert not Path("outputs/run").exists()


def test_a_former_key_is_answered_with_the_new_one(script: Script) -> None:
    for old, new in {
        "save_every_minutes=1": "saving.every_minutes",
        "keep_steps=[1]": "saving.keep_steps",
        "early_stopping_patience=2": "early_stopping.patience",
    }.items():
        for plus in ("", "+"):
            said = script("train", *FAST, f"{plus}callbacks.{old}", RUN)
            assert (said.code, said.err.count("\n")) == (1, 1)
            assert f"is now callbacks.{new}" in said.err


def test_a_mistake_in_a_callback_is_one_line(script: Script) -> None:
    for word, names in {
        "+callbacks.x._target_=my_callbacks.Nothing": "Nothing",
        "+callbacks.x._target_=nowhere.Nothing": "nowhere",
        "+callbacks.x._target_=pathlib.Path": "lightning.pytorch.Callback",
        f"{NORMS} +callbacks.norms.ever=1": "ever",
        "+callbacks.x.every=1": "_target_",
        "+logger.x._target_=pathlib.Path": "lightning.pytorch.loggers.Logger",
    }.items():
        said = script("train", *FAST, *word.split(), RUN)
        assert (said.code, said.err.count("\n")) == (1, 1), (word, said.err)
        assert names in said.err
        assert not Path("outputs/run").exists()
    assert script("train", *FAST, RUN).code == 0
    for word in ("callbacks.early_stopping=5", "+callbacks.x=5", "+trainer.arguments=5"):
        said = script("train", "resume=outputs/run", "trainer.max_steps=6", word)
        assert (said.code, said.err.splitlines()[-1][:6]) == (1, "Error:"), said.err
        assert "Traceback" not in said.err


def test_an_error_of_a_callback_of_lightning_is_one_line_but_no_bug_is_hidden(
    script: Script,
) -> None:
    stop = "lightning.pytorch.callbacks.EarlyStopping"
    words = [f"+callbacks.stop._target_={stop}", "+callbacks.stop.monitor=val_loss"]
    said = script("train", *FAST, *words, RUN)
    assert (said.code, said.err.count("\n")) == (1, 1), said.err
    assert "val/loss" in said.err  # what can be monitored
    with Path("my_callbacks.py").open("a") as file:
        file.write("""
class Wrong(GradientNorms):
    def on_train_start(self, trainer, module):
        exec("def wrong(): raise RuntimeError('a bug')\\nwrong()", {})
""")
    said = script("train", *FAST, "+callbacks.x._target_=my_callbacks.Wrong", RUN)
    assert said.code == 1
    assert "Traceback" in said.err
    assert "The error comes from" in said.err


def test_objects_from_python_are_used() -> None:
    monitor = LearningRateMonitor()
    words = [*FAST, "callbacks=plain"]
    with pytest.raises(headscope.UserError, match="LearningRateMonitor"):
        headscope.train(words, callbacks=[monitor], logger=False)
    result = headscope.train(["callbacks=plain", *FAST], callbacks=[monitor])
    assert result.summary["steps"] == 4
    assert monitor.lrs
    assert json.loads((result.folder / "summary.json").read_text())["steps"] == 4


def of_a_stranger(**changes: Any) -> None:
    """Changes the newest checkpoint of outputs/run, which then comes from a stranger."""
    Path("outputs/run/checkpoints/best.safetensors").unlink(missing_ok=True)
    stored = opened("outputs/run/checkpoints/last.safetensors")
    for place, value in changes.items():
        node = stored
        *path, last = place.split("__")
        for key in path:
            node = node[key]
        node[last] = value
    save(stored, "outputs/run/checkpoints/last.safetensors")


def test_a_checkpoint_builds_no_callback_and_no_logger(script: Script) -> None:
    """Not even one that the person has used before in this process, with a trap inside."""
    trap = {"_target_": "os.mkdir", "path": "ran"}
    logger = {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": trap}
    rates = {"_target_": RATES.partition("=")[2], "logging_interval": trap}
    for name, part in (("logger", {"csv": logger}), ("callbacks", {"rates": rates})):
        assert script("train", *FAST, RATES, RUN).code == 0
        of_a_stranger(**{f"config__{name}": part})
        script("train", "resume=outputs/run", "trainer.max_steps=5")
        assert not Path("ran").exists()
        shutil.rmtree("outputs/run")


def test_a_state_of_a_stranger_removes_nothing(script: Script) -> None:
    best = ["+callbacks.best._target_=lightning.pytorch.callbacks.ModelCheckpoint"]
    best += ["+callbacks.best.monitor=val/loss", "+callbacks.best.save_last=true"]
    assert script("train", *FAST, *best, RUN).code == 0
    Path("mine").mkdir()
    Path("mine/a.safetensors").touch()
    states = opened("outputs/run/checkpoints/last.safetensors")["training"]["callbacks"]
    [name] = [key for key in states if key.startswith("ModelCheckpoint")]
    within = Path("outputs/run/model_checkpoints").absolute()
    for file in (f"{within}/../../../mine/a.safetensors", f"local://{Path('mine').absolute()}"):
        paths = {key: file for key in states[name] if key.endswith("_path")}
        state = states[name] | paths | {"best_k_models": {file: 99.0}, "best_model_score": 99.0}
        shutil.copytree("outputs/run", "outputs/before")
        of_a_stranger(training__callbacks={name: state})
        assert script("train", "resume=outputs/run", "trainer.max_steps=6", *best).code in (0, 1)
        assert Path("mine/a.safetensors").exists()
        shutil.rmtree("outputs/run")
        Path("outputs/before").rename("outputs/run")


def test_a_run_does_not_follow_links_out_of_its_folder(script: Script) -> None:
    assert script("train", *FAST, RUN).code == 0
    Path("elsewhere").mkdir()
    Path("outputs/run/csv").symlink_to(Path("elsewhere").absolute())
    said = script("train", "resume=outputs/run", "trainer.max_steps=6", "logger=csv")
    assert (said.code, "symbolic link" in said.err) == (1, True)
    assert not [*Path("elsewhere").iterdir()]
