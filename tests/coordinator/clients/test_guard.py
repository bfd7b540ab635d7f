"""What never reaches an engine that is not ours."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.clients import guard
from protocol import items
from protocol.errors import InvalidRequest, NotSupported, TransferError, TriptychError
from protocol.features import MultiModalFeatures, PlaceholderRange
from protocol.generate import GenerateRequest
from protocol.sampling import SamplingParams

GRID = items.Field(
    items.Tensor("int64", (3,), memoryview(bytes(24))), items.Batched(keep_on_cpu=True)
)
PIXELS = items.Field(
    items.Tensor("uint8", (4, 2), memoryview(bytes(8))), items.Flat([[[0, 4, None]]])
)


def request(
    *,
    modality: str = "image",
    mm_hash: str = "abc",
    kwargs: str | None = None,
    metadata: str | None = None,
    ec: dict[str, Any] | None = None,
    is_embed: Any = None,
) -> GenerateRequest:
    return GenerateRequest(
        token_ids=[1, 9, 9, 2],
        features=MultiModalFeatures(
            {modality: [mm_hash]},
            {modality: [PlaceholderRange(1, 2, is_embed)]},
            {modality: [kwargs]},
            {modality: [metadata]},
        ),
        sampling_params=SamplingParams(),
        ec_transfer_params=ec,
    )


WHOLE = items.encode_base64({"pixel_values": PIXELS, "image_grid_thw": GRID})
META = items.encode_base64({"image_grid_thw": GRID})


@pytest.mark.parametrize(
    "good",
    [
        request(kwargs=WHOLE),
        request(kwargs=WHOLE, metadata=META),
        request(metadata=META, ec={"abc": {"metadata": {"image_grid_thw": [1, 2, 2]}}}),
        request(metadata=META, ec={"abc": {"peer_host": "h"}}),
        request(metadata=META, ec={"ec_items": [{"mm_hash": "abc", "peer_host": "h"}]}),
    ],
)
def test_whole_items_pass(good: GenerateRequest) -> None:
    guard.check(good)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (request(modality="video", kwargs=WHOLE), NotSupported),
        (request(kwargs=WHOLE, is_embed=((0, 1),)), NotSupported),
        (request(mm_hash="../x", kwargs=WHOLE), InvalidRequest),
        (request(mm_hash="", kwargs=WHOLE), InvalidRequest),
        (request(kwargs=items.encode_base64({"pixel_values": PIXELS})), InvalidRequest),
        (request(kwargs="gA=="), InvalidRequest),
        (request(kwargs="not base64"), InvalidRequest),
        (request(), InvalidRequest),
        (request(metadata=META, ec={"abc": {"metadata": {}}}), TransferError),
        (request(metadata=META, ec={"other": {"peer_host": "h"}}), TransferError),
    ],
)
def test_what_ends_a_foreign_engine_is_refused(
    bad: GenerateRequest, error: type[TriptychError]
) -> None:
    with pytest.raises(error):
        guard.check(bad)
