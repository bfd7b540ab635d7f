"""Tensors as buffers and buffers as tensors, without copies. The only torch import here."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from protocol.errors import InvalidRequest


def as_buffer(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor of any dtype.

    Raises:
        ValueError: it is not contiguous or not on the CPU.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError("a contiguous CPU tensor is needed")
    flat = tensor.detach().view(torch.uint8) if tensor.ndim else tensor.detach().reshape(1)
    return flat.view(torch.uint8).reshape(-1).numpy().data


def from_buffer(buffer: memoryview, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """A tensor over the buffer's memory, which it keeps alive; read-only where the buffer is.

    torch has no read-only tensors: writing to one over read-only memory ends the process, so
    clone it first.

    Args:
        dtype: torch's name without `torch.`.

    Raises:
        ValueError: dtype unknown, or the size does not fit.
    """
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"unknown dtype {dtype!r}")  # noqa: TRY004 (a name from a message)
    if buffer.nbytes == 0:
        return torch.empty(shape, dtype=kind)
    owner = np.frombuffer(buffer, np.uint8)
    if not buffer.readonly:
        return torch.from_numpy(owner).view(kind).reshape(shape)
    # torch warns at each read-only buffer; an array of its address does not tell.
    array = (ctypes.c_uint8 * buffer.nbytes).from_address(owner.ctypes.data)
    setattr(array, "owner", owner)  # noqa: B010 (keeps the memory alive; ctypes has no such field)
    return torch.frombuffer(array, dtype=kind).reshape(shape)


def pin(address: int, nbytes: int) -> None:
    """Lock memory's pages and let CUDA know them, so that it copies them without staging.

    Raises:
        InvalidRequest: there is no CUDA device, or it refuses.
    """
    if not torch.cuda.is_available():
        raise InvalidRequest("pinned memory needs a CUDA device", "ec.memory")
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    code = int(cudart.cudaHostRegister(address, nbytes, 0))
    if code:
        raise InvalidRequest(
            f"CUDA does not pin {nbytes} bytes (error {code}): see the limit of locked memory",
            "ec.memory",
        )


def unpin(address: int) -> None:
    """Undo `pin`; harmless where that failed."""
    if torch.cuda.is_available():
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        cudart.cudaHostUnregister(address)
