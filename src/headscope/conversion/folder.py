"""Opens a model in a Hugging Face folder, proves that ours is the same, and runs no code in it."""

import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from headscope.config.parse import parse_part
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
from headscope.data.tokenizer_state import tokenizer_from_state
from headscope.errors import UserError, first_line, library_errors, short
from headscope.files import json_text, parse_json, read_json, write_atomically
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
    *("pytorch_model*.bin", "pytorch_model*.index.json", "chat_template.jinja"),
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt"),
    *("merges.txt", "*.model"),
]
"""The files that are read, and downloaded from the hub: settings, weights and tokenizer, but no
code."""

NO_WEIGHTS = re.compile(r"\b(attn|attention)\.(masked_)?bias$|inv_freq$")
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
    if path.suffix == ".gguf":
        raise UserError(f"source={source} does not exist: name a GGUF file")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=HUB_FILES))
    # OSError: no network, or no such model. ValueError: not a name, or nothing in the cache.
    except (OSError, ValueError) as error:
        problem = f"source={source} is no folder, GGUF file or .pt file here, and could not be"
        reason = f"({type(error).__name__}): {first_line(error)[:200]}"
        advice = "name the folder of a Hugging Face model, or a model on the hub"
        raise UserError(f"{problem} downloaded from the hub {reason}: {advice}") from error


def load_folder(
    folder: Path, *, block_size: int | None = None, keep_proof: bool = True
) -> TrainedModel:
    """The model in a Hugging Face folder, on the CPU, in evaluation mode and float32.

    `block_size` is a shorter context length than that of the model. By default it is the same, but
    at most `LONGEST` if the position encoding has no table. What is proven of these files is kept
    in the cache folder, so the next time transformers is not needed, unless `keep_proof` is false.

    Raises UserError if transformers is missing or cannot open the folder, or if headscope does not
    compute the same function as the model.
    """
    raw = read_config(folder)
    theirs = class_of(raw, folder)
    used = sorted({file for pattern in HUB_FILES for file in folder.glob(pattern)})
    kept = proof_file(used, block_size)
    try:
        proven = read_json(kept)
        if not isinstance(proven, dict) or proven.keys() != {"model", "tokenizer"}:
            proven = prove(folder, theirs, raw, block_size)
            if keep_proof:
                keep(kept, proven)
        model = parse_part(proven["model"], "model", composed=False)
        tokenizer = tokenizer_from_state(proven["tokenizer"])
        gpt = empty_model(model, tokenizer.vocab_size)
        load_weights(folder, theirs, gpt)
        return imported(folder, gpt, model, tokenizer, name=folder.absolute().name)
    except UserError as error:
        raise UserError(f"{folder}: {str(error).removeprefix(f'{folder}: ')}") from None


def proof_file(used: list[Path], block_size: int | None) -> Path:
    """The file in the cache folder that exists if a model was proven: with the files `used` of its
    folder and this context, with this code, and this version of torch."""
    code = sorted(Path(__file__).parents[1].rglob("*.py"))
    files = [(file.name, checksum_of(file)) for file in (*used, *code)]
    about = json_text([files, torch.__version__, block_size]).encode()
    return cache_folder("proofs", f"{hashlib.sha256(about).hexdigest()[:32]}.json")


def checksum_of(path: Path) -> str:
    with library_errors(f"{path} cannot be read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep(path: Path, proven: dict[str, Any]) -> None:
    with suppress(OSError, UserError):  # the cache folder cannot be written
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json_text(proven))


def prove(
    folder: Path, theirs: HuggingFaceClass, raw: dict[str, Any], block_size: int | None
) -> dict[str, Any]:
    """Proves that headscope computes what transformers computes. Returns our model and tokenizer as
    plain data. Raises UserError if it does not."""
    note(f"Comparing {folder} with transformers, once for these files")
    with transformers_for(folder):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder, **SAFE)
    try:
        model = our_config(theirs, config, block_size)
        tokenizer = read_tokenizer(folder, rows=config.vocab_size)
        gpt = empty_model(model, tokenizer.vocab_size)
        of_config = proof_file([folder / "config.json"], block_size)
        if read_json(of_config) != raw:  # other weights with these settings were not proven
            prove_architecture(folder, theirs, config, model)
            keep(of_config, raw)
        prove_weights(folder, theirs, config, gpt)
    except Unfit as error:
        problem = f"headscope cannot express this {theirs.name}: {error}"
        entries = unread(config, raw, theirs.keys.values())
        raise UserError(f"{problem}; config.json has {entries}" if entries else problem) from None
    return {"model": model, "tokenizer": tokenizer.state()}


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
    """Our model with the sizes and settings of theirs."""
    small = theirs.build(theirs.shortened(config))
    return with_context(theirs.read(config, set(theirs.parameters(small))), block_size)


def with_context(model: Part, block_size: int | None) -> Part:
    """`model` with the context `block_size`, as `load_folder` explains it."""
    check_block_size(block_size, model.block_size)
    if block_size or name_of(model.position) != "Learned":
        model.block_size = block_size or min(model.block_size, LONGEST)
    if not any(0 < window < model.block_size for window in model.windows or ()):
        model.windows = None
    return model


def empty_model(model: Part, vocab_size: int) -> GPT:
    """Our model, whose weights use no memory until they are written. Raises UserError if they do
    not fit in the memory that is left."""
    with WithoutInitialization():
        gpt = build_model(model, vocab_size=vocab_size).eval()
    size, left = sum(weight.nbytes for weight in gpt.parameters()), available_memory()
    if 1.5 * size + 0.5e9 > left:
        needs = f"its weights have {size / 1e9:,.1f} GB in float32"
        raise UserError(f"{needs}, and {left / 1e9:,.1f} GB of memory are left: end other programs")
    return gpt


def load_weights(folder: Path, theirs: HuggingFaceClass, gpt: GPT) -> None:
    """Puts the weights in the folder into `gpt`. Those in float32 stay in their file, mapped into
    memory: whoever writes to this file changes them. Raises UserError if they are not finite, and
    Unfit for other ones than those of `gpt`."""
    tensors: dict[str, Tensor] = {}
    with library_errors(f"{folder}: its weights cannot be read"):
        for file in weight_files(folder):
            tensors |= (
                load_file(file)
                if file.suffix == ".safetensors"
                else torch.load(file, map_location="cpu", weights_only=True)  # runs no code
            )
    weights = {name: each for name, each in tensors.items() if not NO_WEIGHTS.search(name)}
    theirs.copy_to_ours(theirs.in_files(weights, gpt), gpt)
    check_weights(gpt)


def check_weights(gpt: GPT) -> None:
    """Raises UserError if a weight is not finite."""
    for name, weight in gpt.named_parameters():
        if not is_finite(weight):
            raise UserError(f"the weights have values that are NaN or infinite, in our {name}")


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers reads: one, or several parts. Prefers safetensors."""
    for pattern in ("model.safetensors", "model-*.safetensors", "pytorch_model*.bin"):
        if files := sorted(folder.glob(pattern)):
            return files
    return []


def prove_architecture(folder: Path, theirs: HuggingFaceClass, config: Any, model: Part) -> float:
    """Raises NotEqual unless both compute the same function over the whole context: in float64,
    with random weights, and with one layer of each kind. Returns the largest difference."""
    small = theirs.shortened(config)
    with in_float64():
        drawn = theirs.build(small)
        short = theirs.read(small, set(theirs.parameters(drawn)))
        short.block_size = model.block_size
        gpt = random_model(short, small.vocab_size)
        theirs.fill(drawn, gpt, dict(gpt.named_parameters()))
        theirs.copy_to_ours(theirs.parameters(drawn), gpt)  # some of ours cannot have any value
        text = probe(gpt.vocab_size, gpt.block_size, None)
        with transformers_for(folder):
            expected = logits(drawn, *text)
        return compare(logits(gpt, *text), expected)


def prove_weights(folder: Path, theirs: HuggingFaceClass, config: Any, gpt: GPT) -> None:
    """Reads the weights into `gpt`. Raises NotEqual unless transformers gives the same logits with
    the weights that it reads, in float32, up to rounding: at the first positions, and at the last
    ones of a table. To save memory, transformers reads its weights first and forgets them."""
    import transformers

    longest = 256 + max(layer.layer_window or 0 for layer in gpt.attentions)
    text = probe(gpt.vocab_size, min(gpt.block_size, longest), None)
    table = theirs.position == "Learned"
    starts = {0, gpt.block_size - len(text[0][0])} if table else {0}
    with transformers_for(folder):
        loaded = getattr(transformers, theirs.name).from_pretrained(
            folder,
            config=config,
            use_safetensors=any(folder.glob("*.safetensors")),
            weights_only=True,  # of pytorch_model.bin: runs no code
            dtype=torch.float32,
            attn_implementation="eager",  # config.json may name code to download
            ignore_mismatched_sizes=True,  # load_weights names them
            **SAFE,
        )
        expected = {start: logits(loaded.eval(), *text, start) for start in starts}
    del loaded
    load_weights(folder, theirs, gpt)
    try:
        for start, of_theirs in expected.items():
            compare(logits(gpt, *text, start), of_theirs)
    except NotEqual as error:
        because = "both are the same function in float64: rounding, or wrong weights"
        raise NotEqual(f"{error}; {because}") from None
