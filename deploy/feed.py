"""The replicas that this process's Serve routers see.

Serve makes router objects by itself and pickles their module by value, so what they feed must be
found by import: this module's `membership` is the coordinator's and the routers' meeting point.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from coordinator.membership.pushed import PushedMembership
from protocol.replica import Replica, Role

membership = PushedMembership()

_log = logging.getLogger(__name__)


def publish(role: Role, metadata: Iterable[Any]) -> None:
    """The running replicas of a role, as their `record_replica_metadata` described them.

    Called in a router's thread, inside Serve's own callback: never raises.
    """
    replicas = []
    for description in metadata:
        try:
            replicas.append(msgspec.convert(description, Replica))
        except msgspec.ValidationError:
            _log.exception("a %s replica describes itself in a way that is not understood", role)
    membership.publish(role, replicas)
