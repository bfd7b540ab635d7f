"""The contract of a membership plug-in."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, TypeAlias

from protocol.replica import Replica

Snapshot: TypeAlias = tuple[Replica, ...]


class Membership(Protocol):
    """Says who is there. Whether a replica is ready is its own status stream's business."""

    def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        """Every replica that should get work, complete each time.

        The first snapshot comes as soon as it is known, then one per change. Iterated once, in
        the coordinator's event loop; ended by cancelling the iteration.
        """
        ...
