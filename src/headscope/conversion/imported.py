"""Writes an imported model as a checkpoint of headscope."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope import checkpoint
from headscope.config.model import ModelConfig
from headscope.config.text import (
    CharConfig,
    CorpusConfig,
    Gpt2Config,
    ImportedConfig,
    SotuConfig,
    TextFilesConfig,
    TokenizerConfig,
)
from headscope.config.training import (
    AdamWConfig,
    AttentionConfig,
    CallbacksConfig,
    HeadsConfig,
    SamplesConfig,
    ThresholdsConfig,
    TrainConfig,
    TrainerConfig,
    WarmupCosineConfig,
)
from headscope.data.base_tokenizer import Tokenizer
from headscope.files import replacing
from headscope.stop import on_stop


def write_checkpoint(
    output: Path,
    *,
    model: ModelConfig,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer,
    step: int,
    text: Path | None,
) -> None:
    """Writes the run folder `output` with the checkpoint best.ckpt. `text` is the text that the
    model was trained on, if it is known. Raises UserError if it cannot be written."""
    data: CorpusConfig = SotuConfig() if text is None else TextFilesConfig(path=str(text))
    config = train_config(output.name, model, tokenizer_config(tokenizer), data)
    entry = checkpoint.contents(
        config=config, tokenizer=tokenizer, store="none", precision="32-true"
    )
    content: dict[str, Any] = {
        "headscope": entry,
        "state_dict": {f"model.{name}": weight for name, weight in weights.items()},
        "global_step": step,
    }
    with on_stop(partial(shutil.rmtree, output, ignore_errors=True)):
        try:
            (output / "checkpoints").mkdir(parents=True)
            with replacing(output / "checkpoints" / "best.ckpt") as file:
                torch.save(content, file)
        except BaseException:
            shutil.rmtree(output, ignore_errors=True)
            raise


def tokenizer_config(tokenizer: Tokenizer) -> TokenizerConfig:
    """The configuration that names the tokenizer. The checkpoint contains the tokenizer itself."""
    if tokenizer.name == "gpt2":
        return Gpt2Config(path=None)
    return CharConfig() if tokenizer.name == "char" else ImportedConfig()


def train_config(
    name: str, model: ModelConfig, tokenizer: TokenizerConfig, data: CorpusConfig
) -> TrainConfig:
    """The configuration of an imported checkpoint. Nothing trains with it: a run with init_from
    takes only the tokenizer from it."""
    return TrainConfig(
        name=name,
        seed=1,
        resume=None,
        init_from=None,
        store_dir="data",
        model=model,
        tokenizer=tokenizer,
        data=data,
        optimizer=AdamWConfig(lr=3e-5, weight_decay=0.1, beta1=0.9, beta2=0.95),
        schedule=WarmupCosineConfig(warmup_steps=0, final_fraction=0.1),
        trainer=TrainerConfig(
            max_steps=1,
            batch_size=1,
            accumulate=1,
            gradient_clip=1.0,
            val_every_steps=1,
            val_batch_size=1,
            log_every_steps=1,
            accelerator="auto",
            devices="auto",
            precision="auto",
            compile="auto",
            checkpoint_activations=False,
            loss_chunk_tokens="auto",
        ),
        callbacks=CallbacksConfig(
            attention=AttentionConfig(
                text=None, steps=0, images=0, step_megabytes=4.0, run_megabytes=200.0
            ),
            heads=HeadsConfig(
                every_steps=0,
                windows=4,
                thresholds=ThresholdsConfig(**dict.fromkeys(ThresholdsConfig.__annotations__, 0.5)),
            ),
            samples=SamplesConfig(prompt="", max_new_tokens=0, temperature=0.8, top_k=None),
            save_every_minutes=5.0,
            keep_steps=[],
            early_stopping_patience=None,
        ),
    )
