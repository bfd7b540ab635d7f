"""A generate request as the JSON that clients and foreign servers get."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.generate import GenerateRequest


def to_json(request: GenerateRequest) -> dict[str, Any]:
    """Every key of the contract, nulls included, and none of ours that is unset.

    `temperature` is always written: a receiver's default is not ours to know.
    """
    out: dict[str, Any] = msgspec.to_builtins(request)
    out["sampling_params"]["temperature"] = request.sampling_params.temperature
    for ours in ("resume_token_ids", "reasoning_end"):
        if out[ours] is None:
            del out[ours]
    features = out["features"]
    if features is not None and features["kwargs_handles"] is None:
        del features["kwargs_handles"]
    return out
