"""How much sooner one recipe reaches a loss than another: both train in full, in turn."""

from copy import deepcopy
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headscope.analysis.pictures.style import BLUE, ORANGE
from headscope.benchmarks.runner import Figures, Request, Result, summarize, trained
from headscope.benchmarks.show import Line, Lines
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.callbacks.clock import clock_of
from headscope.training.process import prepare_process

OF_TRAINER = ("trainer.accelerator", "trainer.precision", "trainer.compile")
SHARED = ("data", "tokenizer", "store_dir", *OF_TRAINER)
"""Beginnings of the overrides that hold for both recipes."""


def measure(request: Request) -> Result:
    """Train both recipes once with each seed. The loss is that of the whole validation split, every
    `suite.every_steps`; the time is that of training alone, until the loss is at most
    `suite.target`, or until the end if it never is or there is no target."""
    plan, configs = request.suite, recipes(request)
    if not plan.seeds:
        raise UserError("suite.seeds=[] must name at least one seed")
    prepare_process()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in configs}

    def train(name: str) -> Figures:
        seed = plan.seeds[len(runs[name])]
        config, losses = deepcopy(configs[name]), ValidationLosses()
        config.seed = seed
        config.trainer.val_every_steps = min(plan.every_steps, config.trainer.max_steps)
        parameters = trained(config, losses, validate_all=True).model.parameter_count()
        marks = losses.marks
        below = [mark for mark in marks if plan.target is not None and mark["loss"] <= plan.target]
        last, seconds = marks[-1], below[0]["seconds"] if below else None
        run = {"side": name, "seed": seed, "parameters": parameters, "last_loss": last["loss"]}
        run |= {"train_seconds": last["seconds"], "target_seconds": seconds, "marks": marks}
        runs[name].append(run)
        return {"seconds": seconds or last["seconds"], "last_loss": last["loss"]}

    measured = request.alternate({name: partial(train, name) for name in runs}, len(plan.seeds))
    ours, theirs = runs
    faster = summarize(measured, reference=ours)[1]["seconds"]["ratio"]
    goal = "finishes training" if plan.target is None else f"reaches {plan.target} nats"
    if plan.target is not None and not all(run["target_seconds"] for run in runs[ours]):
        goal = f"does not always reach {plan.target} nats; it finishes training"
    result = f"{ours} {goal} {faster['median']:.2f} times as fast as {theirs}"
    rows = [*runs[ours], *runs[theirs]]
    lines = []
    for row in rows:
        seconds, losses = ([mark[key] for mark in row["marks"]] for key in ("seconds", "loss"))
        colour = ORANGE if row["side"] == ours else BLUE
        lines.append(Line(row["side"], seconds, losses, colour, "o"))
    if plan.target is not None:
        end = max(row["train_seconds"] for row in rows)
        lines.append(Line(f"target: {plan.target}", [0, end], [plan.target] * 2))
    return Result(
        {"Training, in seconds": rows},
        ["seed", "parameters", "last_loss", "train_seconds", "target_seconds"],
        f"{result} (median; {faster['min']:.2f} to {faster['max']:.2f})",
        f"{result}\nmedian of {len(plan.seeds)} seed(s), in turn",
        [Lines("validation loss, nats per token", "seconds of training alone", lines)],
        figures={"times_faster": faster},
    )


def recipes(request: Request) -> dict[str, TrainConfig]:
    """Both recipes by name. Raises UserError when their losses cannot be compared."""
    plan, run = request.suite, request.run
    name = request.choices["experiment"] or run.name
    if plan.against == name:
        raise UserError(f"suite.against={plan.against} is the recipe itself: name another one")
    shared = [word for word in request.words if word.startswith(SHARED)]
    other = request.compose(TrainConfig, "train", [*shared, f"experiment={plan.against}"])
    for key in ("data", "tokenizer"):
        if getattr(run, key) != getattr(other, key):
            raise UserError(
                f"{name} and {plan.against} differ in {key}, so their losses per token cannot be "
                f"compared: give both the same, as {key}=..."
            )
    for side in (run, other):
        side.trainer.max_steps = min(side.trainer.max_steps, plan.max_steps or 2**62)
    return {name: run, plan.against: other}


class ValidationLosses(Callback):
    """Notes the loss at every validation, and the seconds of training until then."""

    def __init__(self) -> None:
        self.marks: list[dict[str, float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        mark = {"step": trainer.global_step, "seconds": clock_of(trainer).seconds()}
        self.marks.append({**mark, "loss": float(trainer.callback_metrics["val/loss"])})
