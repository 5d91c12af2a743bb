"""Opens the page on which one types and watches a model: python scripts/explore.py."""

from headscope.cli.main import run

if __name__ == "__main__":
    run("explore")
