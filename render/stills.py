"""A video as a list of JPEG frames, which a `data:video/jpeg` URL carries (wire-protocol §9.2).

Between the fetcher and the media process they travel as one piece of bytes: a mark, then each frame
after its length.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from protocol.errors import InvalidRequest
from render.image import decode as decode_image

MARK = b"triptych/stills\n"
FPS = 1.0
"""Frames per second, since such a list does not say."""

_LENGTH = struct.Struct("<I")


def pack(frames: Sequence[bytes]) -> bytes:
    """The frames as one piece."""
    return MARK + b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)


def unpack(data: bytes) -> list[bytes]:
    """The frames of a piece.

    Raises:
        InvalidRequest: it is damaged.
    """
    frames: list[bytes] = []
    at = len(MARK)
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise InvalidRequest("the list of frames is damaged")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not length or at + length > len(data):
            raise InvalidRequest("the list of frames is damaged")
        frames.append(data[at : at + length])
        at += length
    if not frames:
        raise InvalidRequest("the video has no frames")
    return frames


def pixels_of(
    frames: Sequence[bytes], max_pixels: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """uint8 [frames, height, width, 3].

    Raises:
        InvalidRequest: a frame is no image or too large, or they have different sizes.
    """
    images = [np.asarray(decode_image(frame, max_pixels).image) for frame in frames]
    if len({image.shape for image in images}) > 1:
        raise InvalidRequest("the frames of the video have different sizes")
    return np.stack(images)
