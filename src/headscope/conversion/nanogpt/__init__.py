"""Checkpoints of nanoGPT (https://github.com/karpathy/nanoGPT)."""
