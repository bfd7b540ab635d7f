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
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ec_connector.copying import finish
from ec_connector.messages import Granted
from ec_connector.regions import Region, SharedMemory, address_of
from ec_connector.transports.base import Channel, Context, Link, PeerInfo, Transport
from ec_connector.transports.connections import failed
from protocol.deadline import Deadline

T = TypeVar("T")
Piece = tuple[int, int]  # (address, nbytes)

_WARM_UP_BYTES = 64
_FIRST_POLL_S = 20e-6
_LONGEST_POLL_S = 1e-3
_NEWS_S = 1.0

_log = logging.getLogger(__name__)


class _Capability(msgspec.Struct, frozen=True):
    """An agent and its memory: region id -> (address, nbytes); `warm` is for the first read."""

    metadata: bytes
    regions: dict[int, tuple[int, int]]
    warm: int


def has_rdma() -> bool:
    """Whether this machine has an RDMA device."""
    devices = Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())


@dataclass(slots=True, eq=False)
class _Reading:
    """A read that is under way."""

    handle: Any
    done: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)


class Agent:
    """The agent's thread: everything that touches the agent happens there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reading: list[_Reading] = []
        self._agent: Any = None
        self._thread = threading.Thread(target=self._run, name="ec-nixl", daemon=True)

    async def start(self) -> None:
        """Make the agent.

        Raises:
            TransferError: `transport_failed`.
        """
        self._thread.start()
        await self.do(self._make)

    async def stop(self) -> None:
        """Drop the agent; reads under way are given up."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, 5.0)

    async def do(self, work: Callable[[], T]) -> T:
        """Run work in the agent's thread, to its end.

        Raises:
            TransferError: `transport_failed`: what the library says.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(failed("nixl", str(error) or type(error).__name__))
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def command() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 (the library raises types of its own)
                _tell(loop, settle, None, error)
            else:
                _tell(loop, settle, result, None)

        self._commands.put(command)
        return await finish(future)

    def read(
        self, local: Sequence[Piece], remote: Sequence[Piece], agent: str
    ) -> asyncio.Future[str]:
        """Post a read of pieces that correspond; the future gets DONE or ERR when it has ended."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()

        def settle(state: str) -> None:
            if not future.done():
                future.set_result(state)

        def done(state: str) -> None:
            _tell(loop, settle, state)

        def command() -> None:
            try:
                handle = self._agent.initialize_xfer(
                    "READ",
                    self._agent.get_xfer_descs([(a, n, 0) for a, n in local], "DRAM"),
                    self._agent.get_xfer_descs([(a, n, 0) for a, n in remote], "DRAM"),
                    agent,
                )
                state = self._agent.transfer(handle)
            except Exception as error:  # noqa: BLE001 (the library raises types of its own)
                _log.info("nixl refused a read: %s", error)
                done("ERR")
                return
            if state == "PROC":
                self._reading.append(_Reading(handle, done))
            else:
                self._release(handle)
                done(state)

        self._commands.put(command)
        return future

    # ---- in the thread; `agent` below is the library's, with methods of its own

    def register(self, address: int, nbytes: int) -> Any:
        return self._agent.register_memory([(address, nbytes, 0, "")], "DRAM")

    def metadata(self) -> bytes:
        metadata: bytes = self._agent.get_agent_metadata()
        return metadata

    def add_peer(self, metadata: bytes) -> str:
        name = self._agent.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else str(name)

    def remove_peer(self, name: str) -> None:
        self._agent.remove_remote_agent(name)

    def _make(self) -> None:
        logging.getLogger("nixl").setLevel(logging.WARNING)
        from nixl._api import nixl_agent, nixl_agent_config

        self._agent = nixl_agent(self._name, nixl_agent_config(backends=["UCX"]))
        if "UCX" not in self._agent.backends:
            raise RuntimeError("its UCX backend is not there")

    def _run(self) -> None:
        while True:
            try:
                command = self._commands.get(timeout=self._pause() if self._reading else None)
                if command is None:
                    break
                command()
            except queue.Empty:
                pass
            self._poll()
        for reading in self._reading:
            reading.done("ERR")
        self._agent = None

    def _pause(self) -> float:
        """A tenth of how long the newest read has taken so far."""
        age = time.monotonic() - max(reading.started for reading in self._reading)
        return min(_LONGEST_POLL_S, max(_FIRST_POLL_S, age / 10))

    def _poll(self) -> None:
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
        await self.agent.do(lambda: self.agent.register(self.warm_address, self._warm.nbytes))
        self._metadata = await self.agent.do(self.agent.metadata)

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
        await self.agent.do(lambda: self.agent.register(region.address, region.buffer.nbytes))
        self._metadata = await self.agent.do(self.agent.metadata)
        self._regions[region.id] = (region.address, region.buffer.nbytes)
        self.context.changed()

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
            agent = self._transport.agent
            self.name = await agent.do(lambda: agent.add_peer(metadata))
            self._loaded = metadata

    async def warm_up(self) -> None:
        """Set the connection up with a read of no meaning."""
        here = self._transport.warm_address + _WARM_UP_BYTES
        state = await asyncio.shield(
            self.read([(here, _WARM_UP_BYTES)], [(self._offered.warm, _WARM_UP_BYTES)])
        )
        if state != "DONE":
            raise failed("nixl", "the peer's memory cannot be read")

    def read(self, local: Sequence[Piece], remote: Sequence[Piece]) -> asyncio.Future[str]:
        """Post a read; the peer stays known until it has ended."""
        future = self._transport.agent.read(local, remote, self.name)
        self._under_way += 1
        future.add_done_callback(self._ended)
        return future

    async def remote(self, granted: Granted) -> list[Piece]:
        """Where the granted bytes are in the peer's memory.

        A region may be so new that the peer has not announced it yet.
        """
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

    def _ended(self, _future: asyncio.Future[str]) -> None:
        self._under_way -= 1

    async def close(self) -> None:
        """Drop the peer's agent, unless a read of it still runs: then it stays until we stop."""
        if self._under_way == 0 and self.name:
            agent, name, self.name = self._transport.agent, self.name, ""
            with contextlib.suppress(Exception):
                await agent.do(lambda: agent.remove_peer(name))


class NixlChannel(Channel):
    """One read."""

    def __init__(self, link: NixlLink) -> None:
        self._link = link
        self._future: asyncio.Future[str] | None = None

    async def receive(
        self, granted: Granted, into: Sequence[memoryview], deadline: Deadline
    ) -> None:
        local, remote = _cut(into, await self._link.remote(granted))
        self._future = self._link.read(local, remote)
        try:
            async with asyncio.timeout(deadline.remaining("transfer")):
                state = await asyncio.shield(self._future)
        except TimeoutError:
            raise failed("nixl", "the item did not arrive in time") from None
        if state != "DONE":
            raise failed("nixl", "the read failed")

    async def settled(self) -> None:
        if self._future is not None:
            await asyncio.wait((self._future,))

    async def close(self, *, clean: bool) -> None:
        pass


def _cut(into: Sequence[memoryview], remote: Sequence[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Local and remote pieces that correspond in size."""
    if len(into) == len(remote) == 1:
        return [(address_of(into[0]), into[0].nbytes)], list(remote)
    local: list[Piece] = []
    cut: list[Piece] = []
    index, offset = 0, 0
    for address, nbytes in remote:
        done = 0
        while done < nbytes:
            buffer = into[index]
            size = min(nbytes - done, buffer.nbytes - offset)
            local.append((address_of(buffer) + offset, size))
            cut.append((address + done, size))
            done += size
            offset += size
            if offset == buffer.nbytes:
                index, offset = index + 1, 0
    return local, cut


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    """Have the loop run a callback, unless it is closed already."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)
