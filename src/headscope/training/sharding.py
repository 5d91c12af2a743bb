"""Training with sharded parameters (FSDP2): each process keeps a part of every parameter, of its
gradient and of its optimizer state.

Before a block computes, its processes gather the block's parameters, and free them afterwards
(Zhao 2023: PyTorch FSDP).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from headscope.nn import GPT


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


def map_tensors(node: Any, function: Callable[[Tensor], Any]) -> Any:
    """Nested dictionaries and lists with `function(tensor)` in the place of each tensor."""
    if isinstance(node, Tensor):
        return function(node)
    if isinstance(node, Mapping):
        return {key: map_tensors(value, function) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(map_tensors(value, function) for value in node)
    return node


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for FSDP2, with checkpoints in the format of all other runs: any number
    of processes can resume from them, with or without sharding.

    When a checkpoint is saved, the first process gathers all tensors in CPU memory.
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
        return self.lightning_module.state_dict()

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return optimizer.state_dict()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        def to_first(tensor: Tensor) -> Tensor | None:
            whole = gathered(tensor)
            return whole.cpu() if self.is_global_zero else None

        content = map_tensors(checkpoint, to_first)
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(content, filepath)

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
