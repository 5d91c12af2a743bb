"""Evaluates a checkpoint on the whole validation split: python scripts/evaluate.py."""

from headscope.cli.evaluate import main

if __name__ == "__main__":
    main()
