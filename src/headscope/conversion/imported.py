"""Writes an imported model as a checkpoint in the form of a run, so that all scripts can open
it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from headscope import checkpoint
from headscope.analysis.head_types import Thresholds
from headscope.config.model import ModelConfig
from headscope.config.text import (
    CharConfig,
    CorpusConfig,
    Gpt2Config,
    ImportedConfig,
    TextFilesConfig,
    TokenizerConfig,
    UnknownTextConfig,
)
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
from headscope.conversion.new_folder import new_folder
from headscope.data.base_tokenizer import Tokenizer


def write_checkpoint(
    output: Path,
    *,
    model: ModelConfig,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer,
    step: int,
    text: Path | None,
) -> None:
    """Writes the new run folder `output` with the checkpoint best.safetensors. `text` is the text
    that the model was trained on, if it is known.

    The checkpoint has no training state: a run can start from it with init_from=, but it cannot be
    resumed. Raises UserError if it cannot be written.
    """
    config = imported_config(model, tokenizer, name=output.absolute().name, text=text)
    data = checkpoint.contents(
        config=config, tokenizer=tokenizer, store="none", precision="32-true"
    )
    write_weights(output, weights, data | {"step": step})


def write_weights(output: Path, weights: Mapping[str, Tensor], data: dict[str, Any]) -> None:
    """Writes the new run folder `output` with a checkpoint of these weights and plain data. Raises
    UserError if it cannot be written."""
    with new_folder(output) as folder:
        path = folder / "checkpoints" / "best.safetensors"
        path.parent.mkdir()
        tensors = {f"model.{name}": weight for name, weight in weights.items()}
        checkpoint.write(path, tensors, data)


def imported_config(
    model: ModelConfig, tokenizer: Tokenizer, *, name: str, text: Path | None = None
) -> TrainConfig:
    """The configuration of an imported model. How it was trained is unknown, so the settings of
    training are those of conf/experiment/finetune.yaml. `text` is the text that the model was
    trained on, if it is known."""
    data: CorpusConfig = UnknownTextConfig() if text is None else TextFilesConfig(path=str(text))
    return TrainConfig(
        name=name,
        seed=1,
        resume=None,
        init_from=None,
        store_dir="data",
        model=model,
        tokenizer=tokenizer_config(tokenizer),
        data=data,
        optimizer=AdamWConfig(lr=5e-5, weight_decay=0.01, beta1=0.9, beta2=0.999),
        schedule=WarmupCosineConfig(warmup_steps=50, final_fraction=0.0),
        trainer=TrainerConfig(
            max_steps=0,  # no training by headscope: the model card says so
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
                text=None, steps=60, images=8, step_megabytes=4.0, run_megabytes=200.0
            ),
            heads=HeadsConfig(
                every_steps=100, windows=4, thresholds=ThresholdsConfig(**vars(Thresholds()))
            ),
            samples=SamplesConfig(prompt="", max_new_tokens=100, temperature=0.8, top_k=None),
            save_every_minutes=5.0,
            keep_steps=[],
            early_stopping_patience=None,
        ),
    )


def tokenizer_config(tokenizer: Tokenizer) -> TokenizerConfig:
    """The configuration that names the tokenizer. The checkpoint contains the tokenizer itself."""
    if tokenizer.name == "gpt2":
        return Gpt2Config(path=None)
    return CharConfig() if tokenizer.name == "char" else ImportedConfig()
