"""Writes a report on the attention heads of a checkpoint: python scripts/analyze.py."""

from headscope.cli.start import start_process

if __name__ == "__main__":
    start_process()
    from headscope.cli.analyze import main

    main()
