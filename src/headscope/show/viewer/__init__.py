"""The attention viewer: one page of plain JavaScript that shows attention over training steps, in
TensorBoard's tab Attention and in attention.html. This folder imports neither torch nor Hydra."""

PLUGIN = "headscope"
"""The name of the TensorBoard plugin, which also marks its data in event files."""

TAB = f"http://localhost:6006/#{PLUGIN}"
"""The address of the tab, unless TensorBoard is started with another port."""

SNAPSHOTS = "attention"
"""The TensorBoard tag of the snapshots."""

HEADS = "heads"
"""The TensorBoard tag of the names and metrics of heads that were measured when the run ended."""

MAX_STEPS = 1000
"""Maximum number of snapshots per run and text. Without a limit, a small hostile event file could
make TensorBoard allocate much memory."""
