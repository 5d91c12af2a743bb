"""Compares configuration choices, such as position encodings, in quality, size and speed. All other
settings and the seeds are the same for all choices."""
