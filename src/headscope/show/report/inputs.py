"""What a report is about: a checkpoint, its texts, and what was measured of its heads.

Shapes: L layers, H heads per layer, N windows, T tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.reading import Reading
from headscope.analysis.record import HeadRecord
from headscope.data.windows import first_passage
from headscope.trained import TrainedModel
from headscope.trained.ablations import AblationResult
from headscope.trained.records import VALIDATION


@dataclass(frozen=True)
class ReportInput:
    """The checkpoint that a report analyses, and the texts for this analysis.

    - `tokens`: the text of the attention maps.
    - `windows` (N, T): the tokens on which heads are compared, and in which examples are found.
    - `source`: a description of the windows, which the report contains.
    """

    loaded: TrainedModel
    tokens: list[int]
    windows: Tensor
    source: str

    @classmethod
    def of_validation(cls, loaded: TrainedModel, windows: int | None = None) -> "ReportInput":
        """A report on the validation split. The attention maps show the `probe_text` of the corpus,
        or the beginning of the split. `windows` is the number of windows from the whole split, by
        default the number with about 4,096 tokens."""
        text, length = loaded.validation, loaded.model.block_size
        shown = loaded.tokens(text.probe or first_passage(text.tokens, length))[:length]
        return cls(loaded, shown, loaded.validation_windows(windows), VALIDATION)

    @classmethod
    def of_text(cls, loaded: TrainedModel, text: str) -> "ReportInput":
        """A report on one text, with at most `block_size` of its tokens."""
        tokens = loaded.tokens(text)[: loaded.model.block_size]
        return cls(loaded, tokens, torch.tensor([tokens]), "the given text")


@dataclass(frozen=True)
class HeadsAtStep:
    """What a report says of all heads at one training step.

    - `reading`: what the text of the report does to the model, and `record`: what the heads do.
    - `similarity` (L H, L H): the cosine similarity of each pair of heads on the windows.
    - `ablation`: the effect of removing each head.
    """

    reading: Reading
    record: HeadRecord
    similarity: Tensor
    ablation: AblationResult | None

    @property
    def changes(self) -> Mapping[str, Tensor]:
        """The metrics (L, H) of the ablation, if there is one."""
        return self.ablation.metrics if self.ablation else {}
