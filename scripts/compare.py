"""Trains several choices with the same settings and compares them: python scripts/compare.py."""

from headscope.cli.compare import main

if __name__ == "__main__":
    main()
