"""Training with sharded parameters (FSDP2): each process keeps a part of every parameter, of its
gradient and of its optimizer state.

Before a block computes, its processes gather the block's parameters, and free them afterwards
(Zhao 2023: PyTorch FSDP).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from headscope.nn import GPT
from headscope.training.checkpoint_io import tensors_and_data, write_checkpoint
from headscope.training.optimizer import CombinedOptimizer


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
    or without sharding: the first process gathers all tensors, and writes one file."""

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
        tensors, data = tensors_and_data(checkpoint)
        tensors = whole_tensors(tensors)
        if self.is_global_zero:
            write_checkpoint(Path(filepath), tensors, data)

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
            for name in (optimizer.state_shapes() or {}).get(parameter_name, ())
            if name in state
        }
        optimizer.load_state_dict(parts)


def whole_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as whole tensors on the CPU, in the first process. Empty in the other processes.
    Every process must call this with the same names. Tied parameters stay one tensor."""
    first = torch.distributed.get_rank() == 0
    whole: dict[Tensor, Tensor] = {}
    for tensor in dict.fromkeys(tensors.values()):
        one = gathered(tensor.detach())
        if first:
            whole[tensor] = one.cpu()
    return {name: whole[tensor] for name, tensor in tensors.items()} if first else {}


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
    weights = whole_tensors(model.state_dict(keep_vars=True))
    if not weights:
        return None
    with torch.random.fork_rng():  # the training must not depend on this
        copy = build().to(model.device)
    copy.load_state_dict(weights)
    return copy
