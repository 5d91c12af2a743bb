"""Evaluates a checkpoint on the whole validation split: python scripts/evaluate.py."""

from headscope.cli.start import start_process

if __name__ == "__main__":
    start_process()
    from headscope.cli.evaluate import main

    main()
