"""Builds attention.html: the attention viewer and its data in a single file that works offline."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STATIC = Path(__file__).with_name("static")
ENTRY = "page.js"
TAB_ONLY = "tab.js"
IMPORT = re.compile(r'(?<=from ")\./(?=\w+\.js")')
"""Modules in data: URLs cannot import one another by relative names. So `./dom.js` becomes
`dom.js`. The import map of the page resolves these names."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)


def attention_page(*, title: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """The HTML text of a page that shows the attention of one or more runs over training steps.

    Each run has a `name`, the name of its `text`, its `history` from `viewer.history`,
    and its `parts`: the bytes of each part by the key in the history. All texts are escaped, so
    that no text can end a script of the page or add HTML.
    """
    parts: list[bytes] = []
    shown = []
    for run in runs:
        history = dict(run["history"])
        steps = []
        for step in history["steps"]:
            numbers = range(len(parts), len(parts) + len(step["parts"]))
            parts += [run["parts"][key] for key in step["parts"]]
            steps.append({**step, "parts": [str(number) for number in numbers]})
        shown.append(
            {"name": run["name"], "text": run["text"], "history": history | {"steps": steps}}
        )
    modules = {
        file.name: f"data:text/javascript;base64,{_base64(_bare_imports(file).encode())}"
        for file in sorted(STATIC.glob("*.js"))
        if file.name != TAB_ONLY
    }
    data = {"title": title, "runs": shown}
    scripts = [
        f'<script type="application/json" id="data">{_script_safe(data)}',
        *(
            f'<script type="application/octet-stream" id="part-{number}">{_base64(part)}'
            for number, part in enumerate(parts)
        ),
        f'<script type="importmap">{_script_safe({"imports": modules})}',
        f'<script type="module">import "{ENTRY}";',
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            '<link rel="icon" href="data:,">',
            "<title>Attention heads</title>",
            f"<style>\n{(STATIC / 'viewer.css').read_text('utf-8')}</style>",
            "</head>",
            "<body>",
            "<noscript>This page needs JavaScript, which is disabled in your browser.</noscript>",
            *(f"{script}</script>" for script in scripts),
            "</body>",
            "</html>\n",
        ]
    )


def _bare_imports(file: Path) -> str:
    return IMPORT.sub("", file.read_text("utf-8"))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _script_safe(data: Mapping[str, Any]) -> str:
    """Encode `data` as ASCII JSON in which an HTML parser finds no tag, no entity and no
    comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
