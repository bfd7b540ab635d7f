"""Which transports this machine has, for suites that run over each of them."""

from __future__ import annotations

from ec_connector.transports import load

NAMES = tuple(transport.name for transport in load(())[0])
