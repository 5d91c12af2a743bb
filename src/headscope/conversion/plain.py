"""Writes a checkpoint as plain weights, and reads them again: convert.py to=safetensors.

model.safetensors has the weights with the names of our own modules, in float32. A tied output head
is not stored twice. config.json has the entries of a checkpoint that are plain data:

- `headscope.config`: the configuration of the run, with the keys of conf/train.yaml;
- `headscope.tokenizer`: the complete tokenizer;
- `headscope.precision`, `headscope.format`, and `global_step`, the training step.
"""

import stat
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from headscope.checkpoint import Checkpoint, contents
from headscope.checkpoint.file import Damaged, check_content
from headscope.checkpoint.finding import pick_device
from headscope.checkpoint.loading import from_content
from headscope.conversion.new_folder import new_folder
from headscope.conversion.proof import NotEqual, probe
from headscope.conversion.weights_file import save_weights, write_json
from headscope.errors import UserError
from headscope.files import parse_json, read_json


@torch.no_grad()
def export_safetensors(loaded: Checkpoint, output: Path) -> list[str]:
    """Writes `loaded` to the new folder `output`. Returns lines to print. Raises NotEqual, and
    leaves no files, if the folder, read again, gives other logits."""
    weights = loaded.model.state_dict()
    if loaded.config.model.tied_head:
        del weights["head.weight"]
    entry = contents(
        config=loaded.config,
        tokenizer=loaded.tokenizer,
        store="none",
        precision=loaded.precision,
    )
    with new_folder(output) as folder:
        write_json(folder / "config.json", {"headscope": entry, "global_step": loaded.step})
        save_weights(weights, folder / "model.safetensors")
        tokens, _ = probe(loaded)
        tokens = tokens.to(loaded.model.device)
        again = load_plain(folder, device=loaded.model.device).model(tokens)
        if not torch.equal(again, loaded.model(tokens)):
            raise NotEqual("the weights, read again, give other logits")
    return [
        f"Checked: the folder was read again, and its logits are equal on {tokens.numel()} tokens.",
        f"Written: {output}/model.safetensors and config.json",
    ]


def is_plain_folder(path: Path) -> bool:
    """Whether `path` is a folder with the config.json of `export_safetensors`."""
    content = read_json(path / "config.json") if path.is_dir() else None
    return isinstance(content, dict) and "headscope" in content


def load_plain(folder: Path, *, device: str | torch.device = "cpu") -> Checkpoint:
    """Loads a folder that `export_safetensors` wrote. The model is on `device`, in evaluation mode.

    Raises UserError if files are missing or damaged, or do not fit this version of headscope.
    """
    try:
        size = regular_size(folder / "model.safetensors")
        content: Any = parse_json(folder / "config.json")
        weights = load_file(folder / "model.safetensors")
        if not isinstance(content, dict):
            raise Damaged("its config.json has no keys")
        if "head.weight" not in weights and "embedding.weight" in weights:
            weights["head.weight"] = weights["embedding.weight"]
        content["state_dict"] = {f"model.{name}": weight for name, weight in weights.items()}
        nodes = (folder / "config.json").stat().st_size + len(weights)
        check_content(content, nodes=nodes, size=size)
    except (Damaged, OSError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{folder} is not a folder of to=safetensors: {reason}") from error
    return from_content(content, folder, pick_device(str(device)))


def regular_size(path: Path) -> int:
    """The size of a file in bytes. Raises Damaged if it is not a regular file: reading a pipe could
    wait forever."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path.name} is not a regular file")
    return status.st_size
