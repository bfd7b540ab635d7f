"""Reasoning and tool calls in a model's text, as it streams.

A parser is a machine over text: it takes pieces as they come and gives what each adds. Its state
is plain data, so that a stateless caller can carry it. `reasoning` and `tools` hold one file per
format and a table each; others add theirs under the entry points `triptych.reasoning_parsers` and
`triptych.tool_parsers`.
"""
