"""Updates the viewer in docs/demo.html, and keeps its data: python -m benchmarks.demo

`python -m benchmarks.docs demo` also trains the model of the demo again, in a minute."""

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

from headscope.show.viewer.page import attention_page

DEMO = Path(__file__).resolve().parents[1] / "docs" / "demo.html"


def data_of(page: str) -> dict[str, Any]:
    """The arguments of `attention_page` for a page that it wrote."""
    [text] = re.findall(r'id="data">(.*)</script>', page)
    data = json.loads(text)
    parts = re.findall(r'id="part-(\d+)">(.*)</script>', page)
    decoded = {number: b64decode(part) for number, part in parts}
    return {**data, "runs": [{**run, "parts": decoded} for run in data["runs"]]}


if __name__ == "__main__":
    DEMO.write_text(attention_page(**data_of(DEMO.read_text("utf-8"))), "utf-8")
