"""The test's end of `child.py`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from ec_connector.config import EcConfig
from protocol.errors import WireError, from_wire
from protocol.transfer import EcItem

ROOT = Path(__file__).parents[2]


class Child:
    """A running connector process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0
        self.epoch = ""
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, config: EcConfig, fingerprint: str = "fp", prefix: tuple[str, ...] = ()
    ) -> Child:
        """Start it, with a command in front that runs it elsewhere, if any."""
        process = await asyncio.create_subprocess_exec(
            *prefix,
            sys.executable,
            str(Path(__file__).with_name("child.py")),
            msgspec.json.encode(config).decode(),
            fingerprint,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            limit=2**24,
        )
        child = cls(process)
        try:
            ready = await asyncio.wait_for(child._line(), 60)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        if ready is None:
            raise RuntimeError("the connector process did not start")
        child.port, child.epoch = ready[1], ready[2]
        child._reader = asyncio.create_task(child._read())
        return child

    async def call(self, name: str, **arguments: Any) -> Any:
        """Run a command there; raises what it raised."""
        number = next(self._numbers)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([number, name, arguments]).encode() + b"\n")
        return await asyncio.wait_for(future, 60)

    async def publish(self, seed: int, nbytes: int, **more: Any) -> EcItem:
        return msgspec.convert(await self.call("publish", seed=seed, nbytes=nbytes, **more), EcItem)

    async def expect(self, seed: int, nbytes: int, **more: Any) -> EcItem:
        return msgspec.convert(await self.call("expect", seed=seed, nbytes=nbytes, **more), EcItem)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._close()

    async def stop(self) -> None:
        """End it as a replica ends."""
        if self.process.returncode is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            await asyncio.wait_for(self.process.wait(), 30)
        await self._close()

    async def _close(self) -> None:
        if self._reader is not None:
            await self._reader
        # The transport of a subprocess closes its pipes on a later turn of the loop.
        self.process._transport.close()  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    async def _line(self) -> Any:
        """What the process says next, None at its end; libraries in it print things too."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line.startswith(b"@"):
                return json.loads(line[1:])
        return None

    async def _read(self) -> None:
        while (said := await self._line()) is not None:
            number, result, error = said
            future = self._answers.pop(number)
            if future.done():
                continue  # whoever asked has given up
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(from_wire(msgspec.convert(error, WireError)))
        for future in self._answers.values():
            future.cancel()


@contextlib.asynccontextmanager
async def child(config: EcConfig, fingerprint: str = "fp") -> AsyncIterator[Child]:
    """A process that is gone afterwards, whatever happened."""
    process = await Child.start(config, fingerprint)
    try:
        yield process
    finally:
        process.signal(signal.SIGCONT) if process.process.returncode is None else None
        await process.kill()
