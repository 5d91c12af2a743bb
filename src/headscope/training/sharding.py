"""Training with sharded parameters (FSDP2): each process keeps a part of every parameter, of its
gradient and of its optimizer state.

Before a block computes, its processes gather the block's parameters, and free them afterwards
(Zhao 2023: PyTorch FSDP).
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from headscope.checkpoint.file import read
from headscope.checkpoint.shards import (
    FOLDER,
    checksums,
    folder_of,
    map_tensors,
    named_tensors,
    write_shards,
)
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.training.checkpoint_io import AtomicCheckpointIO
from headscope.training.run_folder import CHECKPOINTS, make_new


def shard(model: GPT, mesh: DeviceMesh) -> None:
    """Shards the parameters of `model` in place, block by block, over the processes of `mesh`. Does
    nothing if the model is already sharded."""
    if isinstance(model, FSDPModule):
        return
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # Training calls this method instead of `forward` if it computes the logits in chunks.
    register_fsdp_forward_method(model, "hidden")


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor, if it is sharded. Every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: Tensor) -> Tensor:
    """The part of the tensor that this process keeps."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for FSDP2. Any number of processes can resume from its checkpoints, with
    or without sharding.

    During training, checkpoints are sharded: each process writes the parts that it keeps (see
    `headscope.checkpoint.shards`). `consolidate` turns them into single files.
    """

    def __init__(self, processes: int) -> None:
        super().__init__(data_parallel_size=processes, tensor_parallel_size=1)

    @property
    def mesh(self) -> DeviceMesh:
        return self.device_mesh["data_parallel"]

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.lightning_module is not None
        return self.lightning_module.state_dict(keep_vars=True)  # tied weights stay one object

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return optimizer.state_dict()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Saves a sharded checkpoint, from which training can be resumed. If the checkpoint has
        only weights, saves one file instead, for analysis."""
        path = Path(filepath)
        if "optimizer_states" in checkpoint:
            content = self._written_shards(checkpoint, path.parent)
        else:
            content = map_tensors(checkpoint, self._to_first)
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(content, path)
            remove_unused_shards(path.parent)

    def _to_first(self, name: str, tensor: Tensor) -> Tensor | None:
        whole = gathered(tensor.detach())
        return whole.cpu() if self.is_global_zero else None

    def _written_shards(self, checkpoint: dict[str, Any], parent: Path) -> dict[str, Any]:
        """Writes the sharded tensors of `checkpoint` to a new folder in `parent`. Returns the rest
        of the checkpoint, for the checkpoint file."""
        sharded, tied = sharded_tensors(checkpoint)
        new = ""
        if self.is_global_zero:
            new = make_new(str(parent / f"shards_{checkpoint['global_step']}"))
        folder = Path(self.broadcast(new))
        write_shards(sharded, folder)
        self.barrier()
        rest = map_tensors(
            checkpoint,
            lambda name, tensor: torch.empty(0) if isinstance(tensor, DTensor) else tensor,
        )
        if self.is_global_zero:
            rest["shards"] = {"folder": folder.name, "files": checksums(folder), "tied": tied}
        return rest

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return self.checkpoint_io.load_checkpoint(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        module = self.lightning_module
        parts = module.state_dict()
        for name, whole in checkpoint["state_dict"].items():
            parts[name] = part_like(parts[name], whole)
        module.load_state_dict(parts, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            parts = {
                number: {key: part_like(parameters[number], whole) for key, whole in each.items()}
                for number, each in state["state"].items()
            }
            optimizer.load_state_dict(state | {"state": parts})


def sharded_tensors(content: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The sharded tensors in nested dictionaries and lists, by name. A tensor that occurs twice,
    such as the weights of a tied output head, is returned once; the second dictionary maps its
    second name to the first."""
    tensors: dict[str, Tensor] = {}
    first_names: dict[int, str] = {}
    tied = {}
    for name, tensor in named_tensors(content):
        if isinstance(tensor, DTensor):
            first = first_names.setdefault(id(tensor), name)
            if first == name:
                tensors[name] = tensor.detach()
            else:
                tied[name] = first
    return tensors, tied


def remove_unused_shards(folder: Path) -> None:
    """Removes the shards in `folder` that neither last.ckpt nor best.ckpt uses."""
    found = shard_folders(folder)
    if not found:
        return
    used = {shards_of(folder / name) for name in CHECKPOINTS}
    for each in found:
        if each not in used and each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)


def shard_folders(folder: Path) -> list[Path]:
    """All shards in `folder`, also those that no checkpoint uses."""
    return [each for each in folder.glob("shards_*") if FOLDER.fullmatch(each.name)]


def shards_of(path: Path) -> Path | None:
    """The folder with the shards of the checkpoint file `path`. None if there is no such file, or
    if it is damaged or not sharded."""
    try:
        return folder_of(read(path, with_shards=False), path)
    except UserError:
        return None


def consolidate(folder: Path) -> None:
    """Replaces the sharded checkpoints in `folder` by single files, and removes the shards. Needs
    as much memory as the largest checkpoint.

    Leaves a checkpoint with damaged shards as it is: it must not end the run, because the scripts
    use the other checkpoint instead.
    """
    if not shard_folders(folder):
        return
    for path in (folder / name for name in CHECKPOINTS):
        if shards_of(path):
            try:
                whole = read(path)
            except UserError:
                continue
            AtomicCheckpointIO().save_checkpoint(whole, path)
    remove_unused_shards(folder)


def part_like(template: Tensor, whole: Tensor) -> Tensor:
    """The part of `whole` that this process keeps, if `template` is a sharded tensor of the same
    shape. Otherwise `whole`."""
    if not isinstance(template, DTensor) or template.shape != whole.shape:
        return whole
    whole = whole.to(template.device)
    # Every process has read the whole tensor, so none is sent.
    return distribute_tensor(whole, template.device_mesh, template.placements, src_data_rank=None)


def whole_copy(model: GPT, build: Callable[[], GPT]) -> GPT | None:
    """A copy of the sharded `model` with whole parameters, in the first process. None in the other
    processes. Every process must call this. `build` returns a model of the same sizes."""
    weights = {}
    first = torch.distributed.get_rank() == 0
    for name, weight in model.state_dict().items():
        whole = gathered(weight)
        if first:
            weights[name] = whole
    if not first:
        return None
    with torch.random.fork_rng():  # the training must not depend on this
        copy = build().to(model.device)
    copy.load_state_dict(weights)
    return copy
