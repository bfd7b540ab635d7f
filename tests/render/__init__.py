"""Tests of render; `checkpoints` makes the tiny models that they serve."""
