"""What an optimizer step and a validation do and log, as in the loop of a plain PyTorch trainer.

Shapes: B batch, T tokens, V vocab_size.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor, nn

from headscope.data.module import TokenDataModule
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.held import HELD, restore_held
from headscope.nn.loss import IGNORED, Answers, bits_per_byte, counted_targets
from headscope.nn.precision import no_autocast
from headscope.seeds import mixed_seed
from headscope.trained.checkpoint.file import is_finite
from headscope.training.head_plan import HeadPlan
from headscope.training.loggers import log_scalars
from headscope.training.muon import CombinedOptimizer
from headscope.training.objective import Objective, compile_in_place
from headscope.training.timer import TrainingTimer


class Diverged(UserError):
    """Raised when the loss or a weight is NaN or infinite."""

    def __init__(self, symptom: str) -> None:
        lower = "try a lower optimizer.lr (with Muon also optimizer.matrix_lr)"
        super().__init__(f"{symptom}: {lower} or a longer schedule.warmup_steps")


class LanguageModel(LightningModule):
    """Trains `model` to predict the next token, with the batches of a `TokenDataModule`, in a
    `lightning.Trainer` (see docs/lightning.md).

    The learning rate depends only on the step, and the random numbers of a step (for dropout) only
    on (seed, step, rank), so a resumed run needs no saved state of them.

    - `tokenizer`: that of the text. Its bytes per token give the metric `val/bits_per_byte`.
    - `optimizer`: a function of the model that makes an optimizer, such as `headscope.muon` with
      its options bound by `functools.partial`.
    - `schedule`: maps the step to a factor of all learning rates (see `Schedule`).
    - `gradient_clip`: the maximum norm of the gradient. 0 means no clipping.
    - `compile_model`: whether to compile the model. If that fails, the reason is printed.
    - `loss_chunk_tokens`: the argument `chunk_tokens` of `Objective`.
    - `answers`: if it is not None, the losses count only these targets (see `counted_targets`).
    """

    byte_lengths: Tensor  # (V,) the number of bytes of each token
    text_per_token_byte = 1.0  # the bytes of the validation text per byte of its tokens
    logs_validate = True  # whether `Trainer.validate` logs its metrics

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        *,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        schedule: Callable[[int], float] = lambda step: 1.0,
        seed: int = 1,
        gradient_clip: float = 1.0,
        compile_model: bool = False,
        loss_chunk_tokens: int | Literal["auto"] | None = "auto",
        answers: Answers | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # `training_step` calls the optimizer
        self.model, self.tokenizer, self.answers = model, tokenizer, answers
        self.objective = Objective(model, chunk_tokens=loss_chunk_tokens)
        self.make_optimizer, self.schedule = optimizer, schedule
        self.seed, self.gradient_clip, self.compile_model = seed, gradient_clip, compile_model
        byte_lengths = torch.from_numpy(tokenizer.byte_lengths())
        self.register_buffer("byte_lengths", byte_lengths, persistent=False)
        self.data: TokenDataModule | None = None
        self.timer = TrainingTimer()
        self.heads = HeadPlan()
        self.timed = (0, 0.0)  # step and training seconds at the last log entry
        self.latest_loss: float | None = None
        self.running_loss = torch.zeros(())
        self.running_count = 0  # batches in the sum
        self.began = False  # whether `Trainer.fit` has begun its first batch

    def setup(self, stage: str) -> None:
        trainer: Any = self.trainer  # Lightning does not declare all attributes
        self.log_every_steps: int = trainer.log_every_n_steps or 10**9  # 0: never
        if isinstance(trainer.datamodule, TokenDataModule):
            self.data = trainer.datamodule
            self.text_per_token_byte = self.data.store.text_per_token_byte

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = self.make_optimizer(self.model)
        if not isinstance(optimizer, CombinedOptimizer):  # such as torch.optim.SGD
            optimizer = CombinedOptimizer([optimizer], self.model)
        self.rates = [group["lr"] for group in optimizer.param_groups]
        return optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, weight in self.model.named_parameters():
            if not is_finite(weight):
                raise Diverged(f"the weights of {name} are not finite at step {self.global_step}")
        # The next logged `train/loss` is a mean that includes steps before this checkpoint.
        sums = torch.zeros(self.trainer.world_size, device=self.device)
        sums[self.global_rank] = self.running_loss
        sums = self.trainer.strategy.reduce(sums, reduce_op="sum")
        checkpoint["language_model"] = {
            "running_loss": sums.tolist(),
            "running_count": self.running_count,
            "threads": torch.get_num_threads(),
            "processes": self.trainer.world_size,
            **self.timer.state_dict(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        weights = restore_held(self.model, checkpoint["state_dict"])
        none = {name: torch.zeros_like(own) for name, own in self.held_buffers().items()}
        checkpoint["state_dict"] = none | weights
        if self._trainer is None or self.trainer.state.fn != "fit":
            return
        state = checkpoint["language_model"]
        processes = self.trainer.world_size
        sums = torch.tensor([float(each) for each in state["running_loss"]])
        self.running_loss = sums[self.global_rank] if len(sums) == processes else sums.mean()
        self.running_count = int(state["running_count"])
        self.timer.load_state_dict(state)

    def teardown(self, stage: str) -> None:
        if stage == "fit":
            self.heads = HeadPlan()  # another Trainer has other callbacks

    # --- training ---

    def on_train_start(self) -> None:
        self.began = False
        self.heads.begin(self.trainer.max_steps)
        self.running_loss = self.running_loss.to(self.device)
        self.timed = (self.global_step, self.timer.seconds())
        self.set_rates()
        trainer: Any = self.trainer
        for each in trainer.callbacks:
            # It stopped this run, which was then resumed. A new run has a `wait_count` of 0.
            if isinstance(each, EarlyStopping) and each.wait_count >= max(1, each.patience):
                trainer.should_stop = True
        # Lightning 2.6 loses a step of `self.log` if a run that ended between validations resumes.
        loop, every = trainer.fit_loop.epoch_loop, trainer.val_check_batch
        if loop.restarted_on_last and (every is None or self.global_step % every):
            loop._batches_that_stepped = self.global_step

    def set_rates(self) -> None:
        """Sets the learning rates of the next step by the configuration, also in a resumed run."""
        factor = self.schedule(self.global_step)
        for group, rate in zip(self.trainer.optimizers[0].param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.clear_held_at_first_batch()
        self.timer.resume()

    def clear_held_at_first_batch(self) -> bool:
        """At the first batch of `Trainer.fit`, ends what the checkpoint holds, and returns True:
        the callbacks `Hold`, which Lightning calls first, hold what their settings say. A run that
        resumes, but trains no more, keeps what its checkpoint holds."""
        first, self.began = not self.began, True
        for buffer in self.held_buffers().values() if first else ():
            buffer.zero_()
        return first

    def held_buffers(self) -> dict[str, Tensor]:
        return {name: each for name, each in self.named_buffers() if HELD.fullmatch(name)}

    def training_step(self, batches: list[tuple[Tensor, Tensor]], index: int) -> Tensor:
        """One optimizer step, on the mean loss over `batches`, pairs of inputs and targets (B, T),
        one after another to save memory. Returns the loss of the last one."""
        optimizer: Any = self.optimizers()
        precision = self.trainer.precision_plugin
        seed(self.device, mixed_seed(self.seed, self.global_step, self.global_rank))
        batches = [(x, counted_targets(x, targets, self.answers)) for x, targets in batches]
        counted = self.counted_per_batch(batches)
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
        self.set_rates()
        return loss.detach()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step >= self.trainer.max_steps > 0:
            self.trainer.should_stop = True  # makes Lightning validate after the last step

    def counted_per_batch(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor | None:
        """The number by which the sum of the losses of each batch is divided: the mean number of
        counted targets per batch, over all processes. The mean over batches is then the mean over
        counted targets. None if all targets count. Raises UserError if none does."""
        if self.answers is None:
            return None
        counts = torch.stack([(targets != IGNORED).sum() for _, targets in batches])
        counted = self.trainer.strategy.reduce(counts.float().mean(), reduce_op="mean")
        if not counted:
            problem = f"step {self.global_step + 1} has no answer to learn from"
            raise UserError(f"{problem}: raise model.block_size, best to two documents or more")
        return counted

    def compile_objective(self, batch: tuple[Tensor, Tensor]) -> None:
        self.compile_model = False
        precision = self.trainer.precision_plugin.forward_context()
        with self.timer.paused():
            if problem := compile_in_place(self.objective, batch, precision):
                self.print(f"trainer.compile: not compiled ({problem})")

    def gradients_stay_here(self, later: bool) -> AbstractContextManager[None]:
        """Inside the `with` block, the processes exchange no gradients, if they do so `later`."""
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
        self.log("train/loss", self.latest_loss, prog_bar=True, logger=False)
        metrics = {
            "train/loss": self.latest_loss,
            # The last group uses optimizer.lr, even if other groups use optimizer.matrix_lr.
            "train/lr": self.trainer.optimizers[0].param_groups[-1]["lr"],
            "train/grad_norm": float(grad_norm),
        }
        (step, seconds), self.timed = self.timed, (self.global_step, self.timer.seconds())
        if self.global_step > 1 and self.data:
            tokens = (self.global_step - step) * self.data.tokens_per_step
            metrics["train/tokens_per_second"] = tokens / (self.timed[1] - seconds)
        log_scalars(self.trainer, metrics, self.global_step)

    # --- validation ---

    def on_validation_start(self) -> None:
        self.timer.pause()

    def on_train_end(self) -> None:
        self.timer.pause()

    def on_validation_epoch_start(self) -> None:
        dtype = torch.float32 if self.device.type == "mps" else torch.float64  # mps has no float64
        self.totals = torch.zeros(3, dtype=dtype, device=self.device)  # nats, tokens, bytes

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor | None:
        """The mean loss of the batch, in nats per token. None if other processes have one more."""
        inputs, targets = batch
        if not len(inputs):
            return None
        targets = counted_targets(inputs, targets, self.answers)
        nats = self.objective.loss_sum(inputs, targets)
        counted = targets[targets != IGNORED]
        self.totals[0] += nats
        self.totals[1] += counted.numel()
        self.totals[2] += self.byte_lengths[counted].sum()
        return nats / max(1, counted.numel())

    def on_validation_epoch_end(self) -> None:
        nats, tokens, size = self.trainer.strategy.reduce(self.totals, reduce_op="sum").tolist()
        if not tokens:
            raise UserError("validation counts answers, but finds none: raise model.block_size")
        self.require_finite(nats / tokens, "validation")
        bits = bits_per_byte(nats, size * self.text_per_token_byte)
        metrics = {"val/loss": nats / tokens, "val/bits_per_byte": bits}
        # Early stopping, CheckpointSaver and Trainer.validate read them from the trainer.
        fitting = self.trainer.state.fn == "fit"
        self.log_dict(metrics, prog_bar=True, logger=self.logs_validate and not fitting)
        if fitting and not self.trainer.sanity_checking:
            log_scalars(self.trainer, metrics, self.global_step)

    def require_finite(self, loss: float, kind: str) -> None:
        """Raises Diverged if `loss` is NaN or infinite."""
        if not math.isfinite(loss):
            raise Diverged(f"the {kind} loss is {loss} at step {self.global_step}")


def seed(device: torch.device, number: int) -> None:
    """Seeds the global random generators of the CPU and of `device`. `torch.manual_seed` is a
    thousand times slower, because it also seeds the generators of all other device types."""
    torch.default_generator.manual_seed(number)
    if device.type != "cpu":
        getattr(torch, device.type).manual_seed(number)
