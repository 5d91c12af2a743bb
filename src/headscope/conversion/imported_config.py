"""The configuration of an imported model, in the form of the configuration of a training run."""

from headscope.analysis.head_types import Thresholds
from headscope.config.model import ModelConfig
from headscope.config.text import Gpt2Config, ImportedConfig, TokenizerConfig, UnknownTextConfig
from headscope.config.training import (
    AdamWConfig,
    AttentionConfig,
    CallbacksConfig,
    HeadsConfig,
    SamplesConfig,
    TensorBoardConfig,
    ThresholdsConfig,
    TrainConfig,
    TrainerConfig,
    WarmupCosineConfig,
)
from headscope.data.base_tokenizer import Tokenizer


def imported_config(model: ModelConfig, tokenizer: Tokenizer, *, name: str) -> TrainConfig:
    """The configuration of a run that would have made this model. How the model was really trained
    is not known: the settings are those of conf/experiment/finetune.yaml, and the text is
    unknown."""
    return TrainConfig(
        name=name,
        seed=1,
        resume=None,
        init_from=None,
        store_dir="data",
        model=model,
        tokenizer=tokenizer_config(tokenizer),
        data=UnknownTextConfig(),
        optimizer=AdamWConfig(lr=5e-5, weight_decay=0.01, beta1=0.9, beta2=0.999),
        schedule=WarmupCosineConfig(warmup_steps=50, final_fraction=0.0),
        trainer=TrainerConfig(
            max_steps=1000,
            batch_size=8,
            accumulate="auto",
            gradient_clip=1.0,
            val_every_steps=100,
            val_batch_size=4,
            final_validation="whole",
            log_every_steps=10,
            accelerator="auto",
            devices="auto",
            num_nodes=1,
            strategy="auto",
            precision="auto",
            compile="auto",
            checkpoint_activations=False,
            loss_chunk_tokens="auto",
        ),
        logger=TensorBoardConfig(),
        callbacks=CallbacksConfig(
            attention=AttentionConfig(
                text=None, steps=60, images=4, step_megabytes=10.0, run_megabytes=300.0
            ),
            heads=HeadsConfig(
                every_steps=0, windows=4, thresholds=ThresholdsConfig(**vars(Thresholds()))
            ),
            samples=SamplesConfig(prompt="", max_new_tokens=100, temperature=0.8, top_k=200),
            save_every_minutes=5.0,
            keep_steps=[],
            early_stopping_patience=None,
        ),
    )


def tokenizer_config(tokenizer: Tokenizer) -> TokenizerConfig:
    return Gpt2Config(path=None) if tokenizer.name == "gpt2" else ImportedConfig()
