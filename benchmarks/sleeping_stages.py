"""Stages with a fixed service time that they sleep through, so that their capacity is known.

`python -m benchmarks.sleeping_stages SLOTS SECONDS` is `instant_stages` with one difference: a
prefill takes one of SLOTS places for SECONDS, so that SLOTS / SECONDS requests are served per
second at most, whatever else the machine does. It prints the addresses as one line of JSON and
serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.instant_stages import InstantReplica, serve
from protocol.deadline import Deadline
from protocol.generate import GenerateRequest
from protocol.rpc import Prefilled


class SleepingReplica(InstantReplica):
    """Prefills as many at once as it has places.

    Attributes:
        places: shared by all replicas of the process.
        seconds: that a prefill takes.
    """

    places = asyncio.Semaphore(1)
    seconds = 0.0

    async def prefill(self, request: GenerateRequest, deadline: Deadline) -> Prefilled:
        """Sleep in a place, then answer."""
        async with self.places:
            await asyncio.sleep(self.seconds)
            return await super().prefill(request, deadline)


if __name__ == "__main__":
    SleepingReplica.places = asyncio.Semaphore(int(sys.argv[1]))
    SleepingReplica.seconds = float(sys.argv[2])
    asyncio.run(serve(SleepingReplica))
