"""The command sample: samples text from a checkpoint."""

import itertools
from typing import Literal

from headscope.config.parse import Count, NonNegative, Positive, Texts
from headscope.errors import UserError
from headscope.terminal import note, read_standard_input, step_name, write


def sample(
    *,
    parts: Texts,
    checkpoint: str | None,
    prompt: str,
    begin: bool | None,
    special: bool,
    question: bool,
    max_new_tokens: Count,
    temperature: NonNegative,
    top_k: Positive | None,
    top_p: float | None,
    num_samples: Positive,
    stop: list[str],
    seed: int,
    device: str,
    precision: Literal["auto", "fp32", "bf16", "int8"],
    compile: bool,
) -> None:
    """Writes the prompt and the generated text to standard output, piece by piece."""
    from headscope.conversion.load import load
    from headscope.seeds import mixed_seed
    from headscope.trained.generation.compiled import compile_decoding
    from headscope.trained.generation.generate import generate_texts
    from headscope.trained.generation.precision import faster_precision, in_precision

    loaded = load(checkpoint, device=device, begin=begin, special=special)
    tokenizer = loaded.tokenizer.typed(question=question)
    used = faster_precision(loaded.model) if precision == "auto" else precision
    model = in_precision(loaded.model, used)
    prompt = read_standard_input() if prompt == "-" else prompt
    note(f"Sampling from {loaded.path}, {step_name(loaded.known_step)}, in {used}")
    # If the tokenizer cannot encode the prompt, this fails before the slow compilation.
    tokens, longest = tokenizer.encode_prompt(prompt), loaded.model.block_size
    if question and not prompt.strip():
        raise UserError("prompt= is empty: with question=true, give a question")
    if question and len(tokens) >= longest:
        problem = f"prompt= has {len(tokens):,} tokens with its chat template"
        raise UserError(f"{problem}, and the model reads {longest:,}: shorten it")
    generated = generate_texts(
        model,
        tokenizer,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stop,
        seeds=[mixed_seed(seed, number) for number in range(num_samples)],
        decode_one=compile_decoding(model, batch=num_samples) if compile else None,
    )
    prompt += "\n" if question else ""
    texts = [prompt] * num_samples
    # Generate the first pieces before writing the prompt, so that an error comes before any output.
    first = next(generated, [""] * num_samples)
    if num_samples > 1:
        note(f"--- sample 1 of {num_samples}")
    write(prompt)
    for pieces in itertools.chain([first], generated):
        write(pieces[0])
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
    write("\n")
    # The other samples were generated in the same batch as the first one.
    for number, text in enumerate(texts[1:], start=2):
        note(f"--- sample {number} of {num_samples}")
        write(text + "\n")
