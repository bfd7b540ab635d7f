"""NIXL: the consumer reads the producer's registered memory by itself, over RDMA where there is.

One agent per process, driven by one thread: it posts reads, polls those that are under way in
ever longer intervals and wakes the loop, which therefore never polls. A process's memory is
registered once; a peer's metadata is loaded once per life of the peer, and one small read warms
the connection up before the first item needs it.

A read cannot be broken off safely, so its destination is scratch memory of the store, which is
given back when the read has really ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ec_connector.copying import INLINE_BYTES
from ec_connector.messages import Granted
from ec_connector.regions import Region, SharedMemory, address_of
from ec_connector.transports.base import Channel, Context, Link, PeerInfo, Transport
from ec_connector.transports.connections import failed
from ec_connector.transports.driver import Driver, settle, tell
from ec_connector.transports.hardware import has_rdma
from protocol.deadline import Deadline
from protocol.errors import TransferError

Piece = tuple[int, int]  # (address, nbytes)

_WARM_UP_BYTES = 64
_FIRST_POLL_S = 20e-6
_SERVING_POLL_S = 200e-6
_GRACE_S = 1e-3
_IDLE_POLL_S = 5e-3  # peers that connect wait this long at most; they do so once
_NEWS_S = 1.0

_log = logging.getLogger(__name__)


class _Capability(msgspec.Struct, frozen=True):
    """An agent and its memory: region id -> (address, nbytes); `warm` is for the first read."""

    metadata: bytes
    regions: dict[int, tuple[int, int]]
    warm: int


@dataclass(slots=True, eq=False)
class _Reading:
    """A read that is under way."""

    handle: Any
    done: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)


class Agent(Driver):
    """The agent's thread: everything that touches the agent happens there.

    Args:
        name: unique among all agents, new in each life of a process.
    """

    def __init__(self, name: str) -> None:
        super().__init__("nixl")
        self._agent_name = name
        self._agent: Any = None
        self._reading: list[_Reading] = []
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._serving: dict[bytes, float] = {}  # lease -> since when, oldest first
        self._oldest = math.inf
        self._watching = False

    def read(
        self, local: Sequence[Piece], remote: Sequence[Piece], agent: str
    ) -> asyncio.Future[bool]:
        """Post a read of pieces that correspond; when it has ended: whether it went well."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        caller = threading.get_ident()

        def done(state: str) -> None:
            if threading.get_ident() == caller:
                settle(future, state == "DONE", None)
            else:
                tell(loop, settle, future, state == "DONE", None)

        def command() -> None:
            try:
                handle = self._agent.initialize_xfer(
                    "READ", self._descriptors(local), self._descriptors(remote), agent
                )
                state = self._agent.transfer(handle)
            except Exception as error:  # noqa: BLE001 (the library raises types of its own)
                _log.info("nixl refused a read: %s", error)
                done("ERR")
                return
            if state == "PROC":
                self._reading.append(_Reading(handle, done))
                self._wake()
            else:
                self._release(handle)
                done(state)

        short = sum(nbytes for _, nbytes in local) <= INLINE_BYTES
        if not (short and self.at_once(command)):
            self.post(command)
        return future

    async def register(self, address: int, nbytes: int) -> bytes:
        """Let peers read memory; returns the agent's new metadata."""

        def work() -> bytes:
            self._agent.register_memory([(address, nbytes, 0, "")], "DRAM")
            metadata: bytes = self._agent.get_agent_metadata()
            return metadata

        return await self.do(work)

    async def add_peer(self, metadata: bytes) -> str:
        """Know a peer's agent; returns its name."""

        def work() -> str:
            name = self._agent.add_remote_agent(metadata)
            return name.decode() if isinstance(name, bytes) else str(name)

        return await self.do(work)

    async def remove_peer(self, name: str) -> None:
        """Forget a peer's agent."""
        await self.do(lambda: self._agent.remove_remote_agent(name))

    def serve(self, lease: bytes) -> None:
        """A peer may read now: have an eye on the connections, not all work without us."""
        now = time.monotonic()
        self._serving[lease] = now
        self._oldest = min(self._oldest, now)
        if not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_later(_GRACE_S, self._watch)

    def rest(self, lease: bytes) -> None:
        """That peer reads no more."""
        if self._serving.pop(lease, None) is not None:
            self._oldest = next(iter(self._serving.values()), math.inf)

    def _watch(self) -> None:
        """Wake the thread for a read that lasts; most are over before and do not need it."""
        self._watching = bool(self._serving)
        if self._watching:
            if self._needs_us():
                self._wake()
            asyncio.get_running_loop().call_later(_GRACE_S, self._watch)

    def _needs_us(self) -> bool:
        return time.monotonic() - self._oldest >= _GRACE_S

    def _wake(self) -> None:
        self._woken.put(None)

    def _open(self) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        logging.getLogger("nixl").setLevel(logging.WARNING)  # importing it sets another
        # Its own progress thread would keep a core busy for as long as the process lives.
        config = nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent = nixl_agent(self._agent_name, config)
        if "UCX" not in self._agent.backends:
            raise RuntimeError("its UCX backend is not there")

    def _wait(self) -> None:
        pause = _IDLE_POLL_S
        if self._needs_us():
            pause = _SERVING_POLL_S
        if self._reading:
            # A tenth of how long the newest read has taken so far.
            age = time.monotonic() - max(reading.started for reading in self._reading)
            pause = min(_SERVING_POLL_S, max(_FIRST_POLL_S, age / 10))
        with contextlib.suppress(queue.Empty):
            self._woken.get(timeout=pause)

    def _advance(self) -> None:
        if self._agent is None:
            return
        if not self._reading:
            self._agent.get_new_notifs()  # answers peers that connect
        for reading in list(self._reading):
            try:
                state = self._agent.check_xfer_state(reading.handle)
            except Exception as error:  # noqa: BLE001 (the library raises types of its own)
                _log.info("a nixl read failed: %s", error)
                state = "ERR"
            if state != "PROC":
                self._reading.remove(reading)
                self._release(reading.handle)
                reading.done(state)

    def _close(self) -> None:
        for reading in self._reading:
            self._release(reading.handle)
        self._agent = None
        for reading in self._reading:  # not before: its destination is given back then
            reading.done("ERR")

    def _descriptors(self, pieces: Sequence[Piece]) -> Any:
        return self._agent.get_xfer_descs([(a, nbytes, 0) for a, nbytes in pieces], "DRAM")

    def _release(self, handle: Any) -> None:
        with contextlib.suppress(Exception):
            self._agent.release_xfer_handle(handle)


class NixlTransport(Transport):
    """Registers this process's memory and reads that of peers."""

    name = "nixl"
    stops_at_once = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        # Without RDMA plain TCP is faster than NIXL over TCP.
        self.rank = 20 if has_rdma() else 50
        self.agent = Agent(context.epoch)
        self._metadata = b""
        self._registering: list[asyncio.Task[None]] = []
        self._regions: dict[int, tuple[int, int]] = {}
        self._warm = SharedMemory(2 * _WARM_UP_BYTES)
        self.warm_address = address_of(self._warm.buffer)

    @classmethod
    def unwanted(cls) -> str | None:
        return None if has_rdma() else "no RDMA device here; name it in ec.transports to use it"

    async def start(self) -> None:
        await self.agent.start()
        self._metadata = await self.agent.register(self.warm_address, self._warm.nbytes)

    async def stop(self) -> None:
        await asyncio.gather(*self._registering, return_exceptions=True)
        await self.agent.stop()
        self._warm.close()

    def add_region(self, region: Region) -> bool:
        task = asyncio.get_running_loop().create_task(self._register(region))
        self._registering.append(task)
        return True

    async def ready(self) -> None:
        await asyncio.gather(*self._registering)
        self._registering.clear()

    async def _register(self, region: Region) -> None:
        self._metadata = await self.agent.register(region.address, region.buffer.nbytes)
        self._regions[region.id] = (region.address, region.buffer.nbytes)
        self.context.changed()

    def opened(self, lease: bytes) -> None:
        self.agent.serve(lease)

    def ended(self, lease: bytes) -> None:
        self.agent.rest(lease)

    def capability(self) -> bytes:
        return msgspec.msgpack.encode(_Capability(self._metadata, self._regions, self.warm_address))

    async def link(self, peer: PeerInfo, capability: bytes, deadline: Deadline) -> Link:
        link = NixlLink(self)
        link.update(capability)
        try:
            async with asyncio.timeout(deadline.remaining("transfer")):
                await link.load()
                await link.warm_up()
        except TimeoutError:
            await link.close()
            raise failed(self.name, "the peer's agent does not answer") from None
        return link


class NixlLink(Link):
    """A peer's agent, known to ours."""

    def __init__(self, transport: NixlTransport) -> None:
        self._transport = transport
        self._offered = _Capability(b"", {}, 0)
        self._loaded = b""
        self._under_way = 0
        self._news = asyncio.Event()
        self.name = ""

    def update(self, capability: bytes) -> None:
        self._offered = msgspec.msgpack.decode(capability, type=_Capability)
        self._news.set()

    async def open(self, nbytes: int, deadline: Deadline) -> Channel:
        await self.load()
        return NixlChannel(self)

    async def load(self) -> None:
        """Have the peer's newest metadata."""
        metadata = self._offered.metadata
        if self._loaded != metadata:
            self.name = await self._transport.agent.add_peer(metadata)
            self._loaded = metadata

    async def warm_up(self) -> None:
        """Set the connection up with a read of no meaning."""
        here = self._transport.warm_address + _WARM_UP_BYTES
        done = await asyncio.shield(
            self.read([(here, _WARM_UP_BYTES)], [(self._offered.warm, _WARM_UP_BYTES)])
        )
        if not done:
            raise failed("nixl", "the peer's memory cannot be read")

    def read(self, local: Sequence[Piece], remote: Sequence[Piece]) -> asyncio.Future[bool]:
        """Post a read; the peer stays known until it has ended."""
        future = self._transport.agent.read(local, remote, self.name)
        self._under_way += 1
        future.add_done_callback(self._ended)
        return future

    async def remote(self, granted: Granted) -> list[Piece]:
        """Where the granted bytes are in the peer's memory.

        A region may be so new that the peer has not announced it yet.
        """
        if granted.region not in self._offered.regions:
            try:
                async with asyncio.timeout(_NEWS_S):
                    while granted.region not in self._offered.regions:
                        self._news.clear()
                        await self._news.wait()
            except TimeoutError:
                raise failed("nixl", f"region {granted.region} is not at the peer") from None
        await self.load()
        start, size = self._offered.regions[granted.region]
        if any(offset < 0 or offset + n > size for offset, n in granted.spans):
            raise failed("nixl", "the granted bytes are outside of the region")
        return [(start + offset, nbytes) for offset, nbytes in granted.spans]

    def _ended(self, _future: asyncio.Future[bool]) -> None:
        self._under_way -= 1

    async def close(self) -> None:
        """Drop the peer's agent, unless a read of it still runs: then it stays until we stop."""
        if self._under_way == 0 and self.name:
            name, self.name = self.name, ""
            with contextlib.suppress(TransferError):
                await self._transport.agent.remove_peer(name)


class NixlChannel(Channel):
    """One read."""

    def __init__(self, link: NixlLink) -> None:
        self._link = link
        self._future: asyncio.Future[bool] | None = None

    async def receive(
        self, granted: Granted, into: Sequence[memoryview], deadline: Deadline
    ) -> None:
        remote = await self._link.remote(granted)
        (buffer,) = into  # never anything but scratch memory: a read cannot be broken off
        self._future = self._link.read(_local(buffer, remote), remote)
        if not self._future.done():  # a short one is over by now
            try:
                async with asyncio.timeout(deadline.remaining("transfer")):
                    await asyncio.shield(self._future)
            except TimeoutError:
                raise failed("nixl", "the item did not arrive in time") from None
        if not self._future.result():
            raise failed("nixl", "the read failed")

    async def settled(self) -> None:
        if self._future is not None:
            await asyncio.wait((self._future,))

    async def close(self, *, clean: bool) -> None:
        pass


def _local(into: memoryview, remote: Sequence[Piece]) -> list[Piece]:
    """The pieces of a buffer that the remote ones go to, one after the other."""
    if sum(nbytes for _, nbytes in remote) != into.nbytes:
        raise failed("nixl", "the granted spans do not make up the item")
    address = address_of(into)
    local: list[Piece] = []
    for _, nbytes in remote:
        local.append((address, nbytes))
        address += nbytes
    return local
