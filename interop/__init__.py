"""Our render server against the reference, request by request: `python -m interop`."""
