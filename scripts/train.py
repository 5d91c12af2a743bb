"""Trains a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

from headscope.cli.train import main

if __name__ == "__main__":
    main()
