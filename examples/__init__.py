"""Runnable examples, and the generated drawings that they and the tests share."""
