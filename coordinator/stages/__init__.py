"""The stages in the order of a request: render, encode, prefill, decode; derender is injected."""
