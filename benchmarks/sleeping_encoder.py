"""An encode replica whose tower sleeps instead of computing.

`python -m benchmarks.sleeping_encoder MODEL SECONDS` takes SECONDS per item, prints the address of
its gRPC server and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.scaled_model import PATCHES
from telemetry import logs
from workers.adapters.base import EncoderInput, VisionTower
from workers.config import WorkerConfig
from workers.server import WorkerServer


class SleepingTower(VisionTower):
    """Embeddings of zeros, as wide as those of the tower that it replaces.

    Args:
        real: asked once, for the width.
        seconds: per item.
    """

    def __init__(self, real: VisionTower, seconds: float) -> None:
        self._real = real
        self._seconds = seconds
        self._width = 0

    def encode(self, inputs: Sequence[EncoderInput]) -> list[torch.Tensor]:
        """As `VisionTower.encode`."""
        if not self._width:
            self._width = self._real.encode(inputs[:1])[0].shape[1]
        time.sleep(self._seconds * len(inputs))
        return [torch.zeros(one.layout.rows, self._width) for one in inputs]


async def main(model: str, seconds: float) -> None:
    """Serve until standard input ends."""
    server = WorkerServer(
        WorkerConfig(model=model, role="encode", threads=1, encoder_max_batch_tokens=PATCHES)
    )
    replica = await server.start()
    encoder = server.parts.encoder
    if encoder is None:
        raise RuntimeError("the encode role has no encoder")
    encoder.tower = SleepingTower(encoder.tower, seconds)
    print(replica.grpc, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()


if __name__ == "__main__":
    logs.configure("WARNING")
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
