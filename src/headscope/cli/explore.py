"""The command explore: serves the page on which one types and watches a model."""

import os
import webbrowser

from headscope.config.parse import Count, Texts
from headscope.terminal import note, step_name


def explore(
    *,
    parts: Texts,
    checkpoint: str | None,
    other: str | None,
    text: str | None,
    begin: bool | None,
    special: bool,
    host: str,
    port: Count,
    allowed_hosts: list[str],
    open_browser: bool,
    device: str,
) -> None:
    """Loads the models, and serves the page until a signal ends the process."""
    from headscope.show.explore.answers import Explorer
    from headscope.show.explore.models import Models
    from headscope.show.explore.server import serve

    note("Loading the model")
    file = text and os.path.expanduser(text)
    models = Models(checkpoint, other, device, parts, file, begin, special)
    for model in models.opened.values():
        step, last = step_name(model.loaded.known_step), model.last or 0
        place = f"best ({step} of {last:,})" if last > model.loaded.step else step
        note(f"Exploring {model.loaded.path}, {place}")
    thread, address = serve(Explorer(models), host, port, allowed_hosts)
    print(f"Open {address} (Ctrl-C ends the page)", flush=True)
    if open_browser:
        webbrowser.open(address)
    thread.join()
