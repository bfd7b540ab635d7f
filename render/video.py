"""An uploaded video to the frames that its model samples, decoded by FFmpeg through PyAV.

Untrusted containers are opened from memory with a list of demuxers that open nothing else, and
sizes are checked before a frame is decoded.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from protocol.errors import InvalidRequest
from render import stills

_DEMUXERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,ogg,flv,gif"
_OPTIONS = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "none", "enable_drefs": "0"}

MAX_TOTAL_FRAMES = 36_000
"""Frames of the longest video, 20 minutes at 30 a second: decoding runs through all of them."""


class VideoInfo(NamedTuple):
    """What a video's container says.

    Attributes:
        total: frames.
        fps: frames per second.
        width, height: of a frame.
    """

    total: int
    fps: float
    width: int
    height: int

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.total / self.fps


class Frames(NamedTuple):
    """The sampled frames of a video.

    Attributes:
        pixels: uint8 [frames, height, width, 3].
        indices: which frames of the video they are, in order.
        info: of the whole video.
    """

    pixels: np.ndarray[Any, np.dtype[np.uint8]]
    indices: list[int]
    info: VideoInfo


def decode(
    data: bytes,
    choose: Callable[[VideoInfo], Sequence[int]],
    *,
    max_pixels: int,
    max_frames: int,
) -> Frames:
    """Decode the frames that `choose` names, at most `max_frames`, evenly thinned out.

    Raises:
        InvalidRequest: the data is no video that can be decoded, or is larger than allowed.
    """
    if data.startswith(stills.MARK):
        return _stills(data, max_pixels, max_frames)
    import av
    from av.error import FFmpegError

    try:
        with av.open(io.BytesIO(data), "r", options=_OPTIONS) as container:
            if not container.streams.video:
                raise InvalidRequest("the data holds no video")
            info = _info(container, data)
            if info.width * info.height > max_pixels:
                raise InvalidRequest(
                    f"the video has {info.width}x{info.height} pixels, more than the {max_pixels} "
                    "allowed"
                )
            if info.total > MAX_TOTAL_FRAMES:
                raise InvalidRequest(
                    f"the video has {info.total} frames, more than the {MAX_TOTAL_FRAMES} allowed"
                )
            wanted = thinned(choose(info), max_frames)
            return _read(container, info, wanted, max_pixels)
    except (FFmpegError, ValueError, OSError, EOFError, OverflowError) as error:
        raise InvalidRequest(
            f"the data is not a video that can be decoded: {type(error).__name__}"
        ) from None


def _stills(data: bytes, max_pixels: int, max_frames: int) -> Frames:
    """All frames of a list, which has been sampled already."""
    frames = stills.unpack(data)
    wanted = thinned(range(len(frames)), max_frames)
    pixels = stills.pixels_of([frames[index] for index in wanted], max_pixels)
    _, height, width, _ = pixels.shape
    return Frames(pixels, wanted, VideoInfo(len(frames), stills.FPS, width, height))


def thinned(indices: Sequence[int], most: int) -> list[int]:
    """At most `most` of the indices, evenly spread."""
    if len(indices) <= most:
        return [int(index) for index in indices]
    kept = np.linspace(0, len(indices) - 1, most).round().astype(int)
    return [int(indices[at]) for at in kept]


def _info(container: Any, data: bytes) -> VideoInfo:
    import av

    stream = container.streams.video[0]
    total = stream.frames
    if not total:  # the container does not say: count its packets
        with av.open(io.BytesIO(data), "r", options=_OPTIONS) as again:
            packets = again.demux(again.streams.video[0])
            total = sum(1 for packet in packets if packet.size)
    if not total:
        raise InvalidRequest("the video has no frames")
    fps = float(stream.average_rate or stream.guessed_rate or 24)
    return VideoInfo(total, fps, stream.codec_context.width, stream.codec_context.height)


def _read(container: Any, info: VideoInfo, wanted: list[int], max_pixels: int) -> Frames:
    """Decode in order up to the last wanted frame.

    Where a container promised more frames than it has, the last wanted one is repeated.
    """
    stream = container.streams.video[0]
    stream.thread_type = "NONE"
    needed = set(wanted)
    found: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}
    last: np.ndarray[Any, np.dtype[np.uint8]] | None = None
    for index, frame in enumerate(container.decode(stream)):
        if frame.width * frame.height > max_pixels:
            raise InvalidRequest("a frame of the video is larger than the video says")
        if index in needed:
            last = found[index] = frame.to_ndarray(format="rgb24")
        if index >= wanted[-1]:
            break
    if last is None:
        raise InvalidRequest("no frame of the video can be decoded")
    pixels = [found.get(index, last) for index in wanted]
    if len({one.shape for one in pixels}) > 1:
        raise InvalidRequest("the frames of the video have different sizes")
    return Frames(np.stack(pixels), wanted, info)
