"""A replica of ours over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TypeVar

from protocol.deadline import Deadline
from protocol.rpc import Method
from serving.rpc_client import RpcChannel

Req = TypeVar("Req")
Rep = TypeVar("Rep")


class NativeClient:
    """`StageClient` over one gRPC channel, which `reset` replaces."""

    def __init__(self, address: str, token: str) -> None:
        self._address = address
        self._token = token
        self._channel = RpcChannel(address, token)

    async def call(self, method: Method[Req, Rep], request: Req, deadline: Deadline) -> Rep:
        """As `StageClient.call`."""
        return await self._channel.call(method, request, deadline)

    def stream(
        self, method: Method[Req, Rep], request: Req, deadline: Deadline
    ) -> AsyncGenerator[Rep, None]:
        """As `StageClient.stream`."""
        return self._channel.stream(method, request, deadline)

    async def reset(self) -> None:
        """As `StageClient.reset`."""
        old, self._channel = self._channel, RpcChannel(self._address, self._token)
        await old.close()

    async def close(self) -> None:
        """As `StageClient.close`."""
        await self._channel.close()
