"""The table of transports: entry points of the group `triptych.transports`.

To add one: copy `tcp.py`, implement the three classes of `base.py`, and name the class in an
entry point. Nothing else changes; `ec.transports` selects and orders them.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from ec_connector.transports.base import Transport
from protocol.errors import InvalidRequest

GROUP = "triptych.transports"

BUILT_IN = {
    "shm": "ec_connector.transports.shm:ShmTransport",
    "nixl": "ec_connector.transports.nixl:NixlTransport",
    "ucx": "ec_connector.transports.ucx:UcxTransport",
    "tcp": "ec_connector.transports.tcp:TcpTransport",
}
"""Ours, also where the distribution's metadata is absent or older."""


def known() -> dict[str, str]:
    """Name -> `module:Class` of all that are installed."""
    return {**{point.name: point.value for point in entry_points(group=GROUP)}, **BUILT_IN}


def load(names: tuple[str, ...]) -> tuple[list[type[Transport]], dict[str, str]]:
    """The classes of these transports in order, or of all where `names` is empty.

    Returns:
        the classes, and name -> reason of those that are installed but not importable.

    Raises:
        InvalidRequest: a name that was asked for is unknown or not importable.
    """
    table = known()
    classes: list[type[Transport]] = []
    missing: dict[str, str] = {}
    for name in names or table:
        if name not in table:
            raise InvalidRequest(
                f"unknown transport {name!r}; there are {', '.join(sorted(table))}",
                "ec.transports",
            )
        module, _, attribute = table[name].partition(":")
        try:
            classes.append(getattr(importlib.import_module(module), attribute))
        except ImportError as error:
            if names:
                raise InvalidRequest(
                    f"transport {name} cannot be used here: {error}", "ec.transports"
                ) from None
            missing[name] = str(error)
    return classes, missing
