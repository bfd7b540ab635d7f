"""Two answers to one request, field by field: what differs, where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from interop.difference import Answer, Difference
from interop.wanted import INTERNAL, NOTHING
from protocol.errors import InvalidRequest
from protocol.items import Factory, Field, Flat, Shared, Tensor, decode_base64
from protocol.sampling import SamplingParams

TOLERANCE = 1e-5
"""Of floating-point tensors; integers are equal to the last bit."""

_COLUMNS = ("kwargs_data", "mm_metadata")
_TYPE_DEFAULTS = {"max_tokens": 16}
"""What the reference leaves out because it is its type's default, where ours is another."""


def compare(ours: Answer, theirs: Answer) -> list[Difference]:
    """What differs: in a refusal the status and the error's type, else everything."""
    if ours.status != theirs.status:
        return [Difference("status", _told(ours), _told(theirs))]
    if ours.status != 200:
        kinds = [_error_type(answer.body) for answer in (ours, theirs)]
        if kinds[0] != kinds[1]:
            return [Difference("error.type", _told(ours), _told(theirs))]
        return []
    return list(_bodies(ours.body, theirs.body, ""))


def _bodies(ours: Any, theirs: Any, at: str) -> Iterator[Difference]:
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if isinstance(one, dict) and "sampling_params" in one:
                yield from _requests(one, other, f"[{index}].")
            else:
                yield from _values(one, other, f"[{index}]")
    elif isinstance(ours, dict) and isinstance(theirs, dict) and "sampling_params" in theirs:
        yield from _requests(ours, theirs, at)
    else:
        yield from _values(ours, theirs, at)


def _requests(ours: dict[str, Any], theirs: dict[str, Any], at: str) -> Iterator[Difference]:
    """Two generate requests."""
    special = {"features", "sampling_params"}
    for name in sorted((ours.keys() | theirs.keys()) - special):
        yield from _values(ours.get(name), theirs.get(name), f"{at}{name}")
    yield from _values(
        sampling(ours.get("sampling_params")),
        sampling(theirs.get("sampling_params")),
        f"{at}sampling_params",
    )
    yield from _features(ours.get("features"), theirs.get("features"), f"{at}features")


def sampling(given: dict[str, Any] | None) -> dict[str, Any]:
    """Parameters with the defaults that both servers leave out, each its own way."""
    full: dict[str, Any] = {
        name: default
        for name, default in zip(
            SamplingParams.__struct_fields__, SamplingParams.__struct_defaults__, strict=True
        )
        if default is not msgspec.NODEFAULT
    }
    full |= {**_TYPE_DEFAULTS, **(given or {})}
    constraints = full["structured_outputs"]
    if isinstance(constraints, dict):  # which the reference writes with all that is not asked for
        full["structured_outputs"] = {
            name: value for name, value in constraints.items() if value not in (None, False)
        }
    return {
        name: None if value in NOTHING.get(name, ()) else value
        for name, value in full.items()
        if name not in INTERNAL
    }


def _features(ours: Any, theirs: Any, at: str) -> Iterator[Difference]:
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        yield from _values(ours, theirs, at)
        return
    for name in sorted((ours.keys() | theirs.keys()) - {*_COLUMNS}):
        yield from _values(ours.get(name), theirs.get(name), f"{at}.{name}")
    for name in _COLUMNS:
        yield from _column(ours.get(name), theirs.get(name), f"{at}.{name}")


def _column(ours: Any, theirs: Any, at: str) -> Iterator[Difference]:
    """`kwargs_data` or `mm_metadata`: each item decoded."""
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        yield from _values(ours, theirs, at)
        return
    for modality in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(modality), theirs.get(modality)
        if not isinstance(one, list) or not isinstance(other, list) or len(one) != len(other):
            yield Difference(f"{at}.{modality}", one, other)
            continue
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from _items(*pair, f"{at}.{modality}[{index}]")


def _items(ours: Any, theirs: Any, at: str) -> Iterator[Difference]:
    if ours == theirs:
        return
    if not isinstance(ours, str) or not isinstance(theirs, str):
        yield Difference(at, ours, theirs)
        return
    try:
        one, other = decode_base64(ours), decode_base64(theirs)
    except InvalidRequest as error:
        yield Difference(f"{at} (decoding)", None, error.message)
        return
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            yield Difference(f"{at}.{name}", _field(one.get(name)), _field(other.get(name)))
        else:
            yield from _fields(one[name], other[name], f"{at}.{name}")


def _fields(ours: Field, theirs: Field, at: str) -> Iterator[Difference]:
    mine, other = (_factory(field.factory) for field in (ours, theirs))
    if mine != other:
        yield Difference(f"{at} (factory)", mine, other)
    if isinstance(ours.data, Tensor) and isinstance(theirs.data, Tensor):
        yield from _tensors(ours.data, theirs.data, at)
    elif ours.data != theirs.data:
        yield Difference(at, _field(ours), _field(theirs))


def _factory(factory: Factory) -> Any:
    """Without what tells of other items of the request: a receiver only counts by that."""
    match factory:
        case Flat():
            return ("flat", factory.dim, factory.keep_on_cpu)
        case Shared():
            return ("shared", factory.keep_on_cpu)
    return factory


def _tensors(ours: Tensor, theirs: Tensor, at: str) -> Iterator[Difference]:
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        yield Difference(f"{at} (form)", (ours.dtype, ours.shape), (theirs.dtype, theirs.shape))
        return
    if ours.data == theirs.data:
        return
    if "float" not in ours.dtype:
        one, other = (np.frombuffer(t.data, np.dtype(t.dtype)) for t in (ours, theirs))
        wrong = int((one != other).sum())
        furthest = int(np.abs(one.astype(np.int64) - other.astype(np.int64)).max())
        yield Difference(at, f"{wrong} of {one.size} differ, at most by {furthest}", "")
        return
    one, other = (_floats(t) for t in (ours, theirs))
    most = float(np.abs(one - other).max(initial=0.0))
    if not most <= TOLERANCE:
        wrong = int((np.abs(one - other) > TOLERANCE).sum())
        yield Difference(at, f"{wrong} of {one.size} differ, at most by {most:.2g}", "")


def _floats(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    if tensor.dtype == "bfloat16":  # the upper half of a float32
        halves = np.frombuffer(tensor.data, np.uint16).astype(np.uint32) << 16
        return halves.view(np.float32).astype(np.float64)
    return np.frombuffer(tensor.data, np.dtype(tensor.dtype)).astype(np.float64)


def _values(ours: Any, theirs: Any, at: str) -> Iterator[Difference]:
    """JSON values."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted(ours.keys() | theirs.keys()):
            yield from _values(ours.get(name), theirs.get(name), f"{at}.{name}".lstrip("."))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        if any(isinstance(one, dict | list) for one in ours):
            for index, pair in enumerate(zip(ours, theirs, strict=True)):
                yield from _values(*pair, f"{at}[{index}]")
        elif ours != theirs:
            yield Difference(at, ours, theirs)
    elif ours != theirs:
        yield Difference(at, ours, theirs)


def _error_type(body: Any) -> Any:
    error = body.get("error") if isinstance(body, dict) else None
    return error.get("type") if isinstance(error, dict) else error


def _told(answer: Answer) -> str:
    """An answer in short."""
    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    if not isinstance(error, dict):
        return str(answer.status)
    message = " ".join(str(error.get("message")).split())
    return f"{answer.status} {error.get('type')}: {message}"


def _field(field: Field | None) -> Any:
    if field is None:
        return None
    if isinstance(field.data, Tensor):
        return f"{field.data.dtype}{list(field.data.shape)}"
    return field.data
