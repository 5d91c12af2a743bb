"""Writes a report on the attention heads of a checkpoint: python scripts/analyze.py."""

from headscope.cli.main import run

if __name__ == "__main__":
    run("analyze")
