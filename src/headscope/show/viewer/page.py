"""Builds attention.html: the attention viewer and its data in a single file that works offline."""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from headscope.show.viewer.files import viewer_files

SKELETON = Path(__file__).with_name("page.html")
IMPORT = re.compile(r'(?<=from ")\./(?=\w+\.js")')
"""Modules in data: URLs cannot import one another by relative names. So `./dom.js` becomes
`dom.js`. The import map of the page resolves these names."""


def attention_page(
    *,
    title: str,
    runs: Sequence[Mapping[str, Any]],
    start: Mapping[str, Any] | None = None,
    captions: Sequence[Mapping[str, str]] = (),
) -> str:
    """The HTML text of a page that shows the attention of one or more runs over training steps.

    `start` are entries of the viewer's state, such as `token` and `head`. `captions` are the lines
    below its title: each has a `text` and perhaps the address `href` of a link.

    Each run has a `name`, the name of its `text`, its `history` from `viewer.history`,
    its `parts`: the bytes of each part by the key in the history, and perhaps `why`, explanations
    of edges. All texts are escaped, so that no text can end a script of the page or add HTML.
    """
    parts: list[bytes] = []
    shown = []
    for run in runs:
        steps = []
        for step in run["history"]["steps"]:
            numbers = range(len(parts), len(parts) + len(step["parts"]))
            parts += [run["parts"][key] for key in step["parts"]]
            steps.append({**step, "parts": [str(number) for number in numbers]})
        history = {**run["history"], "steps": steps}
        own = {"name": run["name"], "text": run["text"], "why": run.get("why", [])}
        shown.append({**own, "history": history})
    files = viewer_files()
    style = files.pop("viewer.css")
    del files["tab.js"]
    sources = {name: IMPORT.sub("", text).encode() for name, text in sorted(files.items())}
    script = "data:text/javascript;base64,"
    modules = {name: script + b64encode(source).decode() for name, source in sources.items()}
    elements = [
        f'<script type="application/octet-stream" id="part-{number}">'
        f"{b64encode(part).decode()}</script>"
        for number, part in enumerate(parts)
    ]
    data = {"title": title, "runs": shown, "start": start or {}, "captions": captions}
    return Template(SKELETON.read_text("utf-8")).substitute(
        style=style,
        data=_script_safe(data),
        parts="\n".join(elements),
        modules=_script_safe({"imports": modules}),
    )


def _script_safe(data: Mapping[str, Any]) -> str:
    """ASCII JSON in which an HTML parser finds no tag, no entity and no comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
