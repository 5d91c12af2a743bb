"""What TensorBoard imports when it starts, in every environment in which headscope is installed.

So this module imports nothing that is slow or may fail: `load` imports the plugin.
"""

from argparse import Namespace

from tensorboard.plugins.base_plugin import TBContext, TBLoader, TBPlugin
from tensorboard.util import tb_logging

from headscope.analysis.headers import MAX_STEPS, PLUGIN
from headscope.errors import first_line


class AttentionLoader(TBLoader):
    """Loads the tab Attention."""

    def fix_flags(self, flags: Namespace) -> None:
        """By default, TensorBoard keeps ten snapshots, chosen at random."""
        flags.samples_per_plugin.setdefault(PLUGIN, MAX_STEPS)

    def load(self, context: TBContext) -> TBPlugin | None:
        """The plugin. If it cannot be loaded, TensorBoard starts without it and prints one line."""
        try:
            from headscope.show.tensorboard.plugin import AttentionPlugin

            return AttentionPlugin(context)
        except Exception as error:
            message = "the tab Attention is not available: headscope raised %s: %s"
            tb_logging.get_logger().warning(message, type(error).__name__, first_line(error))
            return None
