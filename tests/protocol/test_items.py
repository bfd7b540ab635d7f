"""The item codec: byte-compatible, without copies, and unmoved by hostile bytes."""

from __future__ import annotations

import base64
import contextlib
import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.items import (
    Batched,
    Field,
    Flat,
    Item,
    ItemCodecError,
    Shared,
    Tensor,
    decode,
    decode_base64,
    encode,
    encode_base64,
    itemsize,
    metadata_of,
)

GRID = struct.pack("<3q", 1, 10, 14)

METADATA_BYTES = bytes.fromhex(
    "81 ae 69 6d 61 67 65 5f 67 72 69 64 5f 74 68 77 82 a4 64 61 74 61 93 a5 69 6e 74 36 34 91 03"
    "c7 18 03 01 00 00 00 00 00 00 00 0a 00 00 00 00 00 00 00 0e 00 00 00 00 00 00 00"
    "a5 66 69 65 6c 64 92 a7 62 61 74 63 68 65 64 81 ab 6b 65 65 70 5f 6f 6e 5f 63 70 75 c3"
)
METADATA_BASE64 = (
    "ga5pbWFnZV9ncmlkX3Rod4KkZGF0YZOlaW50NjSRA8cYAwEAAAAAAAAACgAAAAAAAAAOAAAAAAAAAKVmaWVsZJKnYmF0"
    "Y2hlZIGra2VlcF9vbl9jcHXD"
)


def grid_field() -> Field:
    return Field(Tensor("int64", (3,), memoryview(GRID)), Batched(keep_on_cpu=True))


def image_item() -> dict[str, Field]:
    pixels = memoryview(b"\xff" * (140 * 1536))
    return {
        "pixel_values": Field(Tensor("uint8", (140, 1536), pixels), Flat([[[0, 140, None]]])),
        "image_grid_thw": grid_field(),
    }


def plain(item: Item) -> dict[str, Any]:
    """The item as values that compare by content."""

    def value(data: Any) -> Any:
        if isinstance(data, Tensor):
            return ("tensor", data.dtype, data.shape, bytes(data.data))
        if isinstance(data, list):
            return [value(part) for part in data]
        return (type(data), data)

    return {name: (value(field.data), field.factory) for name, field in item.items()}


def tensors_of(data: Any) -> list[Tensor]:
    if isinstance(data, Tensor):
        return [data]
    if isinstance(data, list):
        return [tensor for part in data for tensor in tensors_of(part)]
    return []


# --- the contract's examples -----------------------------------------------------------------


def test_metadata_example_is_encoded_byte_for_byte() -> None:
    assert encode({"image_grid_thw": grid_field()}) == METADATA_BYTES
    assert encode_base64({"image_grid_thw": grid_field()}) == METADATA_BASE64


def test_metadata_example_is_decoded() -> None:
    assert plain(decode(METADATA_BYTES)) == plain({"image_grid_thw": grid_field()})
    assert plain(decode_base64(METADATA_BASE64)) == plain({"image_grid_thw": grid_field()})


def test_pixels_example_is_encoded_byte_for_byte() -> None:
    head = bytes.fromhex(
        "82 ac 70 69 78 65 6c 5f 76 61 6c 75 65 73 82 a4 64 61 74 61 93 a5 75 69 6e 74 38"
        "92 cc 8c cd 06 00 c9 00 03 48 00 03"
    )
    tail = bytes.fromhex(
        "a5 66 69 65 6c 64 92 a4 66 6c 61 74 83 ab 6b 65 65 70 5f 6f 6e 5f 63 70 75 c2"
        "a6 73 6c 69 63 65 73 91 91 93 00 cc 8c c0 a3 64 69 6d 00"
    )
    encoded = encode(image_item())
    assert len(encoded) == 215_210
    assert encoded == head + b"\xff" * 215_040 + tail + METADATA_BYTES[1:]


def test_bytes_slot_may_be_plain_binary() -> None:
    raw = msgspec.msgpack.encode(
        {"x": {"data": ["uint8", [2], b"ab"], "field": ["batched", {}]}},
    )
    assert plain(decode(raw)) == {
        "x": (("tensor", "uint8", (2,), b"ab"), Batched(keep_on_cpu=False))
    }


def test_optional_factory_arguments_have_the_contracts_defaults() -> None:
    raw = msgspec.msgpack.encode(
        {
            "f": {"data": 1, "field": ["flat", {"slices": []}]},
            "s": {"data": 2.5, "field": ["shared", {"batch_size": 3}]},
            "b": {"data": None, "field": ["batched", {}]},
        }
    )
    assert {name: field.factory for name, field in decode(raw).items()} == {
        "f": Flat([], keep_on_cpu=False, dim=0),
        "s": Shared(3, keep_on_cpu=False),
        "b": Batched(keep_on_cpu=False),
    }


# --- copies ----------------------------------------------------------------------------------


def test_decoding_copies_no_tensor_bytes() -> None:
    buffer = bytearray(encode(image_item()))
    view = decode(buffer)["pixel_values"].data
    assert isinstance(view, Tensor)
    before = view.data[7]
    start = bytes(buffer).index(b"\xff" * 64)
    buffer[start + 7] = 0x42
    assert (before, view.data[7]) == (0xFF, 0x42)


def test_encoding_takes_any_contiguous_buffer() -> None:
    source = bytearray(b"\x01\x02\x03\x04")
    item = {"x": Field(Tensor("uint8", (4,), memoryview(source)))}
    assert bytes(tensors_of(decode(encode(item))["x"].data)[0].data) == b"\x01\x02\x03\x04"


# --- round trips -----------------------------------------------------------------------------

DTYPES = (
    "bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2", "uint16", "int16", "float16",
    "bfloat16", "uint32", "int32", "float32", "uint64", "int64", "float64",
)  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    size = itemsize(dtype) * math.prod(shape)
    return Tensor(dtype, shape, memoryview(draw(st.binary(min_size=size, max_size=size))))


numbers = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
data_values = st.recursive(numbers | tensors(), lambda inner: st.lists(inner, max_size=4))
slices = st.lists(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 500), st.none()).map(list),
        max_size=2,
    ),
    max_size=2,
)
factories = (
    st.builds(Batched, st.booleans())
    | st.builds(Flat, slices, st.booleans(), st.integers(0, 3))
    | st.builds(Shared, st.integers(0, 9), st.booleans())
)
item_values = st.dictionaries(
    st.text(min_size=1, max_size=12), st.builds(Field, data_values, factories), min_size=1
)


@given(item_values)
def test_items_survive_the_round_trip(item: dict[str, Field]) -> None:
    assert plain(decode(encode(item))) == plain(item)
    assert plain(decode_base64(encode_base64(item))) == plain(item)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors_survive(shape: tuple[int, ...]) -> None:
    data = memoryview(b"\0" * (2 * math.prod(shape)))
    item = {"x": Field(Tensor("bfloat16", shape, data))}
    assert plain(decode(encode(item))) == plain(item)


# --- hostile input ---------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_any_bytes_are_an_item_or_a_codec_error(raw: bytes) -> None:
    with contextlib.suppress(ItemCodecError):
        decode(raw)


@given(st.text(max_size=200))
def test_any_text_is_an_item_or_a_codec_error(text: str) -> None:
    with contextlib.suppress(ItemCodecError):
        decode_base64(text)


msgpack_values = st.recursive(
    numbers
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(["uint8", "flat", "batched", "shared", "data", "field"])
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=16)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["data", "field", "slices", "dim", "batch_size", "keep_on_cpu", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.text(max_size=4),
        st.fixed_dictionaries({"data": msgpack_values, "field": msgpack_values}) | msgpack_values,
        max_size=3,
    )
)
def test_any_map_is_an_item_or_a_codec_error(raw: dict[str, Any]) -> None:
    with contextlib.suppress(ItemCodecError):
        decode(msgspec.msgpack.encode(raw))


@given(st.data())
def test_a_damaged_item_is_an_item_or_a_codec_error(data: st.DataObject) -> None:
    raw = bytearray(METADATA_BYTES)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ItemCodecError):
        decode(raw[: data.draw(st.integers(0, len(raw)))])


def element(data: Any, field: Any = ("batched", {})) -> bytes:
    return msgspec.msgpack.encode({"x": {"data": data, "field": field}})


RAW = msgspec.msgpack.Ext(3, b"\0" * 8)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not a multimodal item"),
        (b"\x80", "at least one field"),
        (b"\x90", "must be a map"),
        (msgspec.msgpack.encode({1: {"data": 1, "field": ["batched", {}]}}), "must be a string"),
        (msgspec.msgpack.encode({"x": {"data": 1}}), "exactly the keys"),
        (
            msgspec.msgpack.encode({"x": {"data": 1, "field": ["batched", {}], "y": 1}}),
            "exactly the keys",
        ),
        (element(1, "batched"), "name its factory"),
        (element(1, ["ragged", {}]), "unknown factory"),
        (element(1, [["batched"], {}]), "unknown factory"),
        (element(1, ["batched", {"dim": 0}]), "unknown factory arguments"),
        (element(1, ["flat", {}]), "slices"),
        (element(1, ["shared", {"batch_size": "2"}]), "batch_size"),
        (element("text"), "holds a str"),
        (element(b"bytes"), "holds a bytes"),
        (element({"a": 1}), "holds a dict"),
        (element(RAW), "holds a"),
        (element(["complex64", [1], RAW]), "unknown tensor dtype"),
        (element(["int64", [2], RAW]), "8 bytes where its shape needs 16"),
        (element(["int64", [-1], RAW]), "bad shape"),
        (element(["int64", [True], RAW]), "bad shape"),
        (element(["int64", [1.0], RAW]), "bad shape"),
        (element(["int64", 1, RAW]), "malformed tensor"),
        (element(["int64", [1]]), "malformed tensor"),
        (element(["int64", [1], 0]), "no tensor bytes"),
        (element(["int64", [1], {}]), "no tensor bytes"),
        (element(["int64", [1], None]), "no tensor bytes"),
        (element(["uint8", [2**62, 2**62], RAW]), "bytes where its shape needs"),
    ],
)
def test_what_is_not_an_item_is_refused_with_the_reason(raw: bytes, message: str) -> None:
    with pytest.raises(ItemCodecError, match=message):
        decode(raw)


@pytest.mark.parametrize("code", [1, 2, 0, 4, 127, -5])
def test_ext_codes_other_than_raw_views_are_refused(code: int) -> None:
    """Codes 1 and 2 carry pickles elsewhere."""
    with pytest.raises(ItemCodecError):
        decode(element(["uint8", [1], msgspec.msgpack.Ext(code, b"x")]))


@pytest.mark.parametrize("depth", [10, 200, 400, 600, 2000, 100_000])
def test_deep_nesting_is_refused_and_not_a_stack_overflow(depth: int) -> None:
    head, _, tail = element(7).partition(b"\x07")
    deep = head + b"\x91" * depth + b"\x07" + tail
    if depth <= 10:
        assert decode(deep)
    else:
        with pytest.raises(ItemCodecError):
            decode(deep)


def test_a_shape_of_very_many_dimensions_is_refused_before_it_is_multiplied() -> None:
    with pytest.raises(ItemCodecError, match="bad shape"):
        decode(element(["uint8", [2**63 - 1] * 100_000, RAW]))


@pytest.mark.parametrize("text", ["", "====", "gA", "gA==\n", "g_5p", "ñ", "gA== gA=="])
def test_text_that_is_not_standard_base64_of_an_item_is_refused(text: str) -> None:
    with pytest.raises(ItemCodecError):
        decode_base64(text)


def test_codec_errors_are_the_clients() -> None:
    assert issubclass(ItemCodecError, InvalidRequest)


def test_long_garbage_does_not_make_a_long_message() -> None:
    with pytest.raises(ItemCodecError) as caught:
        decode(element(1, ["x" * 10_000, {}]))
    assert len(str(caught.value)) < 500


# --- metadata --------------------------------------------------------------------------------


def test_metadata_keeps_cpu_fields_and_declared_ones_only() -> None:
    item = image_item() | {"sizes": Field(3), "scale": Field(1.0)}
    assert set(metadata_of(item)) == {"image_grid_thw"}
    assert set(metadata_of(item, frozenset({"sizes"}))) == {"image_grid_thw", "sizes"}


def test_base64_is_the_standard_alphabet_with_padding() -> None:
    encoded = encode_base64({"x": Field(Tensor("uint8", (3,), memoryview(b"\xfb\xff\xfe")))})
    assert base64.b64decode(encoded, validate=True) == encode(
        {"x": Field(Tensor("uint8", (3,), memoryview(b"\xfb\xff\xfe")))}
    )
