"""`mm_hash`: the identity of one item's content (wire-protocol §4.8).

blake3 over keyword entries sorted by key, each length-prefixed and tagged by kind, so that equal
media with equal processing have equal hashes here and in vLLM.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from blake3 import blake3

if TYPE_CHECKING:
    from render.audio import Samples
    from render.video import Frames

IMAGE_IO: dict[str, Any] = {"image_mode": "RGB", "rgba_background_color": (255, 255, 255)}
"""How an image whose mode is not RGB was converted; part of its identity."""

_Update = Callable[[bytes], object]


def image_hash(
    data: bytes,
    *,
    converted: bool,
    model_id: str,
    mm_processor_kwargs: Mapping[str, Any] | None,
    media_io_kwargs: Mapping[str, Any] | None = None,
    background: tuple[int, int, int] = (255, 255, 255),
) -> str:
    """64 hex digits.

    Args:
        data: the image as uploaded.
        converted: whether its mode was not RGB.
        model_id: the model as it was named to the server.
        mm_processor_kwargs, media_io_kwargs: of the request, if it gave some.
        background: what shows through where the image is transparent.
    """
    io_config = {**IMAGE_IO, "rgba_background_color": background}
    leaf = {"io_config": io_config, "data": data} if converted else data
    return media_hash(
        "image",
        leaf,
        model_id=model_id,
        mm_processor_kwargs=mm_processor_kwargs,
        media_io_kwargs=media_io_kwargs,
    )


def audio_hash(
    samples: Samples,
    *,
    model_id: str,
    mm_processor_kwargs: Mapping[str, Any] | None,
    media_io_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """64 hex digits of the samples that the model hears."""
    leaf = {"dtype": str(samples.dtype), "shape": samples.shape, "data": samples.tobytes()}
    return media_hash(
        "audio",
        leaf,
        kind="ndarray",
        model_id=model_id,
        mm_processor_kwargs=mm_processor_kwargs,
        media_io_kwargs=media_io_kwargs,
    )


def video_hash(
    data: bytes,
    frames: Frames,
    *,
    model_id: str,
    mm_processor_kwargs: Mapping[str, Any] | None,
    media_io_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """64 hex digits of a video and of the frames that were taken from it."""
    info = frames.info
    metadata = {
        "total_num_frames": info.total,
        "fps": info.fps,
        "duration": info.duration,
        "video_backend": "opencv",
        "frames_indices": list(frames.indices),
        "do_sample_frames": len(frames.indices) == info.total,
    }
    return media_hash(
        "video",
        data,
        metadata=metadata,
        model_id=model_id,
        mm_processor_kwargs=mm_processor_kwargs,
        media_io_kwargs=media_io_kwargs,
    )


def media_hash(
    modality: str,
    leaf: Any,
    *,
    kind: str = "",
    metadata: Mapping[str, Any] | None = None,
    model_id: str,
    mm_processor_kwargs: Mapping[str, Any] | None,
    media_io_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The hash of an item whose content is `leaf`, under its modality's own entry.

    Args:
        kind: what the content is, "" for the modality itself.
        metadata: what besides the content makes the item.
    """
    content: Any = _Entry(kind or modality, leaf)
    if metadata is not None:
        content = [content, dict(metadata)]
    entries: dict[str, Any] = {modality: content, "model_id": model_id}
    if mm_processor_kwargs:
        entries["mm_processor_kwargs"] = dict(mm_processor_kwargs)
    if media_io_kwargs:
        entries["media_io_kwargs"] = dict(media_io_kwargs)
    hasher = blake3()
    for key in sorted(entries):
        _entry(hasher.update, key, entries[key])
    return hasher.hexdigest()


class _Entry:
    """A leaf that is an entry of its own: entry(name, value)."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value


def _framed(update: _Update, data: bytes) -> None:
    update(struct.pack("<Q", len(data)))
    update(data)


def _entry(update: _Update, key: str, value: Any) -> None:
    _framed(update, key.encode())
    _value(update, value)


def _value(update: _Update, value: Any) -> None:
    if value is None:
        update(b"\x00")
    elif isinstance(value, list | tuple):
        update(b"\x01" + struct.pack("<Q", len(value)))
        for element in value:
            _value(update, element)
    elif isinstance(value, dict):
        update(b"\x02" + struct.pack("<Q", len(value)))
        for key, element in value.items():
            _framed(update, str(key).encode())
            _value(update, element)
    else:
        update(b"\x03")
        _leaf(update, value)


def _leaf(update: _Update, value: Any) -> None:
    match value:
        case _Entry():
            _entry(update, value.name, value.value)
        case bytes():
            _framed(update, value)
        case str():
            _framed(update, value.encode())
        case bool():
            _framed(update, struct.pack("<?", value))
        case int():
            _framed(update, struct.pack("<q", value))
        case float():
            _framed(update, struct.pack("<d", value))
        case _:
            raise TypeError(f"a {type(value).__name__} has no place in an mm_hash")
