"""The HTTP edge: one file per endpoint family; `streaming` is how an answer reaches the client."""
