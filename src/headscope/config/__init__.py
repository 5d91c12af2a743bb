"""Typed schemas of the configuration. conf/ contains the values, this folder the types.

Every key has a type, so that a misspelt key or a value of the wrong type fails when the
configuration is composed. conf/ refers to a schema as /schema/<group>/<name>.

`parse` and `from_hydra` check plain data and make instances of the schemas. A schema with a
`_target_` describes a call: `build_part` calls the target with the values of an instance.
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
    """Registers the schemas in Hydra."""
    store = ConfigStore.instance()
    for group, schemas in SCHEMAS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)
