"""Converts models of other tools to checkpoints, and back: python scripts/convert.py."""

from headscope.cli.start import start_process

if __name__ == "__main__":
    start_process()
    from headscope.cli.convert import main

    main()
