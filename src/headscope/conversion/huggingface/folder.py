"""Opens a model in a Hugging Face folder: config.json, weights and tokenizer, but never code.

Shapes: R rows of a tensor.
"""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.checkpoint.building import WithoutInitialization, build_model
from headscope.checkpoint.file import is_finite
from headscope.config.model import ModelConfig
from headscope.config.parse import short
from headscope.conversion.huggingface.classes import CLASSES, HuggingFaceClass, class_of_type
from headscope.conversion.huggingface.classes.base import UNUSED
from headscope.conversion.huggingface.classes.table import Link, Table
from headscope.conversion.huggingface.weights import Weights, open_weights
from headscope.conversion.imported import imported_config
from headscope.conversion.loaded import Loaded
from headscope.data.hf_tokenizer import file_in, read_object, read_tokenizer
from headscope.errors import UserError
from headscope.nn import GPT

PART_BYTES = 2**24
"""The size of the parts in which large tensors are read."""


def is_model_folder(path: Path) -> bool:
    """Whether `path` is a folder with a config.json, as transformers writes it."""
    return path.is_dir() and (path / "config.json").exists()


def load_folder(folder: Path, *, block_size: int | None = None) -> Loaded:
    """The model in a Hugging Face folder, on the CPU, in evaluation mode and float32.

    `block_size` is a shorter context length than that of the model.

    Raises UserError if the folder is damaged, if its model is of another class than `CLASSES`, if
    it has a setting that our model cannot express, or if its weights do not fit its config.json.
    """
    if file_in(folder, "adapter_config.json"):
        raise UserError(
            f"{folder} has an adapter (adapter_config.json): merge it into its model with "
            "merge_and_unload() of peft, and save the result"
        )
    hf = read_object(folder, "config.json")
    if not hf:
        raise UserError(
            f"{folder} has no config.json: it is not a folder of a Hugging Face model; a "
            "run of headscope is converted with checkpoint= and to="
        )
    theirs = class_of(hf, folder)
    try:
        longest = theirs.model_config(hf).block_size
        config = theirs.model_config(hf, block_size=block_size)
        rows = hf.get("vocab_size")
        if type(rows) is not int or rows < 1:
            raise UserError(f"config.json: vocab_size={short(rows)} must be an integer from 1")
        with open_weights(folder) as weights:
            model = build(config, rows, weights)
            table = theirs.table(config)
            names = check_names(weights, expected_shapes(model, table, longest), theirs)
            # Before the weights, because it needs memory for a short time.
            tokenizer = read_tokenizer(folder, rows)
            copy_weights(model, table, weights, names)
            if config.tied_head and theirs.head in names:
                check_tied(model.embedding.weight, weights, names[theirs.head])
    except UserError as error:
        inside = str(folder) in str(error)
        raise error if inside else UserError(f"{folder}: {error}") from None
    name = folder.absolute().name
    return Loaded(
        path=folder,
        model=model.eval(),
        tokenizer=tokenizer,
        config=imported_config(config, tokenizer, name=name),
        step=0,
        precision="32-true",
    )


def class_of(hf: dict[str, Any], folder: Path) -> HuggingFaceClass:
    """The class of the model with this config.json. Raises UserError if it is not in `CLASSES`."""
    kind = hf.get("model_type")
    found = class_of_type(kind) if isinstance(kind, str) else None
    if kind == "headscope":
        raise UserError(
            f"{folder} is an export of our own class for transformers: use the checkpoint that it "
            "came from"
        )
    if found is None:
        code = "; the code in the folder is not run" if "auto_map" in hf else ""
        raise UserError(
            f"{folder}: config.json has model_type={short(kind)}, which headscope cannot read"
            f"{code}; it reads {', '.join(each.model_type for each in CLASSES)}"
        )
    return found


def build(config: ModelConfig, rows: int, weights: Weights) -> GPT:
    """A model without weights. Raises UserError if it has more layers or parameters than
    `weights`."""
    stored = sum(math.prod(shape) for shape in weights.shapes.values())
    with torch.device("meta"):
        one_layer = build_model(replace(config, layers=min(config.layers, 1)), vocab_size=rows)
    if config.layers > len(weights.shapes) or one_layer.parameter_count() > stored:
        raise UserError("config.json describes a larger model than its weights")
    with WithoutInitialization():
        return build_model(config, vocab_size=rows)


def expected_shapes(model: GPT, table: Table, longest: int) -> dict[str, tuple[int, ...]]:
    """The names and shapes of all tensors that this model has in their class. `longest` is the
    context length in the folder, which `model` may shorten."""
    shapes = {name: constant.shape for name, constant in table.constants.items()}
    ours = {name: weight.to("meta") for name, weight in model.state_dict().items()}
    if "position.table.weight" in ours:
        ours["position.table.weight"] = torch.empty(
            longest, ours["embedding.weight"].size(1), device="meta"
        )
    for link in table.links:
        parts = link.transform.split(ours[link.ours])
        shapes |= zip(link.theirs, (tuple(part.shape) for part in parts), strict=True)
    return shapes


def check_names(
    weights: Weights, expected: dict[str, tuple[int, ...]], theirs: HuggingFaceClass
) -> dict[str, str]:
    """Maps the name of each expected tensor to its name in the folder, which may lack the prefix
    of the class. Raises UserError if a tensor is missing, unexpected or has another shape."""
    names: dict[str, str] = {}
    for given in weights.shapes:
        if re.search(UNUSED, given):
            continue
        name = given if given in expected or given == theirs.head else theirs.prefix + given
        if name not in expected and name != theirs.head:
            raise UserError(f"the tensor {given[:80]!r} is not one of {theirs.name}")
        if name in names:
            raise UserError(f"the tensor {name[:80]!r} is there twice")
        names[name] = given
    for name, shape in expected.items():
        if name not in names:
            raise UserError(f"the tensor {name!r} of {theirs.name} is missing")
        if weights.shapes[names[name]] != shape:
            raise UserError(
                f"the tensor {name!r} has the shape {weights.shapes[names[name]]}, but by "
                f"config.json it must be {shape}"
            )
    return names


@torch.no_grad()
def copy_weights(model: GPT, table: Table, weights: Weights, names: dict[str, str]) -> None:
    """Copies all weights to `model`, one tensor after the other. `names` is the result of
    `check_names`. Raises UserError if a weight is NaN or infinite."""
    ours = model.state_dict()
    for name, constant in table.our_constants.items():
        ours[name].fill_(constant.value)
    for link in table.links:
        copy_link(ours[link.ours], link, weights, [names[name] for name in link.theirs])
        if not is_finite(ours[link.ours]):
            raise UserError(f"the tensor {link.theirs[0]!r} has values that are NaN or infinite")


def copy_link(ours: Tensor, link: Link, weights: Weights, names: list[str]) -> None:
    """Copies one of our parameters (R, ...). Tensors with the same rows are copied in parts. If
    ours has fewer rows, as a table of positions for a shorter context, the last are left out."""
    if not link.transform.by_row:
        ours.copy_(link.transform.join([weights.rows(name) for name in names]))
        return
    for start, stop in parts_of(ours):
        part = weights.rows(names[0], start, stop)
        ours[start:stop].copy_(link.transform.join([part]))


def parts_of(tensor: Tensor) -> list[tuple[int, int]]:
    """Ranges of rows of at most `PART_BYTES`, or one row."""
    rows = len(tensor)
    step = max(1, PART_BYTES * rows // max(1, tensor.nbytes))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def check_tied(embedding: Tensor, weights: Weights, name: str) -> None:
    """Raises UserError unless the output head equals the embedding."""
    same = weights.shapes[name] == embedding.shape and all(
        torch.equal(weights.rows(name, start, stop).float(), embedding[start:stop])
        for start, stop in parts_of(embedding)
    )
    if not same:
        raise UserError(
            f"{name!r} differs from the embedding, but by config.json the output head is tied: set "
            "tie_word_embeddings to false there if the head is meant"
        )
