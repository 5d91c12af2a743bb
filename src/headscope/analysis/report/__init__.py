"""The report of a checkpoint's heads: what scripts/analyze.py writes."""
