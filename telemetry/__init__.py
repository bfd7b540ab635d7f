"""Logs and metrics: every name, label and bucket of the project is in this package.

One file per package that reports: `ec`, `render`, `workers`, `coordinator`. Metric names begin
with `triptych_`; a component makes its own registry, so that several live in one process.
"""
