"""Writes a checkpoint as a folder that transformers opens: convert.py to=huggingface.

The folder has a class of transformers that computes the same function, if there is one. Otherwise
it has our own class, with its source. Each export is opened again and compared before it gets its
name.
"""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from headscope.checkpoint import Checkpoint
from headscope.config.model import ModelConfig
from headscope.conversion.huggingface.classes import find_class
from headscope.conversion.huggingface.model_card import model_card
from headscope.conversion.huggingface.own_class.source import source_files
from headscope.conversion.huggingface.proof import check_transformers, prove
from headscope.conversion.huggingface.tokenizer_files import CONFIG, tokenizer_files
from headscope.conversion.new_folder import new_folder
from headscope.conversion.weights_file import save_weights, write_json
from headscope.errors import UserError
from headscope.files import write_atomically

OWN_CLASS = "HeadscopeForCausalLM"


def export_huggingface(loaded: Checkpoint, output: Path) -> list[str]:
    """Writes `loaded` to the new folder `output`. Returns lines to print.

    Raises UserError if transformers is missing or too old for the class. Raises NotEqual, and
    leaves no files, if transformers computes other logits or another text than our model.
    """
    check_transformers()
    theirs = find_class(loaded.config.model)
    if theirs is not None:
        check_installed(theirs.name)
    with new_folder(output) as folder:
        write_model(loaded, folder, theirs)
        with_tokenizer = write_tokenizer(loaded, folder)
        proof = prove(folder, loaded, own_class=theirs is None, with_tokenizer=with_tokenizer)
        load = partial(loading_code, own_class=theirs is None, with_tokenizer=with_tokenizer)
        card = model_card(loaded, load=load("path/to/this/folder"), checked=proof.sentence())
        write_atomically(folder / "README.md", card)
    return [
        proof.sentence(),
        f"Random tokens and their greedy continuation: {proof.text!r}",
        f"Written: {output}/ ({proof.class_name}). To load it:",
        *(f"  {line}" for line in load(str(output)).splitlines()),
    ]


def check_installed(name: str) -> None:
    """Raises UserError if the installed transformers has no class with this name."""
    import transformers

    if not hasattr(transformers, name):
        raise UserError(
            f"to=huggingface: this model is a {name}, which transformers "
            f"{transformers.__version__} does not have: install a newer version"
        )


def write_model(loaded: Checkpoint, folder: Path, theirs: Any) -> None:
    """Writes the weights, the configurations and, for our own class, its source to `folder`.
    `theirs` is the class of transformers, or None for our own class."""
    model, vocab_size = loaded.config.model, loaded.tokenizer.vocab_size
    end_of_text = loaded.tokenizer.end_of_text
    weights = loaded.model.state_dict()
    if theirs is None:
        config = own_config(model, vocab_size=vocab_size, end_of_text=end_of_text)
        if model.tied_head:
            del weights["head.weight"]
        weights = {f"model.{name}": weight for name, weight in weights.items()}
        for name, source in source_files().items():
            write_atomically(folder / name, source)
    else:
        config = theirs.config(model, vocab_size=vocab_size, end_of_text=end_of_text)
        weights = theirs.to_theirs(model, weights)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    ends = {} if end_of_text is None else dict.fromkeys(names, end_of_text)
    write_json(folder / "config.json", {**ends, **config})
    write_json(folder / "generation_config.json", ends)
    save_weights(weights, folder / "model.safetensors")


def own_config(model: ModelConfig, *, vocab_size: int, end_of_text: int | None) -> dict[str, Any]:
    """The content of config.json for our own class."""
    module = "modeling_headscope"
    return {
        "architectures": [OWN_CLASS],
        "auto_map": {
            "AutoConfig": f"{module}.HeadscopeConfig",
            "AutoModelForCausalLM": f"{module}.{OWN_CLASS}",
        },
        "model_type": "headscope",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "end_of_text": end_of_text,
        "tie_word_embeddings": model.tied_head,
        "model": asdict(model),
    }


def write_tokenizer(loaded: Checkpoint, folder: Path) -> bool:
    """Writes the files of the tokenizer to `folder`, with the context length of the model, which
    not all classes have in config.json. Returns whether there are any files."""
    files = tokenizer_files(loaded.tokenizer)
    config = json.loads(files[CONFIG]) | {"model_max_length": loaded.model.block_size}
    files[CONFIG] = json.dumps(config, indent=2)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return bool(files)


def loading_code(folder: str, *, own_class: bool, with_tokenizer: bool) -> str:
    """The Python code that opens the folder."""
    path = json.dumps(folder, ensure_ascii=False)
    trust = ", trust_remote_code=True" if own_class else ""
    names = ["AutoModelForCausalLM", *(["AutoTokenizer"] if with_tokenizer else [])]
    lines = [
        f"from transformers import {', '.join(names)}",
        f"model = AutoModelForCausalLM.from_pretrained({path}{trust})",
    ]
    if with_tokenizer:
        lines.append(f"tokenizer = AutoTokenizer.from_pretrained({path}{trust})")
    return "\n".join(lines)
