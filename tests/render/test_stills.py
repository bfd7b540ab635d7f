"""Videos as lists of JPEG frames."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from PIL import Image

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest
from render.config import MediaConfig
from render.fetch import MediaFetcher
from render.stills import MARK, pack, unpack
from render.video import decode
from tests.render.conftest import encoded

SHADES = [0, 90, 180, 250]


def still(shade: int, size: tuple[int, int] = (32, 24)) -> bytes:
    return encoded(Image.new("RGB", size, (shade,) * 3), "JPEG")


async def fetched(frames: list[bytes]) -> bytes:
    url = "data:video/jpeg;base64," + ",".join(base64.b64encode(f).decode() for f in frames)
    fetcher = MediaFetcher(MediaConfig())
    try:
        return await fetcher.fetch(url, "video_url", Deadline.after(5))
    finally:
        await fetcher.close()


async def test_every_frame_of_a_list_is_a_frame_of_the_video() -> None:
    data = await fetched([still(shade) for shade in SHADES])
    found = decode(data, lambda _: [0], max_pixels=10_000, max_frames=10)
    assert found.indices == [0, 1, 2, 3]
    assert found.pixels.shape == (4, 24, 32, 3)
    assert [float(frame.mean()) for frame in found.pixels] == pytest.approx(SHADES, abs=2)
    assert (found.info.total, found.info.fps, found.info.duration) == (4, 1.0, 4.0)
    few = decode(data, lambda _: [0], max_pixels=10_000, max_frames=2)
    assert few.indices == [0, 3]
    assert np.array_equal(few.pixels[1], found.pixels[3])


async def test_what_is_no_list_of_frames_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not valid base64"):
        await _broken()
    for frames, message in [
        ([still(0), b"no image"], "not an image"),
        ([still(0), still(0, (8, 8))], "different sizes"),
        ([still(0, (200, 200))], "pixels"),
    ]:
        with pytest.raises(InvalidRequest, match=message):
            decode(await fetched(frames), lambda _: [0], max_pixels=10_000, max_frames=4)


async def _broken() -> bytes:
    fetcher = MediaFetcher(MediaConfig())
    try:
        return await fetcher.fetch("data:video/jpeg;base64,AA=,%%", "x", Deadline.after(5))
    finally:
        await fetcher.close()


@pytest.mark.parametrize(
    "data",
    [MARK, MARK + b"\x01", MARK + b"\xff\xff\xff\xff", MARK + b"\0\0\0\0", pack([b"ab"])[:-1]],
)
def test_a_damaged_piece_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"damaged|no frames"):
        unpack(data)


def test_a_piece_gives_back_its_frames() -> None:
    assert unpack(pack([b"a", b"bcd"])) == [b"a", b"bcd"]
