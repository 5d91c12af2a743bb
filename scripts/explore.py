"""Opens the page on which one types and watches a model: python scripts/explore.py."""

from headscope.cli.start import start_process

if __name__ == "__main__":
    start_process()
    from headscope.cli.explore import main

    main()
