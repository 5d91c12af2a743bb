"""Samples text from a checkpoint: python scripts/sample.py prompt="My fellow citizens"."""

from headscope.cli.start import start_process

if __name__ == "__main__":
    start_process()
    from headscope.cli.sample import main

    main()
