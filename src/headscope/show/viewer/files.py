"""The files of the viewer. One of them is made from docs/glossary.md: the meanings of metrics, of
names of heads, and of words on the pages."""

import json
import re
from pathlib import Path

STATIC = Path(__file__).with_name("static")
CONTENT_TYPES = {".js": "text/javascript", ".css": "text/css"}
PACKAGE = Path(__file__).parents[2]
INSTALLED = PACKAGE / "docs" / "glossary.md"
GLOSSARY = INSTALLED if INSTALLED.is_file() else PACKAGE.parents[1] / "docs" / "glossary.md"
"""The page in the wheel, or in the checkout of an editable installation."""


def viewer_files() -> dict[str, str]:
    """The modules and the style sheet of the viewer by name, with glossary.js."""
    files = [file for file in STATIC.iterdir() if file.suffix in CONTENT_TYPES]
    texts = {file.name: file.read_text("utf-8") for file in files}
    return {**texts, "glossary.js": glossary_module()}


def glossary() -> dict[str, dict[str, tuple[str, str]]]:
    """The tables of the page by their titles: what each metric, name or word means, and its
    definition or condition, or ""."""
    sections = GLOSSARY.read_text(encoding="utf-8").split("\n## ")[1:]
    row = re.compile(r"^\| `(.+?)` \| ([^|]+) \|(?: (.*)\|)?$", re.M)
    tables = {}
    for section in sections:
        title, rest = section.split("\n", 1)
        rows = row.findall(rest)
        tables[title] = {names.replace("`", ""): (meaning, more) for names, meaning, more in rows}
    return tables


def meanings() -> dict[str, dict[str, str]]:
    """What words on all pages, words of explore, names of heads, and metrics mean."""
    *metrics, names, words, of_explore = glossary().values()
    of_metrics = {name: row for table in metrics for name, row in table.items()}
    lists = {"words": words, "explore": of_explore, "names": names, "metrics": of_metrics}
    return {
        kind: {name: meaning for name, (meaning, _) in rows.items()} for kind, rows in lists.items()
    }


def glossary_module() -> str:
    """The viewer's glossary.js, a JavaScript module. Metrics are written as on the pages."""
    text = json.dumps(meanings(), indent=2, ensure_ascii=False)
    text = re.sub("`(.+?)`", lambda word: f"“{word[1].replace('_', ' ')}”", text)
    return f"// Made from docs/glossary.md: edit that page.\nexport const GLOSSARY = {text};\n"
