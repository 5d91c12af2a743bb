"""When the heads of a model in training are measured."""

from collections.abc import Collection
from functools import partial
from typing import Any

from headscope.analysis.head_types import Thresholds
from headscope.analysis.own_metrics import HeadMetric
from headscope.analysis.record import HeadRecord
from headscope.nn.capture import evaluating
from headscope.trained.records import digest_of, head_recorder


class HeadPlan:
    """The steps at which the heads of a `LanguageModel` in training are measured, and how. Each
    callback says in its `setup` what it needs. Heads are measured once per step, for all of them:

    - at the steps that are `shown`, and, if there are any, at those that are `kept` and the `last`;
    - where these are more than `every` steps apart (0: never), also every `every` steps.
    """

    def __init__(self) -> None:
        self.shown: Collection[int] = ()
        self.kept: Collection[int] = ()
        self.every, self.last = 0, 0
        self.windows: int | None = None
        self.thresholds, self.own = Thresholds(), dict[str, HeadMetric]()
        self.steps: Collection[int] = ()
        self.latest: HeadRecord | None = None
        self.texts: partial[HeadRecord] | None = None

    @property
    def measures(self) -> bool:
        return bool(self.shown or self.every)

    def begin(self, last: int) -> None:
        """Chooses the `steps` of a training until step `last`."""
        self.last, self.latest, self.texts = last, None, None
        planned = {*self.shown, *self.kept, last} if self.measures else set()
        between = {
            step
            for step in range(0, last, self.every or last)
            if self.every and not any(step - self.every < other < step for other in planned)
        }
        self.steps = planned | between

    def record(self, module: Any) -> HeadRecord:
        """The record of the heads after the current step."""
        step = module.global_step
        if self.latest is None or self.latest.step != step:
            stays = step in self.kept or step == self.last
            digest = digest_of(module.state_dict()) if stays else ""
            with evaluating(module.model):
                self.latest = self.recorder(module)(module.model, digest=digest, step=step)
        return self.latest

    def recorder(self, module: Any) -> partial[HeadRecord]:
        """Measures heads on the validation split, which is read once."""
        if self.texts is None:
            store = module.data.store
            options: Any = {"thresholds": self.thresholds, "own": self.own, "windows": self.windows}
            self.texts = head_recorder(module.model, store.tokenizer, store.validation, **options)
        return self.texts
