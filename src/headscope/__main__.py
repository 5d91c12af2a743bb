"""python -m headscope is the command `headscope`."""

from headscope.cli.main import main

if __name__ == "__main__":
    main()
