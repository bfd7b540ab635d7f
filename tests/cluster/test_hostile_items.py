"""No request can kill a worker: items that lie about their pixels, grids and rows."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from protocol.items import (
    Batched,
    Field,
    FieldData,
    Flat,
    Item,
    Tensor,
    decode_base64,
    encode_base64,
)
from tests.cluster.asking import chat, unseen
from tests.cluster.fleet import Fleet

EXAMPLE = unseen("describe", 1, seed=61)[0]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60.0) as made:
        yield made


@pytest.fixture(scope="module")
def rendered(fleet: Fleet, http: httpx.Client) -> dict[str, Any]:
    response = http.post(f"{fleet.render.http}/v1/chat/completions/render", json=chat(EXAMPLE))
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def int64(*values: int, shape: tuple[int, ...] | None = None) -> Tensor:
    raw = memoryview(struct.pack(f"<{len(values)}q", *values))
    return Tensor("int64", (len(values),) if shape is None else shape, raw)


def grid(*values: int) -> Field:
    return Field(int64(*values), Batched(keep_on_cpu=True))


def pixels_of(item: Item) -> Tensor:
    data = item["pixel_values"].data
    assert isinstance(data, Tensor)
    return data


def with_pixels(item: Item, data: FieldData) -> Item:
    return {**item, "pixel_values": Field(data, Flat([[[0, 1, None]]]))}


def with_grid(item: Item, field: Field) -> Item:
    return {**item, "image_grid_thw": field}


def fewer_rows(item: Item) -> Item:
    whole = pixels_of(item)
    rows = whole.shape[0] - 4
    return with_pixels(
        item, Tensor("uint8", (rows, whole.shape[1]), whole.data[: rows * whole.shape[1]])
    )


def narrower(item: Item) -> Item:
    whole = pixels_of(item)
    return with_pixels(item, Tensor("uint8", (whole.shape[0] * 2, whole.shape[1] // 2), whole.data))


def flat(item: Item) -> Item:
    whole = pixels_of(item)
    return with_pixels(item, Tensor("uint8", (whole.nbytes,), whole.data))


def wide_numbers(item: Item) -> Item:
    whole = pixels_of(item)
    shape = (whole.shape[0] // 8, whole.shape[1])
    return with_pixels(item, Tensor("int64", shape, whole.data[: 8 * shape[0] * shape[1]]))


def without(name: str) -> Any:
    return lambda item: {key: value for key, value in item.items() if key != name}


LIES: dict[str, Any] = {
    "fewer rows of pixels": fewer_rows,
    "narrower pixels": narrower,
    "pixels in one dimension": flat,
    "pixels as int64": wide_numbers,
    "no rows": lambda item: with_pixels(item, Tensor("uint8", (0, 1536), memoryview(b""))),
    "pixels as numbers": lambda item: with_pixels(item, [1.0, 2.0]),
    "pixels as one number": lambda item: with_pixels(item, 7),
    "pixels as nothing": lambda item: with_pixels(item, None),
    "pixels in a list": lambda item: with_pixels(item, [pixels_of(item)]),
    "no pixels": without("pixel_values"),
    "no grid": without("image_grid_thw"),
    "grid of two": lambda item: with_grid(item, grid(1, 4)),
    "grid of six": lambda item: with_grid(item, Field(int64(1, 4, 4, 1, 4, 4, shape=(2, 3)))),
    "grid as a number": lambda item: with_grid(item, Field(16)),
    "grid as a list": lambda item: with_grid(item, Field([1, 4, 4])),
    "grid of zeros": lambda item: with_grid(item, grid(0, 0, 0)),
    "negative grid": lambda item: with_grid(item, grid(1, -4, -4)),
    "huge grid": lambda item: with_grid(item, grid(1, 2**31, 2**31)),
    "grid that overflows": lambda item: with_grid(item, grid(2**62, 2**62, 4)),
    "many frames": lambda item: with_grid(item, grid(2**40, 2, 2)),
    "odd grid": lambda item: with_grid(item, grid(1, 3, 5)),
    "another grid": lambda item: with_grid(item, grid(1, 2, 2)),
}


def legs(rendered: dict[str, Any], item: Item | None, mm_hash: str) -> dict[str, Any]:
    features = rendered["features"]
    encoded = [encode_base64(item)] if item is not None else [None]
    return {
        "token_ids": rendered["token_ids"],
        "features": {
            "mm_hashes": {"image": [mm_hash]},
            "mm_placeholders": features["mm_placeholders"],
            "kwargs_data": {"image": encoded},
        },
        "sampling_params": {"max_tokens": 2, "temperature": 0},
    }


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("role", ["encode", "prefill", "prefill_decode", "all"])
def test_an_item_that_lies_is_refused(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any], role: str, lie: str
) -> None:
    worker = fleet.encode[0] if role == "encode" else getattr(fleet, role)
    genuine = decode_base64(rendered["features"]["kwargs_data"]["image"][0])
    body = legs(rendered, LIES[lie](genuine), f"lie-{lie.replace(' ', '-')}-{role}")
    response = http.post(f"{worker.http}/inference/v1/generate", json=body)
    assert 400 <= response.status_code < 500, response.text
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("role", ["prefill", "prefill_decode", "all"])
@pytest.mark.parametrize("change", [-1, 1, 5])
def test_a_placeholder_of_another_length_is_refused(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any], role: str, change: int
) -> None:
    genuine = decode_base64(rendered["features"]["kwargs_data"]["image"][0])
    body = legs(rendered, genuine, f"length-{change}-{role}")
    placeholder = dict(rendered["features"]["mm_placeholders"]["image"][0])
    placeholder["length"] += change
    body["features"]["mm_placeholders"] = {"image": [placeholder]}
    response = http.post(f"{getattr(fleet, role).http}/inference/v1/generate", json=body)
    assert response.status_code == 400, response.text


@pytest.mark.parametrize("modality", ["video", "audio", "smell"])
@pytest.mark.parametrize("role", ["encode", "prefill", "all"])
def test_a_modality_that_the_item_is_not_of_is_refused(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any], role: str, modality: str
) -> None:
    worker = fleet.encode[0] if role == "encode" else getattr(fleet, role)
    genuine = decode_base64(rendered["features"]["kwargs_data"]["image"][0])
    body = legs(rendered, genuine, f"modality-{modality}-{role}")
    body["features"] = {
        name: {modality: column["image"]} for name, column in body["features"].items()
    }
    response = http.post(f"{worker.http}/inference/v1/generate", json=body)
    assert 400 <= response.status_code < 500 or response.status_code == 501, response.text


@pytest.mark.parametrize("mm_hash", ["", "../../etc/passwd", "a" * 5000, "a\0b", "ä", "a b\n"])
def test_strange_hashes_do_no_harm(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any], mm_hash: str
) -> None:
    genuine = decode_base64(rendered["features"]["kwargs_data"]["image"][0])
    body = legs(rendered, genuine, mm_hash)
    response = http.post(f"{fleet.encode[0].http}/inference/v1/generate", json=body)
    assert response.status_code in (200, 400), response.text


def test_metadata_that_disagrees_with_the_embedding_is_refused(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any]
) -> None:
    """The embedding is genuine; the grid of the metadata is another one."""
    genuine = decode_base64(rendered["features"]["kwargs_data"]["image"][0])
    encoded = http.post(
        f"{fleet.encode[0].http}/inference/v1/generate",
        json=legs(rendered, genuine, "disagreeing"),
    ).json()
    for lied in (grid(1, 2, 2), grid(1, 2**31, 2), grid(0, 0, 0), grid(1, -2, -2)):
        body = legs(rendered, None, "disagreeing")
        body["features"]["mm_metadata"] = {"image": [encode_base64({"image_grid_thw": lied})]}
        body["ec_transfer_params"] = encoded["ec_transfer_params"]
        response = http.post(f"{fleet.prefill_decode.http}/inference/v1/generate", json=body)
        assert response.status_code == 400, response.text


def test_every_worker_still_answers(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any]
) -> None:
    genuine = decode_base64(rendered["features"]["kwargs_data"]["image"][0])
    for worker in fleet.workers:
        assert worker.running
        assert http.get(f"{worker.http}/health").status_code == 200
    for worker in (fleet.encode[0], fleet.all, fleet.prefill_decode):
        response = http.post(
            f"{worker.http}/inference/v1/generate", json=legs(rendered, genuine, "at-last")
        )
        assert response.status_code == 200, response.text
