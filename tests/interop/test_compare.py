"""Two answers: what counts as a difference and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interop.compare import compare
from interop.difference import Answer
from protocol.items import Batched, Field, Flat, Tensor, encode_base64


def generated(**fields: Any) -> Answer:
    body = {"request_id": "r", "token_ids": [1, 2], "sampling_params": {}, "features": None}
    return Answer(200, body | fields)


def item(values: np.ndarray[Any, Any], **more: Field) -> str:
    tensor = Tensor(values.dtype.name, values.shape, values.reshape(-1).view(np.uint8).data)
    return encode_base64({"pixel_values": Field(tensor, Flat([[[0, 1, None]]])), **more})


def features(*items: str) -> dict[str, Any]:
    count = len(items)
    return {
        "mm_hashes": {"image": ["h"] * count},
        "mm_placeholders": {"image": [{"offset": n, "length": 1} for n in range(count)]},
        "kwargs_data": {"image": list(items)},
        "mm_metadata": None,
    }


def refused(status: int, kind: str, message: str = "") -> Answer:
    return Answer(status, {"error": {"type": kind, "message": message}})


def paths(ours: Answer, theirs: Answer) -> list[str]:
    return [difference.path for difference in compare(ours, theirs)]


def test_equal_answers_have_no_differences() -> None:
    assert paths(generated(), generated()) == []


def test_defaults_are_the_same_left_out_or_written_out() -> None:
    ours = generated(sampling_params={"max_tokens": 16, "temperature": 1.0, "n": 1})
    assert paths(ours, generated(sampling_params={"stop": [], "output_kind": 2})) == []


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"token_ids": [1, 3]}, "token_ids"),
        ({"sampling_params": {"top_k": 7}}, "sampling_params.top_k"),
        ({"cache_salt": "x"}, "cache_salt"),
        ({"features": features()}, "features"),
    ],
)
def test_each_field_counts(fields: dict[str, Any], path: str) -> None:
    assert paths(generated(**fields), generated()) == [path]


def test_refusals_are_compared_by_status_and_type_alone() -> None:
    assert paths(refused(400, "A", "one"), refused(400, "A", "other")) == []
    assert paths(refused(400, "A"), refused(400, "B")) == ["error.type"]
    assert paths(refused(400, "A"), refused(422, "A")) == ["status"]
    assert paths(generated(), refused(400, "A")) == ["status"]


def test_integers_are_equal_to_the_last_bit_and_floats_nearly() -> None:
    whole = np.arange(4, dtype=np.int64)
    other = whole.copy()
    other[3] += 1
    assert paths(
        generated(features=features(item(whole))), generated(features=features(item(other)))
    ) == ["features.kwargs_data.image[0].pixel_values"]
    floats = np.ones(4, np.float32)
    near, far = floats + np.float32(5e-6), floats + np.float32(2e-5)
    first = generated(features=features(item(floats)))
    assert paths(first, generated(features=features(item(near)))) == []
    assert len(paths(first, generated(features=features(item(far))))) == 1


def test_forms_fields_and_factories_of_items_count() -> None:
    values = np.arange(4, dtype=np.uint8)
    plain = generated(features=features(item(values)))
    reshaped = generated(features=features(item(values.reshape(2, 2))))
    assert paths(plain, reshaped) == ["features.kwargs_data.image[0].pixel_values (form)"]
    more = generated(features=features(item(values, extra=Field(1))))
    assert paths(plain, more) == ["features.kwargs_data.image[0].extra"]
    one = generated(features=features(item(values, extra=Field(1, Batched(keep_on_cpu=True)))))
    assert paths(more, one) == ["features.kwargs_data.image[0].extra (factory)"]
    assert paths(plain, generated(features=features(item(values), item(values)))) != []
