"""Sample text from a checkpoint: python scripts/sample.py prompt="My fellow citizens"."""

import sys

from omegaconf import DictConfig

from headscope import command_line


def sample(config: DictConfig) -> None:
    """Write what the model says after the prompt to standard output, as it is made."""
    from headscope import checkpoint
    from headscope.generation import check_sampling, generate_text

    check_sampling(
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
    )
    if config.num_samples < 1:
        raise ValueError(f"num_samples={config.num_samples} must be at least 1")
    loaded = checkpoint.load(
        checkpoint.find(config.checkpoint), device=checkpoint.pick_device(config.device)
    )
    prompt = command_line.read_standard_input() if config.prompt == "-" else config.prompt
    print(f"Sampling from {loaded.path}, step {loaded.step:,}", file=sys.stderr)
    for number in range(config.num_samples):
        if config.num_samples > 1:
            print(f"--- sample {number + 1} of {config.num_samples}", file=sys.stderr, flush=True)
        pieces = generate_text(
            loaded.model,
            loaded.tokenizer,
            prompt,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            stop=list(config.stop),
            seed=config.seed + number,
        )
        first = next(pieces, "")  # a wrong setting is told before anything is written
        write(prompt + first)
        for piece in pieces:
            write(piece)
        write("\n")


def write(text: str) -> None:
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    command_line.run(sample, "sample")
