"""What is said about an item's bytes beyond their number: a checksum, finite values, rows.

Checked where the fault is made, so that a NaN is an error at the encoder and not a strange answer
at the client.
"""

from __future__ import annotations

import numpy as np

from ec_connector.config import EcConfig
from ec_connector.copying import copy
from protocol.errors import TransferError

_CHUNK = 2**20

_NOT_FINITE: dict[str, tuple[type[np.unsignedinteger], int]] = {
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
    "float32": (np.uint32, 0x7F800000),
    "float64": (np.uint64, 0x7FF0000000000000),
    "float8_e5m2": (np.uint8, 0x7C),
    "float8_e4m3fn": (np.uint8, 0x7F),
}
"""dtype -> its bits as a number, and those that are all set in infinities and NaNs alone."""


def checksum(data: memoryview) -> int:
    """CRC32C of the bytes. Takes a while for large ones: to be run in a thread.

    Raises:
        ImportError: the extra `checksum` is not installed.
    """
    import google_crc32c

    value = 0
    for start in range(0, data.nbytes, _CHUNK):
        # The library takes nothing but bytes; chunks let other threads run in between.
        value = google_crc32c.extend(value, bytes(data[start : start + _CHUNK]))
    return value


def check_finite(mm_hash: str, data: memoryview, dtype: str) -> None:
    """Refuse infinities and NaNs; integers are always fine.

    Raises:
        TransferError: `invalid_content`.
    """
    if dtype not in _NOT_FINITE:
        return
    unsigned, mask = _NOT_FINITE[dtype]
    numbers = np.frombuffer(data, unsigned)
    for start in range(0, numbers.size, _CHUNK):
        chunk = numbers[start : start + _CHUNK]
        if bool(np.any((chunk & unsigned(mask)) == unsigned(mask))):
            raise TransferError(
                f"item {mm_hash} has values that are not finite", "invalid_content", (mm_hash,)
            )


def fill(
    mm_hash: str, source: memoryview, destination: memoryview, dtype: str, config: EcConfig
) -> int | None:
    """Check an item as configured and copy it; returns its checksum if that is wanted.

    Raises:
        TransferError: `invalid_content`.
    """
    if config.check_finite:
        check_finite(mm_hash, source, dtype)
    copy(source, destination)
    return checksum(destination) if config.checksum else None


def check_rows(
    mm_hash: str, shape: tuple[int, ...], dtype: str, *, rows: int, width: int, expected_dtype: str
) -> None:
    """Check an embedding against the placeholder that it is for, before it is handed on.

    Raises:
        TransferError: `invalid_content`, with both forms.
    """
    if shape != (rows, width) or dtype != expected_dtype:
        raise TransferError(
            f"item {mm_hash} is {dtype}{list(shape)}, its placeholder takes "
            f"{expected_dtype}{[rows, width]}",
            "invalid_content",
            (mm_hash,),
        )
