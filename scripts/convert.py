"""Converts models of other tools to checkpoints, and back: python scripts/convert.py."""

from headscope.cli.main import run

if __name__ == "__main__":
    run("convert")
