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


def glossary() -> dict[str, dict[str, str]]:
    """The tables of the page by their titles: what each metric, name or word means."""
    tables = {}
    for section in GLOSSARY.read_text(encoding="utf-8").split("\n## ")[1:]:
        rows = re.findall(r"^\| `(.+?)` \| ([^|]+) \|", section, re.M)
        tables[section.split("\n")[0]] = {name.replace("`", ""): text for name, text in rows}
    return tables


def meanings() -> dict[str, dict[str, str]]:
    """What words on all pages, words of explore, names of heads, and metrics mean."""
    *metrics, names, words, of_explore = glossary().values()
    of_metrics = {name: meaning for table in metrics for name, meaning in table.items()}
    return {"words": words, "explore": of_explore, "names": names, "metrics": of_metrics}


def glossary_module() -> str:
    """The viewer's glossary.js, a JavaScript module. Metrics are written as on the pages."""
    text = json.dumps(meanings(), indent=2, ensure_ascii=False)
    text = re.sub("`(.+?)`", lambda word: f"“{word[1].replace('_', ' ')}”", text)
    return f"// Made from docs/glossary.md: edit that page.\nexport const GLOSSARY = {text};\n"
