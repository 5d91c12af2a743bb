"""headscope: train a small GPT and see what its attention heads do."""

__version__ = "0.1.0"
