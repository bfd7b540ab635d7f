"""Tables of plug-ins: built-in names, and what other distributions add by entry points."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from protocol.errors import InvalidRequest


def look_up(builtin: dict[str, str], group: str, name: str, option: str) -> Any:
    """The class under a name.

    Raises:
        InvalidRequest: there is none; the message lists those that are.
    """
    if name in builtin:
        module, _, attribute = builtin[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    others = {point.name: point for point in entry_points(group=group)}
    if name in others:
        return others[name].load()
    known = ", ".join(sorted({*builtin, *others}))
    raise InvalidRequest(f"{option} {name!r} is unknown; known are {known}", option)
