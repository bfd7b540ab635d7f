"""What a model is, whatever the path it lies at. Imports no torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from protocol.errors import InvalidRequest
from protocol.replica import Fingerprint

_SAMPLE = 64 * 1024
"""Bytes of each weights file's beginning that count besides its header."""

KV_LAYOUT = "kv1"
"""Version of the KV and embedding layout: changes with `kv_buffer` and the adapters' widths."""


def model_digest(model_dir: str) -> str:
    """A digest of config.json and of the headers, sizes and first bytes of the weights.

    Raises:
        InvalidRequest: the directory holds no model.
    """
    root = Path(model_dir)
    config = root / "config.json"
    if not config.is_file():
        raise InvalidRequest(f"{model_dir} holds no config.json", "model")
    digest = hashlib.sha256(config.read_bytes())
    for path in sorted(root.glob("*.safetensors")):
        with path.open("rb") as file:
            length = file.read(8)
            digest.update(path.name.encode() + path.stat().st_size.to_bytes(8, "little") + length)
            digest.update(file.read(int.from_bytes(length, "little")))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:32]


def fingerprint(model_dir: str, revision: str, dtype: str, block_size: int) -> Fingerprint:
    """The fingerprint of a worker; raises as `model_digest` does."""
    return Fingerprint(model_digest(model_dir), revision, dtype, f"{KV_LAYOUT}/{block_size}")
