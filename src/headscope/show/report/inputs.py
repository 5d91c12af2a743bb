"""What a report is about: a checkpoint and its texts.

Shapes: N windows, T tokens.
"""

from dataclasses import dataclass

from torch import Tensor

from headscope.analysis.reading import Reading
from headscope.analysis.tokens import TokenKinds, classify_vocabulary
from headscope.data.encode import ValidationText
from headscope.data.windows import first_passage, spread_windows
from headscope.trained import TrainedModel
from headscope.trained.records import VALIDATION


@dataclass(frozen=True)
class ReportInput:
    """The checkpoint that a report analyses, and the texts for this analysis.

    - `reading`: the text of the attention maps.
    - `windows` (N, T): the tokens that the metrics are averaged over.
    - `kinds`: the kinds of tokens in the vocabulary.
    - `source`: a description of the windows, which the report contains.
    - `of_record`: whether the metrics are those of the record of the heads, instead.
    """

    loaded: TrainedModel
    reading: Reading
    windows: Tensor
    kinds: TokenKinds
    source: str
    of_record: bool

    @classmethod
    def of_validation(
        cls, loaded: TrainedModel, text: ValidationText, windows: int | None = None
    ) -> "ReportInput":
        """A report on a validation split. The attention maps show the `probe_text` of the corpus,
        or the beginning of the split. The metrics are averaged over windows from the whole split.
        `windows` is their number, by default the number with about 4,096 tokens."""
        length = loaded.model.block_size
        shown = loaded.tokens(text.probe or first_passage(text.tokens, length))[:length]
        spread = spread_windows(text.tokens, windows=windows, length=length)
        kinds = classify_vocabulary(loaded.tokenizer, text.tokens)
        return cls(loaded, loaded.read(shown), spread, kinds, VALIDATION, windows is None)

    @classmethod
    def of_text(cls, loaded: TrainedModel, text: str) -> "ReportInput":
        """A report on one text, with at most `block_size` of its tokens. One text is too short to
        tell which tokens are frequent, so no head is named frequent-token or rare-token."""
        reading = loaded.read(loaded.tokens(text)[: loaded.model.block_size])
        windows, kinds = reading.tokens[None].cpu(), classify_vocabulary(loaded.tokenizer)
        return cls(loaded, reading, windows, kinds, "the given text", False)
