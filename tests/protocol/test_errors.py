"""The error tree: what a client sees, and that an error arrives as it left."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from protocol import errors
from protocol.errors import (
    ClientError,
    InternalError,
    InvalidRequest,
    Overloaded,
    TransferError,
    TriptychError,
    Unauthorized,
    WireError,
    body,
    from_wire,
    to_wire,
)
from protocol.items import ItemCodecError

LEAVES = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type)
    and issubclass(cls, TriptychError)
    and cls not in (TriptychError, ClientError, TransferError)
]

STATUS = {
    "InvalidRequest": 400,
    "SchemaViolation": 400,
    "StateNotKept": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "PayloadTooLarge": 413,
    "Unprocessable": 422,
    "NotSupported": 501,
    "Overloaded": 429,
    "Unavailable": 503,
    "DeadlineExceeded": 504,
    "InternalError": 500,
}

TRANSFER_KINDS = [
    "missing",
    "expired",
    "incompatible",
    "peer_unreachable",
    "transport_failed",
    "store_full",
    "invalid_content",
]


def instances() -> list[TriptychError]:
    made: list[TriptychError] = [
        cls("what happened", "a.b", "prefill", ("h1", "h2"), 2.5) for cls in LEAVES
    ]
    made += [
        TransferError("moved badly", kind, ("h1",), "a.b", "transfer")  # type: ignore[arg-type]
        for kind in TRANSFER_KINDS
    ]
    return made


def told(error: TriptychError) -> tuple[object, ...]:
    """Everything that an error says."""
    return (
        type(error),
        error.message,
        error.param,
        error.stage,
        error.items,
        error.retry_after,
        error.kind,
        error.retryable,
        error.status,
    )


@pytest.mark.parametrize("error", instances(), ids=lambda e: f"{type(e).__name__}-{e.kind}")
def test_errors_survive_pickling(error: TriptychError) -> None:
    assert told(pickle.loads(pickle.dumps(error))) == told(error)


@pytest.mark.parametrize("error", instances(), ids=lambda e: f"{type(e).__name__}-{e.kind}")
def test_errors_survive_the_wire(error: TriptychError) -> None:
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(to_wire(error)), type=WireError)
    assert told(from_wire(wire)) == told(error)


def test_every_class_has_the_status_of_the_tree() -> None:
    assert {cls.__name__: cls.status for cls in LEAVES} == STATUS


def test_the_tree_is_drawn_at_the_top_of_its_file() -> None:
    assert errors.__doc__ is not None
    for cls in [*LEAVES, TransferError, ClientError]:
        assert cls.__name__ in errors.__doc__


def test_a_subclass_crosses_the_wire_as_the_class_that_the_peer_knows() -> None:
    arrived = from_wire(to_wire(ItemCodecError("not base64", "features.kwargs_data")))
    assert type(arrived) is InvalidRequest
    assert (arrived.status, arrived.message, arrived.param) == (
        400,
        "not base64",
        "features.kwargs_data",
    )


def test_a_class_of_a_newer_version_becomes_an_internal_error() -> None:
    error = from_wire(WireError("FromTheFuture", "?", "future"))
    assert isinstance(error, InternalError)


def test_only_incompatible_transfers_are_final() -> None:
    assert [k for k in TRANSFER_KINDS if not TransferError("", k).retryable] == [  # type: ignore[arg-type]
        "incompatible"
    ]


def test_client_errors_are_never_retryable() -> None:
    assert not any(cls("").retryable for cls in LEAVES if issubclass(cls, ClientError))


def test_the_body_has_the_openai_form_with_our_additions() -> None:
    error = Overloaded("the queue is full", None, "edge", (), 1.0)
    assert body(error, "req-1") == {
        "error": {
            "message": "the queue is full",
            "type": "RateLimitError",
            "param": None,
            "code": 429,
            "kind": "overloaded",
            "stage": "edge",
            "retryable": True,
            "request_id": "req-1",
        }
    }


def test_the_body_names_the_items() -> None:
    error = TransferError("gone", "missing", ("h1", "h2"))
    assert body(error)["error"]["items"] == ["h1", "h2"]


def test_the_body_of_a_401_is_the_contracts() -> None:
    assert body(Unauthorized("no key")) == {"error": "Unauthorized"}


def test_an_error_reads_as_its_message() -> None:
    assert str(InvalidRequest("n must be 1", "n")) == "n must be 1"
