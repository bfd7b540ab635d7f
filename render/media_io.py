"""`media_io_kwargs`: how a request wants its media to be read, before they are processed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from protocol.errors import InvalidRequest
from render.video import VideoInfo

Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]

WHITE = (255, 255, 255)


class ImageIo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an image is read.

    Attributes:
        image_mode: what it becomes.
        rgba_background_color: what shows through where it is transparent.
    """

    image_mode: Literal["RGB"] = "RGB"
    rgba_background_color: tuple[Byte, Byte, Byte] = WHITE


class VideoIo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which frames of a video are read; neither: those that the model's processor samples.

    Attributes:
        num_frames: that many, evenly spread; -1 for all.
        fps: that many per second, at most `num_frames` where both are given.
    """

    num_frames: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    fps: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None = None

    def __post_init__(self) -> None:
        if self.num_frames == 0:
            raise ValueError("num_frames must be at least 1, or -1 for all")


class AudioIo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a sound is read: there is nothing to choose."""


MediaIo = ImageIo | VideoIo | AudioIo

_TYPES: dict[str, type[MediaIo]] = {"image": ImageIo, "video": VideoIo, "audio": AudioIo}


def check_media_io(given: dict[str, Any] | None, modalities: Collection[str]) -> None:
    """Refuse arguments that cannot be honoured.

    Args:
        given: `media_io_kwargs` of a request.
        modalities: those that the model takes.

    Raises:
        InvalidRequest: names the argument.
    """
    for modality, options in (given or {}).items():
        param = f"media_io_kwargs.{modality}"
        if modality not in _TYPES or modality not in modalities:
            takes = ", ".join(sorted(modalities)) or "text only"
            raise InvalidRequest(f"this model does not take {modality} input ({takes})", param)
        try:
            msgspec.convert(options, _TYPES[modality])
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{param}: {error}", param) from None


def image_io(options: dict[str, Any] | None) -> ImageIo:
    """Checked options of an image."""
    return msgspec.convert(options or {}, ImageIo)


def video_io(options: dict[str, Any] | None) -> VideoIo:
    """Checked options of a video."""
    return msgspec.convert(options or {}, VideoIo)


def sampled(io: VideoIo, info: VideoInfo) -> Sequence[int] | None:
    """The frames that are asked for, None where the model is to choose."""
    if io.num_frames is None and io.fps is None:
        return None
    count = info.total
    if io.fps is not None:
        count = max(1, int(info.duration * io.fps))
    if io.num_frames is not None and io.num_frames > 0:
        count = min(count, io.num_frames)
    count = min(count, info.total)
    return [int(index) for index in np.linspace(0, info.total - 1, count).round()]
