"""The command sample: samples text from a checkpoint."""

import itertools
import sys

from omegaconf import DictConfig

from headscope.cli import command_line
from headscope.terminal import printable, read_standard_input


def main() -> None:
    command_line.run(sample, "sample")


def sample(composed: DictConfig) -> None:
    """Writes the prompt and the generated text to standard output, piece by piece."""
    from headscope import checkpoint
    from headscope.config.parse import from_hydra
    from headscope.config.scripts import SampleConfig
    from headscope.generation import (
        check_samples,
        check_sampling,
        check_stop,
        compile_decoding,
        generate_texts,
    )
    from headscope.nn.precision import faster_precision, in_precision
    from headscope.seeds import mixed_seed

    config = from_hydra(SampleConfig, composed)
    check_sampling(
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
    )
    check_stop(config.stop)
    loaded = checkpoint.load(
        checkpoint.find(config.checkpoint), device=checkpoint.pick_device(config.device)
    )
    check_samples(loaded.model, config.num_samples)
    auto = config.precision == "auto"
    precision = faster_precision(loaded.model) if auto else config.precision
    model = in_precision(loaded.model, precision)
    prompt = read_standard_input() if config.prompt == "-" else config.prompt
    print(
        printable(f"Sampling from {loaded.path}, step {loaded.step:,}, in {precision}"),
        file=sys.stderr,
    )
    # If the tokenizer cannot encode the prompt, this fails before the slow compilation.
    loaded.tokenizer.encode_prompt(prompt)
    decode_one = compile_decoding(model, batch=config.num_samples) if config.compile else None
    generated = generate_texts(
        model,
        loaded.tokenizer,
        prompt,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        stop=list(config.stop),
        seeds=[mixed_seed(config.seed, number) for number in range(config.num_samples)],
        decode_one=decode_one,
    )
    texts = [prompt] * config.num_samples
    # Generate the first pieces before writing the prompt, so that an error comes before any output.
    first = next(generated, [""] * config.num_samples)
    announce(1, config.num_samples)
    write(prompt)
    for pieces in itertools.chain([first], generated):
        write(pieces[0])
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
    write("\n")
    # The other samples were generated in the same batch as the first one.
    for number, text in enumerate(texts[1:], start=2):
        announce(number, config.num_samples)
        write(text + "\n")


def announce(number: int, count: int) -> None:
    if count > 1:
        print(f"--- sample {number} of {count}", file=sys.stderr, flush=True)


def write(text: str) -> None:
    text = printable(text, keep="\n\t") if sys.stdout.isatty() else text
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()
