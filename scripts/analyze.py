"""Writes a report on the attention heads of a checkpoint: python scripts/analyze.py."""

from headscope.cli.analyze import main

if __name__ == "__main__":
    main()
