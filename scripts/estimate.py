"""Prints the memory and time that a training run needs: python scripts/estimate.py."""

from headscope.cli.start import start_process

if __name__ == "__main__":
    start_process()
    from headscope.cli.estimate import main

    main()
