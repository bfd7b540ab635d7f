"""Tests of real processes: what a client sees of a whole cluster."""
