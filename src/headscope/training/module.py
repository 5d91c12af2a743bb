"""What one optimizer step and one validation do, and what they log.

`training_step` reads like the loop of a plain PyTorch trainer. Lightning calls it, moves batches to
the device, and saves and restores checkpoints.

Shapes: B batch, T tokens, V vocab_size.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor, nn

from headscope.checkpoint.file import is_finite
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.loss import IGNORED, Answers, bits_per_byte, counted_targets
from headscope.nn.precision import no_autocast
from headscope.seeds import mixed_seed
from headscope.training.callbacks.clock import timer_paused
from headscope.training.objective import Objective, compile_in_place
from headscope.training.optimizer import CombinedOptimizer

Schedule = Callable[[int], float]


class LanguageModel(LightningModule):
    """Trains `model` to predict the next token.

    The learning rate depends only on the step. The random numbers of a step (for dropout) depend
    only on (seed, step, rank). So a resumed run needs no saved state of a scheduler or random
    number generator.

    - `byte_lengths` (V,): the number of bytes of each token.
    - `text_per_token_byte`: the bytes of the validation text per byte of its tokens (see
      `TokenStore`).
    - `compile_model`: whether to compile the model for training. If compilation fails, `warn` is
      called with the reason, and training continues without compilation.
    - `loss_chunk_tokens`: the argument `chunk_tokens` of `Objective`.
    - `answers`: if it is not None, the losses count only these targets (see `counted_targets`).
    - `how_to_continue`: a function that returns advice for the user. The error message shows the
      advice when the loss or a weight is NaN or infinite.
    - `contents`: plain data that is saved in every checkpoint, such as the configuration.
    """

    byte_lengths: Tensor

    def __init__(
        self,
        *,
        model: GPT,
        optimizer: Callable[[nn.Module], CombinedOptimizer],
        schedule: Schedule,
        byte_lengths: Tensor,
        text_per_token_byte: float,
        seed: int,
        gradient_clip: float,
        log_every_steps: int,
        compile_model: bool,
        loss_chunk_tokens: int | Literal["auto"] | None,
        answers: Answers | None,
        warn: Callable[[str], None],
        how_to_continue: Callable[[], str],
        contents: dict[str, Any],
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # `training_step` calls the optimizer
        self.model = model
        self.objective = Objective(model, chunk_tokens=loss_chunk_tokens)
        self.make_optimizer = optimizer
        self.schedule = schedule
        self.register_buffer("byte_lengths", byte_lengths, persistent=False)
        self.text_per_token_byte = text_per_token_byte
        self.seed = seed
        self.gradient_clip = gradient_clip
        self.log_every_steps = log_every_steps
        self.compile_model = compile_model
        self.answers = answers
        self.warn = warn
        self.how_to_continue = how_to_continue
        self.contents = contents
        self.latest_loss: float | None = None
        self.running_loss = torch.zeros(())
        self.running_count = 0  # batches in the sum

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = self.make_optimizer(self.model)
        self.groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        return optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.require_finite_weights()
        checkpoint["headscope"] = self.contents
        # The sums of all processes are saved, because the next logged `train/loss` is a mean that
        # includes steps before this checkpoint.
        sums = torch.zeros(self.trainer.world_size, device=self.device)
        sums[self.global_rank] = self.running_loss
        sums = self.trainer.strategy.reduce(sums, reduce_op="sum")
        checkpoint["running_loss"] = {"sum": sums.tolist(), "count": self.running_count}
        checkpoint["threads"] = torch.get_num_threads()
        checkpoint["processes"] = self.trainer.world_size

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        running, processes = checkpoint["running_loss"], self.trainer.world_size
        sums = torch.tensor(running["sum"], dtype=torch.float32).reshape(-1)
        self.running_loss = sums[self.global_rank] if len(sums) == processes else sums.mean()
        self.running_count = running["count"]
        # Lightning's counters follow from the step, which is one batch of the only epoch.
        loops, step = self.trainer.fit_loop.state_dict(), checkpoint["global_step"]
        for counter in ("total", "current"):
            loops["epoch_progress"][counter] |= {"ready": 1, "started": 1}
            for name in ("batch_progress", "manual_optimization.optim_step_progress"):
                counts = loops[f"epoch_loop.{name}"][counter]
                counts |= dict.fromkeys(counts, step)
        checkpoint["loops"] = {"fit_loop": loops}

    # --- training ---

    def on_train_start(self) -> None:
        # load_state_dict also restores the old learning rates; overwrite them from the
        # configuration.
        for group, settings in zip(self._param_groups(), self.groups, strict=True):
            group.update(settings)
        self.running_loss = self.running_loss.to(self.device)

    def training_step(self, batches: list[tuple[Tensor, Tensor]], index: int) -> Tensor:
        """One optimizer step, which is one batch for Lightning. Its gradient is that of the mean
        loss over `batches`, pairs of inputs and targets (B, T), which are computed one after
        another to save memory. Returns the loss of the last batch."""
        optimizer: Any = self.optimizers()
        precision = self.trainer.precision_plugin
        seed(self.device, mixed_seed(self.seed, self.global_step, self.global_rank))
        batches = [(x, counted_targets(x, targets, self.answers)) for x, targets in batches]
        counted = self.counted_per_batch(batches)
        for group, settings in zip(self._param_groups(), self.groups, strict=True):
            group["lr"] = settings["lr"] * self.schedule(self.global_step)
        # Lightning turns autocast on for all of this method, but only the forward pass needs it.
        with no_autocast(batches[0][0]):
            if self.compile_model:
                self.compile_objective(batches[0])
            for number, batch in enumerate(batches):
                with self.gradients_stay_here(number < len(batches) - 1):
                    with precision.forward_context():
                        loss = self.objective.loss(*batch, counted)
                    self.manual_backward(loss / len(batches))
                self.running_loss.add_(loss.detach())
            parameters, limit = self.model.parameters(), self.gradient_clip or math.inf
            grad_norm = nn.utils.clip_grad_norm_(parameters, limit)
            optimizer.step()
            optimizer.zero_grad()
        self.running_count += len(batches)
        if self.global_step % self.log_every_steps == 0 or self.global_step == 1:
            self.log_step(grad_norm)
        return loss.detach()

    def counted_per_batch(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor | None:
        """The mean number of targets per batch that the loss of this step counts, over the batches
        of all processes. The mean of (loss sum of a batch / this number) is then the mean over all
        counted targets, although batches count different numbers of them. None if all targets
        count. Raises UserError if none does."""
        if self.answers is None:
            return None
        of_batches = [(targets != IGNORED).sum() for _, targets in batches]
        counted = self.trainer.strategy.reduce(
            torch.stack(of_batches).float().mean(), reduce_op="mean"
        )
        if not counted:
            raise UserError(
                f"step {self.global_step + 1} has no answer to learn from: raise model.block_size, "
                "best to the length of two documents or more"
            )
        return counted

    def compile_objective(self, batch: tuple[Tensor, Tensor]) -> None:
        self.compile_model = False
        with timer_paused(self.trainer):
            precision = self.trainer.precision_plugin.forward_context()
            problem = compile_in_place(self.objective, batch, precision)
        if problem:
            self.warn(f"trainer.compile: not compiled ({problem})")

    def gradients_stay_here(self, later: bool) -> AbstractContextManager[None]:
        """Inside the `with` block, the processes do not exchange gradients, if they do so `later`
        for all batches of the step."""
        strategy = self.trainer.strategy
        if later and isinstance(strategy, ParallelStrategy):
            return strategy.block_backward_sync()
        return nullcontext()

    def log_step(self, grad_norm: Tensor) -> None:
        """Logs the mean loss of all steps since the last logged step."""
        total = self.trainer.strategy.reduce(self.running_loss, reduce_op="mean")
        self.latest_loss = float(total) / self.running_count
        self.require_finite(self.latest_loss, "training")
        self.running_loss.zero_()
        self.running_count = 0
        self.log_scalars(
            {
                "train/loss": self.latest_loss,
                # The last group uses optimizer.lr, even if other groups use optimizer.matrix_lr.
                "train/lr": self._param_groups()[-1]["lr"],
                "train/grad_norm": float(grad_norm),
            }
        )

    def mean_loss(self) -> float | None:
        """The mean training loss of the steps after the last logged step. Directly after a logged
        step, or if other processes have computed a part of it, this method returns the logged
        loss."""
        if self.running_count and self.trainer.world_size == 1:
            return float(self.running_loss) / self.running_count
        return self.latest_loss

    # --- validation ---

    def on_validation_epoch_start(self) -> None:
        dtype = torch.float32 if self.device.type == "mps" else torch.float64  # mps has no float64
        self.totals = torch.zeros(3, dtype=dtype, device=self.device)  # nats, tokens, bytes

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        if not len(inputs):  # the other processes have one batch more
            return
        targets = counted_targets(inputs, targets, self.answers)
        self.totals[0] += self.objective.loss_sum(inputs, targets)
        counted = targets[targets != IGNORED]
        self.totals[1] += counted.numel()
        self.totals[2] += self.byte_lengths[counted].sum()

    def on_validation_epoch_end(self) -> None:
        nats, tokens, size = self.trainer.strategy.reduce(self.totals, reduce_op="sum").tolist()
        if not tokens:
            raise UserError("validation counts answers, but finds none: raise model.block_size")
        self.require_finite(nats / tokens, "validation")
        metrics = {
            "val/loss": nats / tokens,
            "val/bits_per_byte": bits_per_byte(nats, size * self.text_per_token_byte),
        }
        # Early stopping, CheckpointSaver and Trainer.validate read these metrics from the trainer.
        self.log_dict(metrics, logger=False)
        if self.trainer.state.fn == "fit":
            self.log_scalars(metrics)

    def require_finite(self, loss: float, kind: str) -> None:
        """Raises UserError if `loss` is NaN or infinite, which means that training has diverged."""
        if not math.isfinite(loss):
            raise UserError(self.diverged(f"the {kind} loss is {loss}"))

    def require_finite_weights(self) -> None:
        """Raises UserError if a weight is NaN or infinite."""
        for name, weight in self.model.named_parameters():
            if not is_finite(weight):
                raise UserError(self.diverged(f"the weights of {name} are not finite"))

    def diverged(self, symptom: str) -> str:
        """The error message for training that has diverged."""
        return (
            f"{symptom} at step {self.global_step}: try a lower optimizer.lr (with Muon also "
            "optimizer.matrix_lr) or a longer schedule.warmup_steps; "
            f"{self.how_to_continue()}"
        )

    def log_scalars(self, metrics: dict[str, float]) -> None:
        for logger in self.loggers:
            logger.log_metrics(metrics, step=self.global_step)

    def _param_groups(self) -> list[dict[str, Any]]:
        return self.trainer.optimizers[0].param_groups


def seed(device: torch.device, number: int) -> None:
    """Seeds the global random generators of the CPU and of `device`. `torch.manual_seed` is a
    thousand times slower, because it also seeds the generators of all other device types."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)
    elif device.type == "mps":
        torch.mps.manual_seed(number)
