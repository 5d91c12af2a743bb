"""Reads the tables of docs/glossary.md, and makes the viewer's glossary from them:
python -m benchmarks.glossary > src/headscope/show/viewer/static/glossary.js
"""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "glossary.md"
ROW = re.compile(r"^\| `(.+?)` \| (.+) \|$", re.MULTILINE)


def tables() -> dict[str, dict[str, str]]:
    """The tables of the page by their titles: what each metric or name means."""
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {
        text.partition("\n")[0]: {
            name: meaning.replace(r"\|", "|") for name, meaning in ROW.findall(text)
        }
        for text in sections
    }


def metrics() -> dict[str, str]:
    """What each metric means."""
    *of_metrics, _ = tables().values()
    return {name: text for table in of_metrics for name, text in table.items()}


def head_names() -> dict[str, str]:
    """What each name of a head means."""
    return tables()["Names of heads"]


def as_javascript() -> str:
    """The text of glossary.js, a JavaScript module."""
    lines = ["// Generated from docs/glossary.md: edit that page."]
    for name, texts in {"METRICS": metrics(), "HEAD_NAMES": head_names()}.items():
        lines.append(f"export const {name} = {json.dumps(texts, indent=2)};")
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_javascript())
