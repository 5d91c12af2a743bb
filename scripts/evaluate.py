"""Evaluates a checkpoint on the whole validation split: python scripts/evaluate.py."""

from headscope.cli.main import run

if __name__ == "__main__":
    run("evaluate")
