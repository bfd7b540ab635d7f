"""A thread that a library lives in: commands go in, results come back to the event loop.

For libraries that must be polled or whose calls block. The thread sleeps while there is nothing
to do; the loop never waits for it except by `await`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from ec_connector.copying import finish
from ec_connector.transports.connections import failed

T = TypeVar("T")

_JOIN_S = 5.0


class Driver(ABC):
    """Runs commands one after the other in its thread; methods named `_…` run there.

    Args:
        name: the transport's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"ec-{name}", daemon=True)

    async def start(self) -> None:
        """Start the thread and open the library.

        Raises:
            TransferError: `transport_failed`.
        """
        self._thread.start()
        await self.do(self._open)

    async def stop(self) -> None:
        """End what is under way and close the library."""
        if self._thread.is_alive():
            self._stopping = True
            self._wake()
            await asyncio.to_thread(self._thread.join, _JOIN_S)

    async def do(self, work: Callable[[], T]) -> T:
        """Run work in the thread, to its end even when cancelled.

        Raises:
            TransferError: `transport_failed`: what the library says.
        """
        return await finish(self.submit(work))

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Have work run in the thread; a future of its result or error."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def command() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 (libraries raise types of their own)
                said = failed(self._name, str(error) or type(error).__name__)
                tell(loop, settle, future, None, said)
            else:
                tell(loop, settle, future, result, None)

        self.post(command)
        return future

    def post(self, command: Callable[[], None]) -> None:
        """Have a command run in the thread that reports by itself and raises nothing."""
        self._commands.append(command)
        self._wake()

    def at_once(self, command: Callable[[], None]) -> bool:
        """Run a short command on the loop itself if the thread is at rest: saves two wake-ups."""
        if self._commands or not self._lock.acquire(blocking=False):
            return False
        try:
            command()
        finally:
            self._lock.release()
        return True

    @abstractmethod
    def _wake(self) -> None:
        """From any thread: make `_wait` return."""

    @abstractmethod
    def _open(self) -> None:
        """Make the library's objects."""

    @abstractmethod
    def _wait(self) -> None:
        """Sleep until woken, or until it is time to look at what is under way."""

    @abstractmethod
    def _advance(self) -> None:
        """Look at what is under way."""

    @abstractmethod
    def _close(self) -> None:
        """Give everything back; report what is still under way as failed."""

    def _run(self) -> None:
        while not self._stopping:
            if not self._commands:
                self._wait()
            with self._lock:
                while self._commands:
                    self._commands.popleft()()
                self._advance()
        self._close()


def settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Resolve a future unless its owner has gone."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    """Have the loop run a callback, unless it is closed already."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)
