"""Who can serve a stage right now, and who gets the next call.

`ReplicaPool` follows membership and status streams and grants members to callers in the order
they came.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from coordinator.clients.base import StageClient
from coordinator.config import CoordinatorConfig, StageConfig
from coordinator.member import Member
from coordinator.membership.base import Membership, Snapshot
from coordinator.routing.base import Policy
from coordinator.routing.consistent_hash import BoundedConsistentHash
from coordinator.routing.least_loaded import LeastLoaded
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Overloaded, TriptychError, Unavailable
from protocol.replica import Replica, ReplicaStatus, Role
from protocol.rpc import DESCRIBE, HOLDINGS, STATUS, Empty, Holdings

_log = logging.getLogger(__name__)

_STATUS_STREAM_S = 3600.0
_RECONNECT_S = (0.05, 1.0)
_MISSES = 2
"""Probes in a row without an answer after which a replica's calls are given up."""

STAGE_OF: dict[Role, str] = {
    "render": "render",
    "encode": "encode",
    "prefill": "prefill",
    "decode": "decode",
    "prefill_decode": "prefill",
    "all": "prefill",
}
"""The stage that an error names when no replica of the role can take a call."""


@dataclass(slots=True, eq=False)
class _Waiter:
    granted: asyncio.Future[Member]
    suits: Callable[[Member], bool]
    avoid: Collection[str]
    key: str | None
    prefer: str | None


class ReplicaPool:
    """Follows the replicas and hands them out.

    Args:
        config: limits per stage.
        connect: makes the connection to a replica.
    """

    def __init__(
        self, config: CoordinatorConfig, connect: Callable[[Replica], StageClient]
    ) -> None:
        self._config = config
        self._connect = connect
        self._members: dict[str, Member] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._waiters: defaultdict[Role, deque[_Waiter]] = defaultdict(deque)
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._stopping = False
        least_loaded = LeastLoaded()
        self._policies: defaultdict[Role, Policy] = defaultdict(lambda: least_loaded)
        self.on_leave: Callable[[Member], None] = lambda _member: None
        self.on_holdings: Callable[[Member, Holdings], None] = lambda _member, _notice: None
        self._policies["encode"] = BoundedConsistentHash(config.affinity_slack)

    def start(self, membership: Membership) -> None:
        """Begin to follow; replicas become ready as they answer."""
        self._follower = asyncio.create_task(self._follow(membership))

    async def stop(self) -> None:
        """Forget everybody and close the connections, calls in flight included."""
        self._stopping = True
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        self.apply(())
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def members(self, role: Role | None = None) -> list[Member]:
        """Everybody listed, ready or not."""
        return [m for m in self._members.values() if role is None or m.role == role]

    def member(self, replica_id: str) -> Member | None:
        """The listed member of that id."""
        return self._members.get(replica_id)

    def choose(self, role: Role, candidates: Sequence[Member], key: str) -> Member:
        """Who the role's policy would give a call to, without giving it."""
        return self._policies[role].pick(candidates, key)

    def stage(self, role: Role) -> StageConfig:
        """The limits that calls to a role are under."""
        match role:
            case "render":
                return self._config.render
            case "encode":
                return self._config.encode
            case "prefill":
                return self._config.prefill
            case _:
                return self._config.decode

    async def changed(self, deadline: Deadline) -> None:
        """Wait for any change of readiness.

        Raises:
            DeadlineExceeded: none came.
        """
        try:
            async with asyncio.timeout(deadline.remaining()):
                await self._changed.wait()
        except TimeoutError:
            raise DeadlineExceeded("no change") from None

    @contextlib.asynccontextmanager
    async def lease(
        self,
        role: Role,
        deadline: Deadline,
        *,
        suits: Callable[[Member], bool] = lambda _member: True,
        avoid: Collection[str] = (),
        key: str | None = None,
        prefer: str | None = None,
    ) -> AsyncIterator[Member]:
        """A ready replica of the role for one call, chosen by the role's policy.

        Args:
            role: what it must do.
            deadline: of the request.
            suits: narrows the choice (the cohort, whether it can encode pixels).
            avoid: ids that failed this request; taken only where nobody else is ready.
            key: content for affinity.
            prefer: id of a replica to take if it can be had.

        Raises:
            Unavailable: nobody became ready within `stage_wait_s`.
            Overloaded: the stage's queue is full, or all replicas stayed busy.
        """
        member = await self._take(
            role,
            deadline,
            _Waiter(asyncio.get_running_loop().create_future(), suits, avoid, key, prefer),
        )
        try:
            yield member
        finally:
            self._give_back(member)

    def answered(self, member: Member, error: TriptychError | None) -> None:
        """A call to a member ended; one that keeps failing is left alone for a while."""
        if error is None:
            member.breaker.succeeded()
            return
        open_s = member.breaker.failed(error)
        if open_s is not None:
            _log.warning("%s keeps failing, left alone for %.1f s: %s", member.id, open_s, error)
            loop = asyncio.get_running_loop()
            loop.call_later(open_s + 0.001, self._notify, member.role)

    def apply(self, snapshot: Snapshot) -> None:
        """Take a new list of replicas."""
        # One without an id is not up yet.
        listed = {one.id: one for one in snapshot if one.id}
        for replica_id in self._members.keys() - listed.keys():
            member = self._members.pop(replica_id)
            member.listed = False
            self.on_leave(member)
            task = asyncio.create_task(self._leave(member, self._watchers.pop(replica_id)))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        for replica_id in listed.keys() - self._members.keys():
            replica = listed[replica_id]
            try:
                client = self._connect(replica)
            except Exception:  # noqa: BLE001
                # One that describes itself strangely must not keep the others from being followed.
                _log.exception("no connection can be made to %s, it is left out", replica)
                continue
            member = self._members[replica_id] = Member(replica, client)
            self._watchers[replica_id] = asyncio.create_task(self._watch(member))
        self._notify(None)

    # --- granting ---------------------------------------------------------------------------

    async def _take(self, role: Role, deadline: Deadline, waiter: _Waiter) -> Member:
        queue = self._waiters[role]
        if len(queue) >= self.stage(role).queue:
            raise Overloaded(
                f"too many requests wait for {role}", stage=STAGE_OF[role], retry_after=1.0
            )
        queue.append(waiter)
        self._grant(role)
        try:
            async with asyncio.timeout(deadline.within(self._config.stage_wait_s).remaining()):
                return await asyncio.shield(waiter.granted)
        except TimeoutError:
            if waiter.granted.done():
                return waiter.granted.result()
            raise self._nobody(role, waiter.suits) from None
        except asyncio.CancelledError:
            if waiter.granted.done():
                self._give_back(waiter.granted.result())
            raise
        finally:
            if not waiter.granted.done():
                queue.remove(waiter)
                waiter.granted.cancel()

    def _nobody(self, role: Role, suits: Callable[[Member], bool]) -> TriptychError:
        stage = STAGE_OF[role]
        if any(m.ready and suits(m) for m in self.members(role)):
            return Overloaded(f"every {role} replica stayed busy", stage=stage, retry_after=2.0)
        return Unavailable(f"no {role} replica is ready", stage=stage, retry_after=2.0)

    def _grant(self, role: Role) -> None:
        """Serve the role's waiters in their order, as far as there is room."""
        queue = self._waiters[role]
        if not queue:
            return
        free = [m for m in self._members.values() if m.role == role and self._has_room(m)]
        for waiter in list(queue):
            if not free:
                return
            suiting = [m for m in free if waiter.suits(m)]
            if not suiting:
                continue
            fresh = [m for m in suiting if m.id not in waiter.avoid] or suiting
            preferred = [m for m in fresh if m.id == waiter.prefer]
            member = preferred[0] if preferred else self._policies[role].pick(fresh, waiter.key)
            member.in_flight += 1
            if not self._has_room(member):
                free.remove(member)
            queue.remove(waiter)
            waiter.granted.set_result(member)

    def _has_room(self, member: Member) -> bool:
        limit = 1 if member.breaker.trial else self.stage(member.role).concurrency
        return member.ready and member.in_flight < limit

    def _give_back(self, member: Member) -> None:
        member.in_flight -= 1
        self._grant(member.role)
        if not member.listed:
            self._notify(member.role)

    # --- following --------------------------------------------------------------------------

    async def _follow(self, membership: Membership) -> None:
        while True:
            try:
                async for snapshot in membership.snapshots():
                    self.apply(snapshot)
            except TriptychError as error:
                _log.warning("membership failed, trying again: %s", error)
            await asyncio.sleep(_RECONNECT_S[1])

    async def _watch(self, member: Member) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_status(member))
            tasks.create_task(self._probe(member))
            tasks.create_task(self._watch_holdings(member))

    async def _watch_status(self, member: Member) -> None:
        pause, longest = _RECONNECT_S
        while True:
            try:
                stream = member.client.stream(STATUS, Empty(), Deadline.after(_STATUS_STREAM_S))
                async for status in stream:
                    pause = _RECONNECT_S[0]
                    self._heard(member, status)
            except TriptychError as error:
                _log.debug("status of %s: %s", member.id, error)
            self._heard(member, None)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _watch_holdings(self, member: Member) -> None:
        """Pass on what an encode replica says about its store."""
        while member.native and member.role == "encode":
            deadline = Deadline.after(_STATUS_STREAM_S)
            try:
                async for notice in member.client.stream(HOLDINGS, Empty(), deadline):
                    self.on_holdings(member, notice)
            except TriptychError as error:
                _log.debug("holdings of %s: %s", member.id, error)
            await asyncio.sleep(_RECONNECT_S[1])

    async def _probe(self, member: Member) -> None:
        """Give up the calls to a replica that is connected but does not answer (it hangs)."""
        if not member.native:
            return
        misses = 0
        while True:
            await asyncio.sleep(self._config.probe_interval_s)
            if member.status is None:
                continue
            try:
                deadline = Deadline.after(self._config.probe_timeout_s)
                await member.client.call(DESCRIBE, Empty(), deadline)
                misses = 0
                continue
            except DeadlineExceeded:
                misses += 1  # a busy machine may be that slow once
                if misses < _MISSES:
                    continue
            except TriptychError as error:
                _log.info("%s is gone: %s", member.id, error)
            _log.warning("%s gives no sign of life, its calls are given up", member.id)
            misses = 0
            self._heard(member, None)
            await member.client.reset()

    def _heard(self, member: Member, status: ReplicaStatus | None) -> None:
        was_ready = member.ready
        member.status = status
        if member.ready != was_ready:
            self._notify(member.role)

    async def _leave(self, member: Member, watcher: asyncio.Task[None]) -> None:
        """Close the connection of a replica that left, once our calls to it have ended."""
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        with contextlib.suppress(DeadlineExceeded):
            deadline = Deadline.after(self._config.request_timeout_s)
            while member.in_flight and not self._stopping:
                await self.changed(deadline)
        await member.client.close()

    def _notify(self, role: Role | None) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        roles: Iterable[Role] = list(self._waiters) if role is None else (role,)
        for waiting in roles:
            self._grant(waiting)
