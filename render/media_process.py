"""What runs in a process of the media pool: decode, process, hash, encode.

The item's bytes go back through a shared memory segment that the parent removes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import signal
import struct
import threading
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, NamedTuple

import pybase64

from protocol.errors import InternalError, InvalidRequest, TriptychError
from protocol.items import encode, metadata_of
from render.families.base import Family, Processed, Run
from render.media_io import image_io, sampled, video_io


class MediaJob(NamedTuple):
    """One medium to process.

    Attributes:
        data: its bytes as uploaded.
        kwargs: `mm_processor_kwargs` of the request, or None.
        io: `media_io_kwargs` of the request for this modality, checked, or None.
        as_text: answer the item as base64, as JSON needs it, instead of raw.
        model_id: the model as it was named to the server.
        max_pixels: largest image.
        max_frames: most frames of a video.
        max_seconds: longest sound.
    """

    modality: str
    data: bytes
    kwargs: dict[str, Any] | None
    model_id: str
    max_pixels: int
    max_frames: int
    max_seconds: float
    io: dict[str, Any] | None = None
    as_text: bool = False


class MediaResult(NamedTuple):
    """A processed medium.

    Attributes:
        mm_hash: its content hash.
        segment: name of the shared memory that holds the encoded item, or its base64.
        nbytes: of what it holds.
        metadata: the encoded metadata item, None where there is none.
        runs: the tokens that its placeholder is replaced by.
    """

    mm_hash: str
    segment: str
    nbytes: int
    metadata: bytes | None
    runs: tuple[Run, ...]


_REFUSALS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""What processors raise on media and arguments that they were not made for."""

_log = logging.getLogger(__name__)

_family: Family | None = None
_failure: str = ""


def initialise(path: str) -> None:
    """Load the family's processors, once per process."""
    global _family, _failure  # noqa: PLW0603 - one process, one family
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from render.checkpoint import open_checkpoint
        from render.families import create

        family = create(open_checkpoint(Path(path)))
        import torch

        torch.set_num_threads(1)
        family.load()
    except Exception as error:  # noqa: BLE001 - told to the parent by `ready`
        _failure = f"{type(error).__name__}: {error}"
        return
    _family = family


def _end_with_parent() -> None:
    """End this process when its parent is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def ready() -> str:
    """What failed while the processors were loaded, empty where nothing did."""
    return _failure


def process(job: MediaJob) -> MediaResult:
    """Decode, process, hash and encode one medium.

    Raises:
        InvalidRequest: the medium, or the arguments, cannot be honoured.
    """
    if _family is None:
        raise InternalError(f"the media process did not start: {_failure}")
    try:
        return _BY_MODALITY[job.modality](_family, job)
    except TriptychError:
        raise
    except Exception as error:  # noqa: BLE001 - another's might not survive pickling
        if job.kwargs or isinstance(error, _REFUSALS):
            # A processor's own checks: aspect ratio, sizes, unknown arguments.
            raise InvalidRequest(f"the {job.modality} cannot be processed: {error}") from None
        _log.exception("processing failed")
        raise InternalError(f"the {job.modality} processor failed") from None


def _image(family: Family, job: MediaJob) -> MediaResult:
    from render.hashing import image_hash
    from render.image import decode

    background = image_io(job.io).rgba_background_color
    image, converted = decode(job.data, job.max_pixels, background)
    mm_hash = image_hash(
        job.data,
        converted=converted,
        model_id=job.model_id,
        mm_processor_kwargs=job.kwargs,
        media_io_kwargs=job.io,
        background=background,
    )
    processed = family.image(image, job.kwargs or {})
    return _result(family, mm_hash, processed, as_text=job.as_text)


def _video(family: Family, job: MediaJob) -> MediaResult:
    from render.hashing import video_hash
    from render.video import decode

    io = video_io(job.io)
    frames = decode(
        job.data,
        lambda info: sampled(io, info) or family.choose_frames(info),
        max_pixels=job.max_pixels,
        max_frames=job.max_frames,
    )
    mm_hash = video_hash(
        job.data,
        frames,
        model_id=job.model_id,
        mm_processor_kwargs=job.kwargs,
        media_io_kwargs=job.io,
    )
    processed = family.video(frames, job.kwargs or {})
    return _result(family, mm_hash, processed, as_text=job.as_text)


def _audio(family: Family, job: MediaJob) -> MediaResult:
    from render.audio import decode
    from render.hashing import audio_hash

    samples = decode(job.data, family.sample_rate, max_seconds=job.max_seconds)
    mm_hash = audio_hash(
        samples,
        model_id=job.model_id,
        mm_processor_kwargs=job.kwargs,
        media_io_kwargs=job.io,
    )
    processed = family.audio(samples, job.kwargs or {})
    return _result(family, mm_hash, processed, as_text=job.as_text)


_BY_MODALITY = {"image": _image, "video": _video, "audio": _audio}


def _result(family: Family, mm_hash: str, processed: Processed, *, as_text: bool) -> MediaResult:
    metadata = metadata_of(processed.fields, family.metadata)
    item = encode(processed.fields)
    if as_text:
        item = pybase64.b64encode(item)
    name = f"triptych_render_{os.getppid()}_{secrets.token_hex(8)}"  # whose it is can be seen
    segment = SharedMemory(name, create=True, size=len(item))
    try:
        memoryview(segment.buf or b"")[: len(item)] = item
        return MediaResult(
            mm_hash,
            segment.name,
            len(item),
            encode(metadata) if metadata else None,
            processed.runs,
        )
    finally:
        segment.close()
