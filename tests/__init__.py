"""Tests mirror the packages; `cluster`, `architecture` and `examples` are of the whole."""
