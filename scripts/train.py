"""Trains a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

from headscope.cli.start import start_process

if __name__ == "__main__":
    start_process()
    from headscope.cli.train import main

    main()
