"""The attention viewer: one page of plain JavaScript that shows attention over training steps, in
TensorBoard's tab Attention and in attention.html. This folder imports neither torch nor Hydra."""
