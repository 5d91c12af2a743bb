"""The command line: its words, its errors."""
