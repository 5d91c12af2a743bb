"""Samples text from a checkpoint: python scripts/sample.py prompt="My fellow citizens"."""

from headscope.cli.main import run

if __name__ == "__main__":
    run("sample")
