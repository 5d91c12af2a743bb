"""Loss of a checkpoint on a whole validation split: python scripts/evaluate.py."""

import json

from omegaconf import DictConfig

from headscope import command_line


def evaluate(config: DictConfig) -> None:
    """Print the figures as one JSON object on standard output."""
    from hydra.utils import instantiate

    from headscope import checkpoint, evaluation

    if config.batch_size < 1:
        raise ValueError(f"batch_size={config.batch_size} must be at least 1")
    loaded = checkpoint.load(
        checkpoint.find(config.checkpoint), device=checkpoint.pick_device(config.device)
    )
    corpus = instantiate(config.data) if config.data else checkpoint.build_corpus(loaded.config)
    print(json.dumps(evaluation.evaluate(loaded, corpus, batch_size=config.batch_size), indent=2))


if __name__ == "__main__":
    command_line.run(evaluate, "evaluate")
