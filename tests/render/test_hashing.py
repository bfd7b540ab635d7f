"""`mm_hash` against the algorithm written out by hand."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from blake3 import blake3

from render.hashing import image_hash, video_hash
from render.video import Frames, VideoInfo


def framed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def entry(key: str, value: bytes) -> bytes:
    return framed(key.encode()) + value


def leaf(data: bytes) -> bytes:
    return b"\x03" + data


DATA = b"the file"
MODEL = entry("model_id", leaf(framed(b"./tiny")))


def test_an_rgb_file_is_its_bytes_under_the_model() -> None:
    image = leaf(entry("image", leaf(framed(DATA))))
    expected = blake3(entry("image", image) + MODEL).hexdigest()
    found = image_hash(DATA, converted=False, model_id="./tiny", mm_processor_kwargs=None)
    assert found == expected


def test_a_converted_file_names_the_conversion() -> None:
    numbers = b"".join(leaf(framed(struct.pack("<q", 255))) for _ in range(3))
    io_config = (
        b"\x02" + struct.pack("<Q", 2)
        + framed(b"image_mode") + leaf(framed(b"RGB"))
        + framed(b"rgba_background_color") + b"\x01" + struct.pack("<Q", 3) + numbers
    )  # fmt: skip
    value = b"\x02" + struct.pack("<Q", 2) + framed(b"io_config") + io_config
    value += framed(b"data") + leaf(framed(DATA))
    expected = blake3(entry("image", leaf(entry("image", value))) + MODEL).hexdigest()
    found = image_hash(DATA, converted=True, model_id="./tiny", mm_processor_kwargs={})
    assert found == expected


def test_processor_arguments_come_between() -> None:
    image = leaf(entry("image", leaf(framed(DATA))))
    size = framed(b"size") + b"\x02" + struct.pack("<Q", 1)
    size += framed(b"longest_edge") + leaf(framed(struct.pack("<q", 4096)))
    more = framed(b"do_resize") + leaf(framed(b"\x01"))
    kwargs = b"\x02" + struct.pack("<Q", 2) + size + more
    expected = blake3(
        entry("image", image) + entry("mm_processor_kwargs", kwargs) + MODEL
    ).hexdigest()
    given = {"size": {"longest_edge": 4096}, "do_resize": True}
    found = image_hash(DATA, converted=False, model_id="./tiny", mm_processor_kwargs=given)
    assert found == expected


def test_what_is_part_of_the_identity() -> None:
    plain = {"converted": False, "model_id": "m", "mm_processor_kwargs": None}
    hashes = {
        image_hash(DATA, **plain),
        image_hash(DATA + b"x", **plain),
        image_hash(DATA, **{**plain, "model_id": "n"}),
        image_hash(DATA, **{**plain, "converted": True}),
        image_hash(DATA, **{**plain, "mm_processor_kwargs": {"a": None}}),
        image_hash(DATA, **{**plain, "mm_processor_kwargs": {"a": 1.5}}),
        image_hash(DATA, **{**plain, "mm_processor_kwargs": {"a": [1, "x"]}}),
    }
    assert len(hashes) == 7
    assert all(len(found) == 64 for found in hashes)


def test_a_value_that_has_no_hash_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        image_hash(DATA, converted=False, model_id="m", mm_processor_kwargs={"a": object()})


def test_a_video_is_its_bytes_and_the_frames_taken_from_it() -> None:
    info = VideoInfo(total=4, fps=2.0, width=8, height=8)

    def found(indices: list[int]) -> str:
        frames = Frames(np.zeros((len(indices), 8, 8, 3), np.uint8), indices, info)
        return video_hash(DATA, frames, model_id="./tiny", mm_processor_kwargs=None)

    pairs = {
        "total_num_frames": framed(struct.pack("<q", 4)),
        "fps": framed(struct.pack("<d", 2.0)),
        "duration": framed(struct.pack("<d", 2.0)),
        "video_backend": framed(b"opencv"),
    }
    value = b"\x02" + struct.pack("<Q", 6)
    value += b"".join(framed(name.encode()) + leaf(raw) for name, raw in pairs.items())
    indices = (
        b"\x01"
        + struct.pack("<Q", 2)
        + b"".join(leaf(framed(struct.pack("<q", n))) for n in (0, 3))
    )
    value += framed(b"frames_indices") + indices
    value += framed(b"do_sample_frames") + leaf(framed(b"\x00"))
    video = b"\x01" + struct.pack("<Q", 2) + leaf(entry("video", leaf(framed(DATA)))) + value
    expected = blake3(MODEL + entry("video", video)).hexdigest()
    assert found([0, 3]) == expected
    assert found([0, 1, 2, 3]) != expected
