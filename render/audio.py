"""An uploaded sound to the samples that its model hears: one channel, float32, the model's rate.

libsndfile reads the usual files, FFmpeg the rest (sound in MP4 and WebM). Untrusted containers are
opened from memory with a list of demuxers that open nothing else; length, rate and channels are
checked before a sample is decoded, and again while they are.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from protocol.errors import InvalidRequest

_DEMUXERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,mp3,aac,ogg,flac,wav,amr"
_OPTIONS = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "none", "enable_drefs": "0"}

_RATES = range(1_000, 384_001)
_MOST_CHANNELS = 32
_LEAST_TO_RESAMPLE = 1024
"""Samples below which libswresample gives nothing; shorter sounds are padded and cut again."""

Samples = np.ndarray[Any, np.dtype[np.float32]]


def decode(data: bytes, rate: int, *, max_seconds: float) -> Samples:
    """Decode one sound.

    Args:
        data: the file.
        rate: samples per second that the model hears.
        max_seconds: longest sound.

    Returns:
        float32 [samples].

    Raises:
        InvalidRequest: it is too long, or no sound that can be decoded.
    """
    found = _by_soundfile(data, max_seconds)
    samples, own = _by_ffmpeg(data, max_seconds) if found is None else found
    if not len(samples):
        raise InvalidRequest("the sound is empty")
    if not np.isfinite(samples).all():
        raise InvalidRequest("the sound has samples that are no numbers")
    return resampled(samples, own, rate)


def resampled(samples: Samples, own: int, rate: int) -> Samples:
    """The sound at another rate, by FFmpeg's resampler."""
    if own == rate:
        return samples
    import av

    wanted = math.ceil(len(samples) * rate / own)
    padded = np.pad(samples, (0, max(0, _LEAST_TO_RESAMPLE - len(samples))))
    frame = av.AudioFrame.from_ndarray(padded.reshape(1, -1), format="fltp", layout="mono")
    frame.sample_rate = own
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=rate)
    pieces = [*resampler.resample(frame), *resampler.resample(None)]
    out = np.concatenate([piece.to_ndarray()[0] for piece in pieces])
    return np.ascontiguousarray(out[:wanted], dtype=np.float32)


def _check(seconds: float, rate: int, channels: int, max_seconds: float) -> None:
    if rate not in _RATES:
        raise InvalidRequest(
            f"the sound has {rate} samples a second; {_RATES[0]} to {_RATES[-1]} are accepted"
        )
    if not 1 <= channels <= _MOST_CHANNELS:
        raise InvalidRequest(
            f"the sound has {channels} channels; at most {_MOST_CHANNELS} are accepted"
        )
    if seconds > max_seconds:
        raise InvalidRequest(
            f"the sound is {seconds:.1f} seconds long, more than the {max_seconds:g} allowed"
        )


def _by_soundfile(data: bytes, max_seconds: float) -> tuple[Samples, int] | None:
    """Samples and their rate, None where libsndfile cannot read the file."""
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate, channels = file.samplerate, file.channels
            _check(file.frames / max(1, rate), rate, channels, max_seconds)
            most = int(max_seconds * rate) + 1  # a header may promise less than there is
            samples = file.read(frames=most, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, TypeError, ValueError, OSError):
        return None
    _check(len(samples) / rate, rate, channels, max_seconds)
    mono = samples[:, 0] if channels == 1 else samples.mean(axis=1)
    return np.ascontiguousarray(mono, dtype=np.float32), rate


def _by_ffmpeg(data: bytes, max_seconds: float) -> tuple[Samples, int]:
    import av
    from av.error import FFmpegError

    try:
        with av.open(io.BytesIO(data), "r", options=_OPTIONS) as container:
            if not container.streams.audio:
                raise InvalidRequest("the data holds no sound")
            stream = container.streams.audio[0]
            stream.codec_context.thread_type = "NONE"
            rate, channels = int(stream.rate or 0), int(stream.channels or 0)
            said = stream.duration and stream.time_base and stream.duration * stream.time_base
            _check(float(said or 0), rate, channels, max_seconds)
            pieces: list[Samples] = []
            count = 0
            converter = av.AudioResampler(format="fltp")
            for packed in container.decode(stream):
                for frame in converter.resample(packed):
                    if frame.sample_rate != rate:
                        raise InvalidRequest("the rate of the sound changes within it")
                    count += frame.samples
                    _check(count / rate, rate, channels, max_seconds)
                    pieces.append(frame.to_ndarray().mean(axis=0, dtype=np.float32))
            return (np.concatenate(pieces) if pieces else np.empty(0, np.float32)), rate
    except (FFmpegError, ValueError, OSError, EOFError, OverflowError) as error:
        raise InvalidRequest(
            f"the data is not a sound that can be decoded: {type(error).__name__}"
        ) from None
