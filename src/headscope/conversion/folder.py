"""Opens a model in a Hugging Face folder, proves that ours is the same, and runs no code in it."""

import hashlib
import json
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope import nn
from headscope.config.parts import Part
from headscope.conversion.classes import CLASSES, HuggingFaceClass, Unfit, name_of
from headscope.conversion.imported import check_block_size, imported
from headscope.conversion.proof import (
    LONGEST,
    NotEqual,
    compare,
    in_float64,
    logits,
    probe,
    random_model,
)
from headscope.conversion.settings import SAFE, transformers_for, unread
from headscope.conversion.tokenizer_files import read_tokenizer
from headscope.errors import UserError, first_line, short
from headscope.files import parse_json
from headscope.machine import available_memory
from headscope.nn import GPT
from headscope.terminal import note
from headscope.trained import TrainedModel
from headscope.trained.checkpoint import build_model
from headscope.trained.checkpoint.file import is_finite
from headscope.trained.checkpoint.loading import WithoutInitialization
from headscope.trained.records import cache_folder

HUB_FILES = [
    *("config.json", "generation_config.json", "model*.safetensors", "model*.index.json"),
    *("tokenizer*.json", "special_tokens_map.json", "vocab.json", "merges.txt", "vocab.txt"),
]
"""The files that are downloaded from the hub: settings, weights and tokenizer, but no code."""

NO_WEIGHTS = re.compile(r"attn\.(masked_)?bias$|attention\.(masked_)?bias$|inv_freq$")
"""The names of tensors in old folders that are not weights: causal masks and constants."""


MISSING = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "norms with the gain 1 + weight"),
    **dict.fromkeys(("olmo2", "olmo3"), "norms of what the branches of a block add"),
    **dict.fromkeys(("phi", "phi3"), "such blocks: one norm for both branches, or fused matrices"),
    "smollm3": "layers without positions among those with rotary ones",
}
"""The part of some classes that headscope lacks."""


def folder_of(source: str) -> Path:
    """The local folder of the model `source`. The files of a model on the hub are downloaded to the
    hub's cache. Raises UserError if there is no such folder, or if the download fails."""
    path = Path(source)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=HUB_FILES))
    # OSError: no network, or no such model. ValueError: not a name, or nothing in the cache.
    except (OSError, ValueError) as error:
        problem = f"source={source} is not a folder here or a .pt file of nanoGPT, and could not be"
        reason = f"({type(error).__name__}): {first_line(error)[:200]}"
        advice = "name the folder of a Hugging Face model, or a model on the hub"
        raise UserError(f"{problem} downloaded from the hub {reason}: {advice}") from error


def load_folder(folder: Path, *, block_size: int | None = None) -> TrainedModel:
    """The model in a Hugging Face folder, on the CPU, in evaluation mode and float32.

    `block_size` is a shorter context length than that of the model. By default it is the same, but
    at most `LONGEST` if the position encoding has no table.

    Raises UserError if transformers is missing or cannot open the folder, or if headscope does not
    compute the same function as the model.
    """
    raw = read_config(folder)
    theirs = class_of(raw, folder)
    with transformers_for(folder):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder, **SAFE)
    try:
        model = our_config(theirs, config, block_size)
        gpt = empty_model(model, config.vocab_size)
        tokenizer = read_tokenizer(folder, rows=gpt.vocab_size)
        check_memory(gpt)
        loaded = load_weights(folder, theirs, config, gpt)
        opened = imported(folder, gpt, model, tokenizer, name=folder.absolute().name)
        proof_of_these = proof_file(raw, opened)
        if not proof_of_these.exists():
            note(f"Comparing {folder} with transformers, once for these files")
            prove_architecture(folder, theirs, config, model)
            prove_weights(folder, gpt, loaded, tokenizer.end_of_text)
            keep(proof_of_these)
        return opened
    except Unfit as error:
        problem = f"{folder}: headscope cannot express this {theirs.name}: {error}"
        entries = unread(config, raw, theirs.keys.values())
        raise UserError(f"{problem}; config.json has {entries}" if entries else problem) from None
    except UserError as error:
        raise UserError(f"{folder}: {str(error).removeprefix(f'{folder}: ')}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json. Raises UserError unless it has the whole model in float32."""
    try:
        raw = parse_json(folder / "config.json")
    except (OSError, ValueError) as error:
        problem = f"{folder} is not a Hugging Face model: its config.json cannot be read ({error})"
        raise UserError(f"{problem}; to convert a run, give checkpoint= and to=") from None
    if not isinstance(raw, dict):
        raise UserError(f"{folder}: config.json is not a JSON object")
    refused = ("quantization_config", "transformers_weights")  # other weights than those there
    partial = [f"config.json with {key}" for key in refused if raw.get(key) is not None]
    if (folder / "adapter_config.json").exists():
        partial.append("an adapter (adapter_config.json)")
    if partial:
        problem = f"{folder} has {partial[0]}, so its weights are not the whole model in float32"
        advice = "load it with transformers, call merge_and_unload() for an adapter, and save it"
        raise UserError(f"{problem}: {advice} again in float32")
    return raw


def class_of(raw: dict[str, Any], folder: Path) -> HuggingFaceClass:
    """The class of the model with this config.json. Raises UserError if it is not in `CLASSES`."""
    kind = str(raw.get("model_type"))
    for each in CLASSES:
        if each.model_type == kind:
            return each
    if kind == "headscope":
        raise UserError(f"{folder} is an export of headscope: use the checkpoint it came from")
    if kind in MISSING:
        problem = f"{folder}: headscope cannot read {kind}: it has no {MISSING[kind]}"
        raise UserError(f"{problem}; it reads {', '.join(each.model_type for each in CLASSES)}")
    code = "; the code in the folder is not run" if "auto_map" in raw else ""
    problem = f"{folder}: config.json has model_type={short(kind)}, which headscope cannot read"
    raise UserError(f"{problem}{code}; it reads {', '.join(each.model_type for each in CLASSES)}")


def our_config(theirs: HuggingFaceClass, config: Any, block_size: int | None) -> Part:
    """Our model with the sizes and settings of theirs. Its context is `block_size`, by default
    theirs, but at most `LONGEST` if the position encoding has no table."""
    small = theirs.build(theirs.shortened(config))
    model = theirs.read(config, set(theirs.parameters(small)))
    check_block_size(block_size, model.block_size)
    if block_size or name_of(model.position) != "Learned":
        model.block_size = block_size or min(model.block_size, LONGEST)
    if not any(0 < window < model.block_size for window in model.windows or ()):
        model.windows = None
    return model


def empty_model(model: Part, vocab_size: int) -> GPT:
    """Our model, whose weights use no memory until they are written."""
    with WithoutInitialization():
        return build_model(model, vocab_size=vocab_size).eval()


def check_memory(gpt: GPT) -> None:
    """Raises UserError if the weights do not fit in the memory that is left."""
    size, left = sum(weight.nbytes for weight in gpt.parameters()), available_memory()
    if 1.5 * size + 0.5e9 > left:
        needs = f"its weights have {size / 1e9:,.1f} GB in float32"
        raise UserError(f"{needs}, and {left / 1e9:,.1f} GB of memory are left: end other programs")


def load_weights(folder: Path, theirs: HuggingFaceClass, config: Any, gpt: GPT) -> Any:
    """Puts the weights in the folder into `gpt`. Returns the model of transformers. Raises
    UserError if the weights are not complete or not finite."""
    import transformers

    with transformers_for(folder):
        loaded, problems = getattr(transformers, theirs.name).from_pretrained(
            folder,
            config=config,
            use_safetensors=any(folder.glob("*.safetensors")),
            weights_only=True,  # of pytorch_model.bin: runs no code
            dtype=torch.float32,
            attn_implementation="eager",  # config.json may name code to download
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below
            **SAFE,
        )
    for kind, names in problems.items():
        for name in sorted(names):  # a name, or a name with two shapes
            if not NO_WEIGHTS.search(str(name)):
                raise UserError(f"the weights do not fit config.json: {kind} {str(name)[:200]}")
    theirs.copy_to_ours(loaded, gpt)
    for name, weight in gpt.named_parameters():
        if not is_finite(weight):
            raise UserError(f"the weights have values that are NaN or infinite, in our {name}")
    return loaded.eval()


def proof_file(raw: Any, opened: TrainedModel) -> Path:
    """The file in the cache folder that exists if this model was proven: with these entries of
    config.json, weights and context, with this code, and these versions of the libraries."""
    import transformers

    folders = [Path(__file__).parent, Path(nn.__file__).parent]
    ours = b"".join(file.read_bytes() for each in folders for file in sorted(each.rglob("*.py")))
    programs = [zlib.crc32(ours), transformers.__version__, torch.__version__]
    about = json.dumps([raw, opened.digest, opened.model.block_size, programs], sort_keys=True)
    return cache_folder("proofs", hashlib.sha256(about.encode()).hexdigest()[:32])


def keep(proof: Path) -> None:
    with suppress(OSError):  # the cache folder cannot be written
        proof.parent.mkdir(parents=True, exist_ok=True)
        proof.touch()


def prove_architecture(folder: Path, theirs: HuggingFaceClass, config: Any, model: Part) -> None:
    """Raises NotEqual unless both compute the same function over the whole context: in float64,
    with random weights, and with one layer of each kind."""
    small = theirs.shortened(config)
    with in_float64():
        drawn = theirs.build(small)
        short = theirs.read(small, set(theirs.parameters(drawn)))
        short.block_size = model.block_size
        gpt = random_model(short, small.vocab_size)
        theirs.fill(drawn, gpt, dict(gpt.named_parameters()))
        theirs.copy_to_ours(drawn, gpt)  # some parameters of ours cannot have any value
        prove(folder, gpt, drawn, *probe(gpt.vocab_size, gpt.block_size, None))


def prove_weights(folder: Path, gpt: GPT, theirs: Any, end_of_text: int | None) -> None:
    """Raises NotEqual unless both models give the same logits in float32, up to rounding."""
    try:
        prove(folder, gpt, theirs, *probe(gpt.vocab_size, min(gpt.block_size, 256), end_of_text))
    except NotEqual as error:
        because = "both are the same function in float64: rounding, or wrong weights"
        raise NotEqual(f"{error}; {because}") from None


def prove(folder: Path, gpt: GPT, theirs: Any, tokens: Tensor, positions: Tensor) -> None:
    """Raises NotEqual unless both models give the same logits."""
    with transformers_for(folder):
        expected = logits(theirs, tokens, positions)
    compare(logits(gpt, tokens, positions), expected)
