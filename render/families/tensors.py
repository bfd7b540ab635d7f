"""From torch or numpy to the codec's tensors, without copies where the memory allows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from protocol.items import Tensor

if TYPE_CHECKING:
    import torch


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A view of a C-contiguous array (a copy where it is not)."""
    shape = array.shape  # numpy makes a vector of a contiguous scalar
    array = np.ascontiguousarray(array)
    return Tensor(array.dtype.name, shape, array.reshape(-1).view(np.uint8).data)


def from_torch(tensor: torch.Tensor) -> Tensor:
    """A view of a CPU tensor; bfloat16 by its two-byte values."""
    import torch

    tensor = tensor.detach().contiguous()
    raw = tensor.reshape(-1).view(torch.uint8).numpy()
    return Tensor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw.data)


def grid(values: tuple[int, ...]) -> Tensor:
    """A short int64 vector, such as a grid's [t, h, w]."""
    return from_numpy(np.array(values, dtype=np.int64))


def model_dtype(config: Mapping[str, Any]) -> str:
    """The model's dtype by config.json; bfloat16 where it does not say."""
    found = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    return str(found).removeprefix("torch.")
