"""Comparing choices that are trained with the same settings and seeds: quality, size and speed."""
