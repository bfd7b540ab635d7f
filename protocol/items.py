"""The codec of one multimodal item: an entry of `kwargs_data` or `mm_metadata`.

One MessagePack map, field name -> {"data": ..., "field": [factory, kwargs]}; a tensor is
[dtype, shape, ext(3, raw bytes)]. In JSON the map stands as standard base64 with padding. The
format is vLLM 0.32's (wire-protocol §4), byte-compatible in both directions.

Nothing is unpickled: the ext codes that carry pickles there are refused. Tensors are views:
decoding copies no tensor bytes, encoding copies them once, into the message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import pybase64

from protocol.errors import InvalidRequest

_RAW_VIEW = 3
"""MessagePack ext code of a tensor's bytes."""

_MAX_NESTING = 32
"""Lists in lists; more is refused before it can exhaust the stack."""

_MAX_DIMENSIONS = 16
"""Of a tensor; the product of a hostile shape would take hours."""

_MAX_QUOTED = 64
"""Characters of the sender's that an error message repeats."""

_ITEMSIZE = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4,
    "uint64": 8, "int64": 8, "float64": 8,
}  # fmt: skip


class ItemCodecError(InvalidRequest):
    """The bytes are not an item of this format."""


def itemsize(dtype: str) -> int:
    """Bytes of one element of a dtype, named as torch names it without `torch.`.

    Raises:
        ItemCodecError: the dtype is unknown.
    """
    try:
        return _ITEMSIZE[dtype]
    except KeyError:
        raise ItemCodecError(f"unknown tensor dtype {_quoted(dtype)}") from None


class Tensor(msgspec.Struct, frozen=True, eq=False):
    """A C-contiguous, little-endian tensor as a view of its bytes.

    Attributes:
        dtype: torch's name without `torch.`, e.g. `uint8`, `bfloat16`.
        shape: `()` for a scalar.
        data: the raw bytes, `itemsize(dtype) * prod(shape)` of them.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


FieldData: TypeAlias = "Tensor | int | float | bool | list[FieldData] | None"


class Batched(msgspec.Struct, frozen=True):
    """The item's own element, the leading batch dimension removed."""

    keep_on_cpu: bool = False


class Flat(msgspec.Struct, frozen=True):
    """The item's slice of a tensor concatenated along `dim`.

    `slices` has a [start, stop, step] per item of the request it was cut from; a receiver uses
    it only to count.
    """

    slices: list[Any]
    keep_on_cpu: bool = False
    dim: int = 0


class Shared(msgspec.Struct, frozen=True):
    """The same value for all items."""

    batch_size: int
    keep_on_cpu: bool = False


Factory: TypeAlias = Batched | Flat | Shared


class Field(msgspec.Struct, frozen=True, eq=False):
    """One processor output of an item and how items of it are batched."""

    data: FieldData
    factory: Factory = Batched()


Item: TypeAlias = Mapping[str, Field]


def encode(item: Item) -> bytes:
    """The item as MessagePack."""
    return _encoder.encode(
        {
            name: {"data": _data_out(field.data), "field": _factory_out(field.factory)}
            for name, field in item.items()
        }
    )


def decode(buffer: bytes | bytearray | memoryview) -> dict[str, Field]:
    """The item whose tensors are views of `buffer`.

    Raises:
        ItemCodecError: not an item: wrong form, unknown factory or dtype, sizes that do not agree.
    """
    try:
        raw = _decoder.decode(buffer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ItemCodecError(f"not a multimodal item: {error}") from None
    if not isinstance(raw, dict) or not raw:
        raise ItemCodecError("a multimodal item must be a map with at least one field")
    return {_name(name): _field_in(name, elem) for name, elem in raw.items()}


def encode_base64(item: Item) -> str:
    """The item as it stands in JSON."""
    return pybase64.b64encode(encode(item)).decode("ascii")


def decode_base64(text: str) -> dict[str, Field]:
    """The item from JSON.

    Raises:
        ItemCodecError: not base64, or not an item.
    """
    try:
        buffer = pybase64.b64decode(text, validate=True)
    except ValueError as error:
        raise ItemCodecError(f"not base64: {error}") from None
    return decode(buffer)


def metadata_of(item: Item, declared: frozenset[str] = frozenset()) -> dict[str, Field]:
    """The subset that prefill needs: fields kept on the CPU, or declared by the model family."""
    return {
        name: field for name, field in item.items() if field.factory.keep_on_cpu or name in declared
    }


def _data_out(data: FieldData) -> Any:
    if isinstance(data, Tensor):
        return (data.dtype, data.shape, msgspec.msgpack.Ext(_RAW_VIEW, data.data))
    if isinstance(data, list):
        return [_data_out(value) for value in data]
    return data


def _factory_out(factory: Factory) -> Any:
    match factory:
        case Batched(keep_on_cpu):
            return ("batched", {"keep_on_cpu": keep_on_cpu})
        case Flat(slices, keep_on_cpu, dim):
            return ("flat", {"keep_on_cpu": keep_on_cpu, "slices": slices, "dim": dim})
        case Shared(batch_size, keep_on_cpu):
            return ("shared", {"keep_on_cpu": keep_on_cpu, "batch_size": batch_size})


def _ext_in(code: int, data: memoryview) -> memoryview:
    if code != _RAW_VIEW:
        raise ItemCodecError(f"MessagePack ext code {code} is not accepted")
    return data


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ext_hook=_ext_in)


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}..."


def _name(name: object) -> str:
    if not isinstance(name, str) or len(name) > _MAX_QUOTED:
        raise ItemCodecError(f"a field name must be a string of at most {_MAX_QUOTED} characters")
    return name


def _field_in(name: str, elem: object) -> Field:
    if not isinstance(elem, dict) or elem.keys() != {"data", "field"}:
        raise ItemCodecError(f"field {name!r} must have exactly the keys 'data' and 'field'")
    spec = elem["field"]
    if not (isinstance(spec, list) and len(spec) == 2 and isinstance(spec[1], dict)):
        raise ItemCodecError(f"field {name!r} must name its factory and arguments")
    factories: dict[object, type[Batched | Flat | Shared]] = {
        "batched": Batched,
        "flat": Flat,
        "shared": Shared,
    }
    cls = factories.get(spec[0]) if isinstance(spec[0], str) else None
    if cls is None:
        raise ItemCodecError(f"field {name!r} has an unknown factory {_quoted(spec[0])}")
    known = set(cls.__struct_fields__)
    if not spec[1].keys() <= known:
        raise ItemCodecError(f"field {name!r} has unknown factory arguments")
    try:
        factory = msgspec.convert(spec[1], cls)
    except msgspec.ValidationError as error:
        raise ItemCodecError(f"field {name!r}: {error}") from None
    return Field(_data_in(name, elem["data"]), factory)


def _data_in(name: str, data: object, depth: int = 0) -> FieldData:
    if data is None or isinstance(data, bool | int | float):
        return data
    if not isinstance(data, list):
        raise ItemCodecError(f"field {name!r} holds a {type(data).__name__}")
    if data and isinstance(data[0], str):
        return _tensor_in(name, data)
    if depth == _MAX_NESTING:
        raise ItemCodecError(f"field {name!r} is nested too deeply")
    return [_data_in(name, value, depth + 1) for value in data]


def _tensor_in(name: str, data: list[Any]) -> Tensor:
    if len(data) != 3 or not isinstance(data[1], list):
        raise ItemCodecError(f"field {name!r} holds a malformed tensor")
    dtype, shape, raw = data
    if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise ItemCodecError(f"field {name!r} has a bad shape")
    if not isinstance(raw, bytes | memoryview):
        raise ItemCodecError(f"field {name!r} holds no tensor bytes")
    view = memoryview(raw)
    expected = itemsize(dtype) * math.prod(shape)
    if view.nbytes != expected:
        raise ItemCodecError(
            f"field {name!r} has {view.nbytes} bytes where its shape needs {expected}"
        )
    return Tensor(dtype, tuple(shape), view)
