"""Which transports this machine has, for suites that run over each of them."""

from __future__ import annotations

from ec_connector.transports import load

NAMES = tuple(t.name for t in load(())[0])
