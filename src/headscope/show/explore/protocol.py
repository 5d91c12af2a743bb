"""The requests of the page, a notebook or a test, as schemas. See docs/explore.md."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from headscope.analysis.ablation import By
from headscope.config.parse import Count, NonNegative, Positive, parse
from headscope.errors import UserError

VERSION = 4
MAX_TEXT = 100_000
"""Maximum number of characters of a text."""
MAX_NEW_TOKENS = 10_000
MAX_ENTRIES = {"tokens": MAX_TEXT, "other_tokens": MAX_TEXT, "also": 500, "copies": 500, "walk": 50}
MAX_HEADS = 5_000
"""Maximum number of entries of the lists above, and of any other list."""


@dataclass(kw_only=True)
class OpenRequest:
    model: str = "this"


@dataclass(kw_only=True)
class ExamplesRequest(OpenRequest):
    head: str


@dataclass(kw_only=True)
class SwitchedText(OpenRequest):
    """A text or token ids, its model, and the heads that are off, at their mean, or at half.
    `begin`, `special` and `question` are the options of `Tokenizer.typed`."""

    text: str | None = None
    tokens: list[Count] | None = None
    begin: bool | None = None
    special: bool | None = None
    question: bool = False
    zero: list[str] = field(default_factory=list)
    mean: list[str] = field(default_factory=list)
    half: list[str] = field(default_factory=list)

    def typing(self) -> dict[str, Any]:
        """How the text is read, for `Tokenizer.typed`."""
        question = self.question and self.text is not None
        return {"begin": self.begin, "special": self.special, "question": question}

    def switches(self) -> dict[str, Any]:
        return {"zero": self.zero, "mean": self.mean, "half": self.half}


@dataclass(kw_only=True)
class Sampling:
    temperature: NonNegative = 1.0
    top_k: Positive | None = None
    top_p: float | None = None

    def options(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}


@dataclass(kw_only=True)
class ReadRequest(SwitchedText, Sampling):
    """The answer also has what the model `against` with its heads makes of the same text."""

    position: int = -1
    target: Count | None = None
    also: list[Count] = field(default_factory=list)
    layers: list[Count] = field(default_factory=list)
    against: SwitchedText | None = None


@dataclass(kw_only=True)
class DecidersRequest(SwitchedText):
    """The token `target` after the token at `position`, without each part of the model."""

    position: int = -1
    target: Count | None = None
    by: By = "mean"


@dataclass(kw_only=True)
class Edge:
    """A query of a head and a key, by default the one with the largest weight."""

    head: str
    query: int = -1
    key: int | None = None


@dataclass(kw_only=True)
class WhyRequest(SwitchedText, Edge):
    """How a head computes the weight of the query on the key, and where it comes from."""


@dataclass(kw_only=True)
class WriteRequest(SwitchedText, Sampling):
    max_new_tokens: Annotated[int, 0, MAX_NEW_TOKENS] = 60
    seed: Count = 0
    skip: Annotated[int, 0, MAX_TEXT] = 0


@dataclass(kw_only=True)
class Copy:
    """The output of a head at one position of the other text, or at all positions."""

    head: str
    position: Count | None = None


@dataclass(kw_only=True)
class PatchRequest(SwitchedText):
    other: str | None = None
    other_tokens: list[Count] | None = None
    copies: list[Copy] = field(default_factory=list)
    right: Count | None = None
    wrong: Count | None = None
    every_head: bool = False


@dataclass(kw_only=True)
class ExportRequest(ReadRequest, WriteRequest):
    """A file with what `read` shows. A page opens on `head`, and also has the reading `against`
    which this one is compared. It explains the edges of the `walk` from one head to another."""

    head: str | None = None
    walk: list[Edge] = field(default_factory=list)
    format: Literal["html", "csv", "python"]


REQUESTS: dict[str, type] = {
    "open": OpenRequest,
    "examples": ExamplesRequest,
    "read": ReadRequest,
    "write": WriteRequest,
    "deciders": DecidersRequest,
    "why": WhyRequest,
    "patch": PatchRequest,
    "export": ExportRequest,
}


def parse_request(name: str, data: Any) -> Any:
    """The request `name` from JSON data. Raises UserError if it is not valid."""
    if not isinstance(data, dict):
        raise UserError("the request must be a JSON object")
    for key, value in data.items():
        if isinstance(value, list) and len(value) > (most := MAX_ENTRIES.get(key, MAX_HEADS)):
            raise UserError(f"{key[:80]} has more than {most:,} entries")
    request: Any = parse(REQUESTS[name], data)
    for key in ("text", "other"):
        text = getattr(request, key, None) or ""
        if len(text) > MAX_TEXT:
            raise UserError(f"{key} has more than {MAX_TEXT:,} characters: shorten it")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(f"{key} is not valid UTF-8: it contains half of a surrogate pair")
    return request
