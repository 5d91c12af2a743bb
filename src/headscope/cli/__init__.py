"""The command line of the scripts: arguments, --help, and error messages."""
