"""Typed schemas of conf/: values stand in conf/, types stand here.

Every key is typed, so that a misspelt key or a word where a number belongs fails when the
configuration is composed. A schema with a `_target_` is what that target is called with; the
others are read key by key. conf/ refers to them as /schema/<group>/<name>. `parse` and `from_hydra`
make instances of them from plain data, `build_part` builds what an instance describes.
"""

from hydra.core.config_store import ConfigStore

from headscope.config import model, scripts, text, training
from headscope.config.parse import from_hydra, parse
from headscope.config.parts import build_part

__all__ = ["SCHEMAS", "build_part", "from_hydra", "parse", "register_schemas"]

SCHEMAS: dict[str, dict[str, type]] = {
    "script": {
        "train": training.TrainConfig,
        "sample": scripts.SampleConfig,
        "evaluate": scripts.EvaluateConfig,
        "analyze": scripts.AnalyzeConfig,
        "benchmark": scripts.BenchmarkConfig,
        "compare": scripts.CompareConfig,
    },
    "model": {"gpt": model.ModelConfig, "modern": model.ModelConfig},
    "attention": {
        "single_head": model.SingleHeadConfig,
        "multi_head": model.MultiHeadConfig,
        "multi_query": model.MultiQueryConfig,
        "grouped_query": model.GroupedQueryConfig,
        "stacked_heads": model.StackedHeadsConfig,
        "additive": model.AdditiveConfig,
    },
    "position": {
        "none": model.NoPositionConfig,
        "learned": model.LearnedConfig,
        "sinusoidal": model.SinusoidalConfig,
        "rotary": model.RotaryConfig,
        "alibi": model.AlibiConfig,
        "relative": model.RelativeConfig,
        "head_bias": model.HeadBiasConfig,
        "index": model.IndexConfig,
        "normalized": model.NormalizedConfig,
        "digits": model.DigitsConfig,
    },
    "norm": {"layer": model.LayerNormConfig, "rms": model.RmsNormConfig},
    "activation": {"gelu": model.GeluConfig, "relu_squared": model.ReluSquaredConfig},
    "tokenizer": {
        "bpe": text.BpeConfig,
        "byte": text.ByteConfig,
        "char": text.CharConfig,
        "gpt2": text.Gpt2Config,
    },
    "data": {
        "sotu": text.SotuConfig,
        "tinyshakespeare": text.TinyShakespeareConfig,
        "text": text.TextFilesConfig,
        "hub": text.HubConfig,
    },
    "optimizer": {"adamw": training.AdamWConfig, "muon": training.MuonConfig},
    "schedule": {"cosine": training.WarmupCosineConfig, "linear": training.WarmupLinearConfig},
    "trainer": {"default": training.TrainerConfig},
    "logger": {"tensorboard": training.TensorBoardConfig},
    "callbacks": {"default": training.CallbacksConfig, "plain": training.CallbacksConfig},
    "suite": {
        "training": scripts.TrainingSuiteConfig,
        "attention": scripts.AttentionSuiteConfig,
        "watching": scripts.WatchingSuiteConfig,
        "sampling": scripts.SamplingSuiteConfig,
        "race": scripts.RaceSuiteConfig,
        "data": scripts.DataSuiteConfig,
        "memory": scripts.MemorySuiteConfig,
        "scaling": scripts.ScalingSuiteConfig,
    },
    "compare": {
        "attention": scripts.ChoicesConfig,
        "positions": scripts.ChoicesConfig,
        "own": scripts.ChoicesConfig,
    },
}


def register_schemas() -> None:
    """Make the schemas known to Hydra."""
    store = ConfigStore.instance()
    for group, schemas in SCHEMAS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)
