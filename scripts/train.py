"""Trains a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

from headscope.cli.main import run

if __name__ == "__main__":
    run("train")
