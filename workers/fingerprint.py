"""What a model is, whatever the path it lies at. Imports no torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import msgspec

from protocol.errors import InvalidRequest
from protocol.replica import Fingerprint

_SAMPLE = 512
"""Bytes of each tensor that count, from its middle. Training changes all of a tensor, so weights
that differ differ there, and a checkpoint of any size is told from another in a few thousand short
reads."""

KV_LAYOUT = "kv1"
"""Version of the KV and embedding layout: changes with `kv_buffer` and the adapters' widths."""


class _Tensor(msgspec.Struct, frozen=True):
    data_offsets: tuple[int, int]


_header = msgspec.json.Decoder(dict[str, msgspec.Raw])


def model_digest(model_dir: str) -> str:
    """A digest of config.json and, per file of weights, of its size, header and samples.

    Raises:
        InvalidRequest: the directory holds no model, or a file of weights is none.
    """
    root = Path(model_dir)
    config = root / "config.json"
    if not config.is_file():
        raise InvalidRequest(f"{model_dir} holds no config.json", "model")
    digest = hashlib.sha256(config.read_bytes())
    for path in sorted(root.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(path.name.encode() + size.to_bytes(8, "little"))
        try:
            with path.open("rb", buffering=0) as file:
                for part in _samples(file, size):
                    digest.update(part)
        except (ValueError, msgspec.DecodeError) as error:
            raise InvalidRequest(
                f"{path.name} is no file of safetensors: {error}", "model"
            ) from None
    return digest.hexdigest()[:32]


def _samples(file: BinaryIO, size: int) -> list[bytes]:
    """The header of a file of weights and the middle of each tensor."""
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise ValueError("its header is longer than the file")
    header = file.read(length)
    parts = [header]
    for name, raw in _header.decode(header).items():
        if name == "__metadata__":
            continue
        start, end = msgspec.json.decode(raw, type=_Tensor).data_offsets
        if not 0 <= start <= end <= size - 8 - length:
            raise ValueError(f"{name} is not inside of it")
        file.seek(8 + length + max(start, (start + end - _SAMPLE) // 2))
        parts.append(file.read(min(_SAMPLE, end - start)))
    return parts


def fingerprint(model_dir: str, revision: str, dtype: str, block_size: int) -> Fingerprint:
    """The fingerprint of a worker; raises as `model_digest` does."""
    return Fingerprint(model_digest(model_dir), revision, dtype, f"{KV_LAYOUT}/{block_size}")
