"""Converts models of other tools to checkpoints of headscope, and checkpoints to their formats."""
