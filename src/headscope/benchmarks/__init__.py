"""The benchmarks whose results are shown in the docs."""
