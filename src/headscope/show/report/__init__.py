"""The report on the heads of a checkpoint, which scripts/analyze.py writes."""
