"""Trains several choices with the same settings and compares them: python scripts/compare.py."""

from headscope.cli.main import run

if __name__ == "__main__":
    run("compare")
