"""Measurements that stand behind the figures in the docs."""
