"""Membership from Ray Serve: a router that routes nothing and tells who is there.

Serve shows its routers each replica when it runs and takes it away before it drains, which is all
that membership needs; requests go over gRPC and never through this router.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import FIFOMixin, RequestRouter

from protocol.replica import Role


class MemberRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Set on every stage's deployment, lives in each process that holds a handle to it."""

    def initialize_state(self, role: Role) -> None:
        """Take `request_router_kwargs`."""
        self._role = role

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Any replica will do: handle calls are for administration only."""
        return [candidate_replicas]

    def update_replicas(self, replicas: list[Any]) -> None:
        """Serve's push of the running replicas, in the router's thread."""
        super().update_replicas(replicas)
        # Imported here: this class is pickled by value, and a module-level name of it would be a
        # private copy that the coordinator never sees.
        from deploy import feed

        feed.publish(self._role, [replica.replica_metadata for replica in replicas])
