"""Measures what the docs publish. Not a part of the package headscope."""
