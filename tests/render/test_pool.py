"""The pool of media processes: results, refusals, and processes that die."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, InternalError, InvalidRequest, Overloaded
from render.media_process import MediaJob
from render.pool import MediaPool
from tests.render import checkpoints
from tests.render.conftest import picture

pytestmark = pytest.mark.asyncio(loop_scope="module")


def job(data: bytes) -> MediaJob:
    return MediaJob("image", data, None, "tiny", 10**6, 8, 60.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(qwen3_vl: Path) -> AsyncIterator[MediaPool]:
    pool = MediaPool(qwen3_vl, 1, 4)
    await pool.start()
    yield pool
    await pool.stop()


def segments() -> list[Path]:
    """Shared memory that results of this process's pools lie in."""
    return list(Path("/dev/shm").glob(f"triptych_render_{os.getpid()}_*"))


def processes(pool: MediaPool) -> list[int]:
    return list(pool._executor._processes)


async def test_an_image_becomes_an_item(pool: MediaPool) -> None:
    done = await pool.run(job(picture(64, 64)), Deadline.after(30))
    assert len(done.mm_hash) == 64
    assert done.runs[0].repeat == 4
    assert done.metadata is not None
    assert pool.pending == 0


async def test_a_fault_of_the_medium_crosses_the_process(pool: MediaPool) -> None:
    with pytest.raises(InvalidRequest, match="not an image"):
        await pool.run(job(b"no image"), Deadline.after(30))


async def test_more_than_may_wait_is_refused(pool: MediaPool) -> None:
    jobs = [pool.run(job(picture(64, 64 + n)), Deadline.after(30)) for n in range(6)]
    done = await asyncio.gather(*jobs, return_exceptions=True)
    assert sum(isinstance(one, Overloaded) for one in done) == 2
    assert pool.pending == 0


async def test_a_deadline_ends_the_wait_and_leaves_nothing(pool: MediaPool) -> None:
    with pytest.raises(DeadlineExceeded):
        await pool.run(job(picture(640, 480)), Deadline.after(0.001))
    await pool.run(job(picture(64, 64)), Deadline.after(30))  # behind it in the queue
    await asyncio.sleep(0)
    assert not segments()
    assert pool.pending == 0


async def test_a_process_that_dies_is_replaced(pool: MediaPool) -> None:
    (first,) = processes(pool)
    os.kill(first, signal.SIGKILL)
    done = await pool.run(job(picture(64, 64)), Deadline.after(60))
    assert done.runs[0].repeat == 4
    assert processes(pool) != [first]


async def test_a_checkpoint_whose_processor_cannot_load_says_so(tmp_path: Path) -> None:
    checkpoints.qwen3_vl(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    pool = MediaPool(tmp_path, 1, 4)
    try:
        with pytest.raises(InternalError, match="did not start"):
            await pool.start()
    finally:
        await pool.stop()
