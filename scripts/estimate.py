"""Prints the memory and time that a training run needs: python scripts/estimate.py."""

from headscope.cli.estimate import main

if __name__ == "__main__":
    main()
