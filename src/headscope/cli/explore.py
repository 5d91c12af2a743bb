"""The command explore: serves the page on which one types and watches a model."""

import sys
import webbrowser

from omegaconf import DictConfig

from headscope.cli import command_line
from headscope.stop import stop_on_signal
from headscope.terminal import printable


def main() -> None:
    command_line.run(explore, "explore")


def explore(composed: DictConfig) -> None:
    """Loads the models, and serves the page until a signal ends the process."""
    from headscope import checkpoint
    from headscope.config.parse import from_hydra
    from headscope.config.scripts import ExploreConfig
    from headscope.explore.answers import Explorer
    from headscope.explore.models import Models
    from headscope.explore.server import serve

    config = from_hydra(ExploreConfig, composed)
    device = checkpoint.pick_device(config.device)
    with stop_on_signal():
        print("Loading the model and measuring its heads", file=sys.stderr)
        models = Models(config.checkpoint, config.other, str(device), config.parts)
        for model in models.opened.values():
            print(
                printable(f"Exploring {model.loaded.path}, step {model.loaded.step:,}"),
                file=sys.stderr,
            )
        thread, address = serve(Explorer(models), config.host, config.port, config.allowed_hosts)
        print(f"Open {address} (Ctrl-C ends the page)", flush=True)
        if config.open_browser:
            webbrowser.open(address)
        thread.join()
