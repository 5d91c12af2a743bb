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

from headscope.checkpoint import read
from headscope.checkpoint.shards import FOLDER, entry_of, write_shards
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.training.checkpoint_io import tensors_and_data, write_checkpoint
from headscope.training.optimizer import CombinedOptimizer
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
        tensors, data = tensors_and_data(checkpoint)
        unique, data["tied"] = without_ties(tensors)
        if "training" in data:
            sharded = {name: each for name, each in unique.items() if isinstance(each, DTensor)}
            folder = self._write_shards(sharded, path.parent, data["step"])
            unique = {name: each for name, each in unique.items() if name not in sharded}
            if self.is_global_zero:
                data["shards"] = entry_of(folder)
        else:  # every process takes part
            unique = {name: gathered(each) for name, each in unique.items()}
        if self.is_global_zero:
            write_checkpoint(path, unique, data)
            remove_unused_shards(path.parent)

    def _write_shards(self, tensors: Mapping[str, Tensor], parent: Path, step: int) -> Path:
        """Writes the sharded tensors to a new folder in `parent`. Returns the folder."""
        new = make_new(str(parent / f"shards_{step}")) if self.is_global_zero else ""
        folder = Path(self.broadcast(new))
        write_shards(tensors, folder)
        self.barrier()
        return folder

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
        [optimizer], [state] = self.optimizers, checkpoint["optimizer_states"]
        assert isinstance(optimizer, CombinedOptimizer)
        parts = {
            name: part_like(parameter, state[name])
            for parameter, parameter_name in optimizer.names.items()
            for name in optimizer.state_shapes().get(parameter_name, ())
            if name in state
        }
        optimizer.load_state_dict(parts)


def without_ties(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Like `headscope.checkpoint.file.without_ties`, for the parameters of a sharded model: tied
    parameters are the same object."""
    first_names = {id(tensor): name for name, tensor in reversed(tensors.items())}
    unique = {name: tensors[name].detach() for name in first_names.values()}
    tied = {name: first_names[id(tensor)] for name, tensor in tensors.items()}
    return unique, {name: first for name, first in tied.items() if name != first}


def remove_unused_shards(folder: Path) -> None:
    """Removes the shards in `folder` that neither last.safetensors nor best.safetensors uses."""
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
        shards = read(path).data.get("shards")
    except UserError:
        return None
    return path.parent / shards["folder"] if shards else None


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
            stored = read(path)
            try:
                tensors = stored.tensors("")
            except UserError:
                continue
            data = {key: each for key, each in stored.data.items() if key != "shards"}
            write_checkpoint(path, tensors, data)
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
