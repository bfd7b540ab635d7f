"""An encode replica that publishes what it should not: the consumer notices."""

from __future__ import annotations

import pytest
import torch

from ec_connector.config import EcConfig
from protocol.deadline import Deadline
from protocol.errors import TransferError
from protocol.rpc import ENCODE, PREFILL, EncodeCall
from protocol.transfer import ec_params
from tests.workers.conftest import StartWorker
from tests.workers.prompts import picture, request, text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_values_that_are_not_finite_never_reach_the_model(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """Its own checks are off, as those of a broken or hostile replica would be."""
    careless = EcConfig(capacity_bytes=2**20, threads=2, check_finite=False)
    encode, prefill = await start_worker("encode", ec=careless), await start_worker("prefill")
    encoder = encode.server.parts.encoder
    assert encoder is not None
    real = encoder.encode

    async def poisoned(mm_hash: str, item: object) -> torch.Tensor:
        rows = (await real(mm_hash, item)).clone()  # type: ignore[arg-type]
        rows[-1, -1] = value
        return rows

    monkeypatch.setattr(encoder, "encode", poisoned)
    shown = picture(1)
    call = EncodeCall("r", [shown.encode_item()])
    encoded = await encode.channel.call(ENCODE, call, Deadline.after(20))
    params = ec_params(encoded.items)
    asked = request(text(1), shown, pixels=False, ec_transfer_params=params)
    with pytest.raises(TransferError) as caught:
        await prefill.channel.call(PREFILL, asked, Deadline.after(20))
    assert (caught.value.kind, caught.value.items) == ("invalid_content", (shown.mm_hash,))
    await prefill.until_idle()
