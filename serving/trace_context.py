"""The client's `traceparent` of the request that is being served, on its way through all servers.

A context variable: tasks that a request starts inherit it, `serving/rpc_client.py` sends it along,
`serving/rpc_server.py` sets it for the handler.
"""

from __future__ import annotations

import re
from contextvars import ContextVar

HEADER = "traceparent"

_FORM = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_current: ContextVar[str] = ContextVar(HEADER, default="")


def current() -> str:
    """The request's `traceparent`, "" where it brought none."""
    return _current.get()


def enter(traceparent: object) -> str:
    """Take a header's value for what this task serves from now on; returns it, "" if malformed."""
    valid = isinstance(traceparent, str) and _FORM.fullmatch(traceparent) is not None
    taken = str(traceparent) if valid else ""
    _current.set(taken)
    return taken
