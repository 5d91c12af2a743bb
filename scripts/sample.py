"""Samples text from a checkpoint: python scripts/sample.py prompt="My fellow citizens"."""

from headscope.cli.sample import main

if __name__ == "__main__":
    main()
