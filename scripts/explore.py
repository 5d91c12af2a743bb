"""Opens the page on which one types and watches a model: python scripts/explore.py."""

from headscope.cli.explore import main

if __name__ == "__main__":
    main()
