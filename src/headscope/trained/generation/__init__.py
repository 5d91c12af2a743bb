"""Generates tokens and text from a model. Prints nothing and loads no checkpoints."""
