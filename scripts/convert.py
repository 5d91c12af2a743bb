"""Converts models of other tools to checkpoints, and back: python scripts/convert.py."""

from headscope.cli.convert import main

if __name__ == "__main__":
    main()
