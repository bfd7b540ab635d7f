"""Measurements of a running cluster; each is `python -m benchmarks.NAME`."""
