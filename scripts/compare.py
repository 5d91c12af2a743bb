"""Trains several choices with the same settings and compares them: python scripts/compare.py."""

from headscope.cli.start import start_process

if __name__ == "__main__":
    start_process()
    from headscope.cli.compare import main

    main()
