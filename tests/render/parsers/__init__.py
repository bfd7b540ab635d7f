"""Tests of the parsers of reasoning and tool calls."""
