"""Small items: their bytes come with the exchange's answer, over no connection of their own."""

from __future__ import annotations

from collections.abc import Sequence

from ec_connector.copying import scatter
from ec_connector.messages import Granted
from ec_connector.transports.base import Channel
from protocol.deadline import Deadline
from protocol.errors import TransferError


class InlineChannel(Channel):
    """One read whose answer holds the bytes."""

    async def receive(
        self, granted: Granted, into: Sequence[memoryview], deadline: Deadline
    ) -> None:
        if granted.data is None or len(granted.data) != granted.nbytes:
            raise TransferError("the answer does not hold the item", "transport_failed")
        scatter([memoryview(granted.data)], into)

    async def close(self, *, clean: bool) -> None:
        pass
