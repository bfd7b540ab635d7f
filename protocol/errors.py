"""The one error tree.

TriptychError
├── ClientError                 4xx: the request is at fault, a retry of the same bytes fails again
│   ├── InvalidRequest          400, a field's value
│   │   └── StateNotKept        400, it refers to what a stateless server does not hold
│   ├── SchemaViolation         400, the JSON does not have the contract's form
│   ├── Unauthorized            401
│   ├── Forbidden               403
│   ├── NotFound                404
│   ├── PayloadTooLarge         413
│   ├── Unprocessable           422, a medium that could not be fetched or decoded
│   └── NotSupported            501, a part of the contract that this server does not offer
├── Overloaded                  429, retry after a while
├── Unavailable                 503, no replica, draining, or a replica was lost
├── DeadlineExceeded            504
├── TransferError               502, an item could not be moved (kind says why)
└── InternalError               500

`kind` is a stable machine-readable word, `retryable` says whether the same request can succeed
later or elsewhere, `stage` names where it happened, `items` the mm_hashes it is about. Every
argument is positional, so that the exceptions survive pickling. `to_wire` and `from_wire` carry
an error between our processes; `body` is what a client sees.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

Stage = Literal["edge", "render", "encode", "prefill", "decode", "derender", "transfer"]

TransferKind = Literal[
    "missing",
    "expired",
    "incompatible",
    "peer_unreachable",
    "transport_failed",
    "store_full",
    "invalid_content",
]
"""Why an item could not be moved; `incompatible` alone is final."""


class TriptychError(Exception):
    """Base of all errors that Triptych raises on purpose.

    Args:
        message: one sentence for the person who sent the request.
        param: dotted path of the field at fault, or None.
        stage: the stage it happened in, or None while it is not known.
        items: mm_hashes of the items it is about.
        retry_after: seconds after which a retry makes sense, or None.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "InternalServerError"
    kind: str = "internal"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        param: str | None = None,
        stage: str | None = None,
        items: tuple[str, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, param, stage, items, retry_after)
        self.message = message
        self.param = param
        self.stage = stage
        self.items = items
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message


class ClientError(TriptychError):
    """The request is at fault."""

    status = 400
    type = "BadRequestError"
    kind = "invalid_request"


class InvalidRequest(ClientError):
    """A field has a value that cannot be honoured."""


class SchemaViolation(ClientError):
    """The body is not JSON, or not of the contract's form."""

    type = "Bad Request"
    kind = "schema"


class StateNotKept(InvalidRequest):
    """The request refers to what an earlier one left behind; this endpoint is stateless."""

    type = "invalid_request_error"
    kind = "stateless"


class Unauthorized(ClientError):
    """The API key or the cluster token is missing or wrong."""

    status = 401
    type = "AuthenticationError"
    kind = "unauthorized"


class Forbidden(ClientError):
    """The endpoint is switched off here, or the peer may not use it."""

    status = 403
    type = "PermissionDeniedError"
    kind = "forbidden"


class NotFound(ClientError):
    """The model, or another named thing, does not exist."""

    status = 404
    type = "NotFoundError"
    kind = "not_found"


class PayloadTooLarge(ClientError):
    """The body, a medium or an item is larger than the limit."""

    status = 413
    type = "PayloadTooLargeError"
    kind = "too_large"


class Unprocessable(ClientError):
    """A medium could not be fetched."""

    status = 422
    type = "UnprocessableEntityError"
    kind = "unprocessable"


class NotSupported(ClientError):
    """A part of the contract that this server does not offer."""

    status = 501
    type = "NotImplementedError"
    kind = "not_supported"


class Overloaded(TriptychError):
    """A bounded queue is full; nothing was started."""

    status = 429
    type = "RateLimitError"
    kind = "overloaded"
    retryable = True


class Unavailable(TriptychError):
    """No replica can take this: none is ready, it drains, or it was lost on the way."""

    status = 503
    type = "ServiceUnavailableError"
    kind = "unavailable"
    retryable = True


class DeadlineExceeded(TriptychError):
    """The time that the request had is over."""

    status = 504
    type = "TimeoutError"
    kind = "deadline"
    retryable = True


class TransferError(TriptychError):
    """An item could not be moved; `kind` is one of TransferKind."""

    status = 502
    type = "TransferError"

    def __init__(
        self,
        message: str,
        kind: TransferKind,
        items: tuple[str, ...] = (),
        param: str | None = None,
        stage: str | None = None,
    ) -> None:
        super().__init__(message, param, stage, items)
        self.args = (message, kind, items, param, stage)
        self.kind = kind
        self.retryable = kind != "incompatible"


class InternalError(TriptychError):
    """A fault of ours; the log has the cause, the client does not."""


_BY_NAME: dict[str, type[TriptychError]] = {
    cls.__name__: cls
    for cls in (
        InvalidRequest, SchemaViolation, StateNotKept, Unauthorized, Forbidden, NotFound,
        PayloadTooLarge, Unprocessable, NotSupported, Overloaded, Unavailable, DeadlineExceeded,
        TransferError, InternalError,
    )
}  # fmt: skip


class WireError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error between our processes (msgpack, in gRPC trailing metadata and exchange frames)."""

    name: str
    message: str
    kind: str
    param: str | None = None
    stage: str | None = None
    items: tuple[str, ...] = ()
    retry_after: float | None = None


def to_wire(error: TriptychError) -> WireError:
    """The error as a value; a subclass goes as the class of this tree that it stands under."""
    name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _BY_NAME), "")
    return WireError(
        name,
        error.message,
        error.kind,
        error.param,
        error.stage,
        error.items,
        error.retry_after,
    )


def from_wire(wire: WireError) -> TriptychError:
    """The error again; a class that this version does not know becomes InternalError."""
    if wire.name == "TransferError":
        kind: TransferKind = msgspec.convert(wire.kind, TransferKind)
        return TransferError(wire.message, kind, wire.items, wire.param, wire.stage)
    cls = _BY_NAME.get(wire.name, InternalError)
    return cls(wire.message, wire.param, wire.stage, wire.items, wire.retry_after)


def body(error: TriptychError, request_id: str | None = None) -> dict[str, Any]:
    """The OpenAI-style error body, with our stage, kind and retryable added.

    A 401 is `{"error": "Unauthorized"}`, as the contract has it (wire-protocol §1.5).
    """
    if isinstance(error, Unauthorized):
        return {"error": "Unauthorized"}
    detail: dict[str, Any] = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.status,
        "kind": error.kind,
        "stage": error.stage,
        "retryable": error.retryable,
    }
    if error.items:
        detail["items"] = list(error.items)
    if request_id is not None:
        detail["request_id"] = request_id
    return {"error": detail}
