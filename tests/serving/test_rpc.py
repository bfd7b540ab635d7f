"""Calls over gRPC: errors arrive as they left, and leaving a call ends it at the peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio
import msgspec
import pytest

from protocol.deadline import Deadline
from protocol.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    TransferError,
    TriptychError,
    Unauthorized,
    Unavailable,
)
from protocol.rpc import Method
from serving.rpc_client import RpcChannel
from serving.rpc_server import RpcServer


class Ask(msgspec.Struct, frozen=True):
    """A question."""

    number: int = 0
    extra: Any = None


class Answer(msgspec.Struct, frozen=True):
    """A number back."""

    number: int


ONCE = Method("/test.Service/Once", Ask, Answer, stream=False)
MANY = Method("/test.Service/Many", Ask, Answer, stream=True)
UNKNOWN = Method("/test.Service/Unknown", Ask, Answer, stream=False)

Once = Callable[[Ask, Deadline], Awaitable[Answer]]
Many = Callable[[Ask, Deadline], AsyncIterator[Answer]]


async def echo(request: Ask, _deadline: Deadline) -> Answer:
    return Answer(request.number)


async def count(request: Ask, _deadline: Deadline) -> AsyncIterator[Answer]:
    for number in range(request.number):
        yield Answer(number)


@contextlib.asynccontextmanager
async def serving(
    once: Once = echo, many: Many = count, *, token: str = "", present: str | None = None
) -> AsyncIterator[RpcChannel]:
    """A server of the two methods and a channel to it."""
    server = RpcServer("127.0.0.1", 0, token)
    server.add_unary(ONCE, once)
    server.add_stream(MANY, many)
    port = await server.start()
    channel = RpcChannel(f"127.0.0.1:{port}", token if present is None else present)
    try:
        yield channel
    finally:
        await channel.close()
        await server.stop(0)


async def read(
    channel: RpcChannel, take: Callable[[int], None] | None = None, deadline: Deadline | None = None
) -> None:
    """Read a stream to its end."""
    async for answer in channel.stream(MANY, Ask(), deadline or soon()):
        if take is not None:
            take(answer.number)


def soon(seconds: float = 10.0) -> Deadline:
    return Deadline.after(seconds)


async def test_a_call_is_answered() -> None:
    async with serving() as channel:
        assert await channel.call(ONCE, Ask(7), soon()) == Answer(7)


async def test_a_stream_is_answered_in_order_and_ends() -> None:
    async with serving() as channel:
        got = [answer.number async for answer in channel.stream(MANY, Ask(50), soon())]
    assert got == list(range(50))


ERRORS = [
    InvalidRequest("n must be 1", "sampling_params.n", "prefill"),
    Overloaded("full", None, "encode", (), 2.0),
    Unavailable("draining"),
    TransferError("gone", "missing", ("h1", "h2"), None, "transfer"),
    TransferError("other model", "incompatible", ("h1",)),
    PayloadTooLarge("größer als erlaubt"),
    DeadlineExceeded("too late", None, "decode"),
    InternalError("ours"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
async def test_an_error_arrives_as_it_left(error: TriptychError) -> None:
    async def fail(_request: Ask, _deadline: Deadline) -> Answer:
        raise error

    async def fail_later(_request: Ask, _deadline: Deadline) -> AsyncIterator[Answer]:
        yield Answer(1)
        raise error

    async with serving(fail, fail_later) as channel:
        with pytest.raises(type(error)) as caught:
            await channel.call(ONCE, Ask(), soon())
        assert caught.value.args == error.args
        assert caught.value.kind == error.kind

        got: list[int] = []
        with pytest.raises(type(error)) as caught:
            await read(channel, got.append)
        assert (got, caught.value.args) == ([1], error.args)


async def test_an_error_may_name_hundreds_of_items() -> None:
    items = tuple(f"{index:064x}" for index in range(1000))

    async def fail(_request: Ask, _deadline: Deadline) -> Answer:
        raise TransferError("all of them", "expired", items)

    async with serving(fail) as channel:
        with pytest.raises(TransferError) as caught:
            await channel.call(ONCE, Ask(), soon())
    assert caught.value.items == items


async def test_a_fault_of_ours_is_told_without_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_request: Ask, _deadline: Deadline) -> Answer:
        raise RuntimeError("secret of the implementation")

    async with serving(fail) as channel:
        with pytest.raises(InternalError) as caught:
            await channel.call(ONCE, Ask(), soon())
    assert "secret" not in caught.value.message
    assert "secret of the implementation" in caplog.text


async def test_a_malformed_request_is_the_callers_fault() -> None:
    wrong = Method("/test.Service/Once", dict, Answer, stream=False)
    async with serving() as channel:
        with pytest.raises(InvalidRequest, match="malformed /test"):
            await channel.call(wrong, {"number": "seven"}, soon())


async def test_an_unknown_method_is_an_internal_error() -> None:
    async with serving() as channel:
        with pytest.raises(InternalError, match="UNIMPLEMENTED"):
            await channel.call(UNKNOWN, Ask(), soon())


async def test_a_garbled_answer_is_an_internal_error() -> None:
    wrong = Method("/test.Service/Once", Ask, list[str], stream=False)
    async with serving() as channel:
        with pytest.raises(InternalError, match="garbage"):
            await channel.call(wrong, Ask(1), soon())


async def test_an_integer_that_no_message_can_hold_is_the_requests_fault() -> None:
    async with serving() as channel:
        with pytest.raises(InvalidRequest, match="64 bit"):
            await channel.call(ONCE, Ask(0, {"x": [2**70]}), soon())


async def test_a_reply_that_no_message_can_hold_is_the_requests_fault() -> None:
    """An open map of the request may come back in the reply."""
    huge = Method("/test.Service/Once", Ask, Ask, stream=False)

    async def back(_request: Ask, _deadline: Deadline) -> Ask:
        return Ask(0, {"x": 2**70})

    server = RpcServer("127.0.0.1", 0, "")
    server.add_unary(huge, back)
    channel = RpcChannel(f"127.0.0.1:{await server.start()}", "")
    with pytest.raises(InvalidRequest, match="64 bit"):
        await channel.call(huge, Ask(), soon())
    await channel.close()
    await server.stop(0)


# --- cancellation ----------------------------------------------------------------------------


class Watched:
    """Handlers that wait, and say when they began and when they were ended."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.sent = 0

    async def once(self, _request: Ask, _deadline: Deadline) -> Answer:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        raise AssertionError

    async def silent(self, _request: Ask, _deadline: Deadline) -> AsyncIterator[Answer]:
        """One answer, then silence."""
        try:
            yield Answer(0)
            self.began.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def endless(self, _request: Ask, _deadline: Deadline) -> AsyncIterator[Answer]:
        """As many answers as the peer takes."""
        try:
            while True:
                self.began.set()
                yield Answer(self.sent)
                self.sent += 1
        finally:
            self.ended.set()


async def within(event: asyncio.Event, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        await event.wait()


async def test_cancelling_a_call_reaches_the_handler() -> None:
    watched = Watched()
    async with serving(watched.once) as channel:
        task = asyncio.create_task(channel.call(ONCE, Ask(), soon()))
        await within(watched.began)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await within(watched.ended)


@pytest.mark.parametrize("kind", ["silent", "endless"])
async def test_cancelling_a_reader_reaches_the_handler(kind: str) -> None:
    watched = Watched()

    async with serving(many=getattr(watched, kind)) as channel:
        task = asyncio.create_task(read(channel))
        await within(watched.began)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await within(watched.ended)


@pytest.mark.parametrize("kind", ["silent", "endless"])
async def test_leaving_a_stream_early_cancels_it_at_the_peer(kind: str) -> None:
    watched = Watched()
    async with serving(many=getattr(watched, kind)) as channel:
        async with contextlib.aclosing(channel.stream(MANY, Ask(), soon())) as answers:
            async for answer in answers:
                assert answer == Answer(0)
                break
        await within(watched.ended)


async def test_the_deadline_cancels_the_handler_and_is_told() -> None:
    watched = Watched()
    async with serving(watched.once) as channel:
        with pytest.raises(DeadlineExceeded):
            await channel.call(ONCE, Ask(), soon(0.2))
        await within(watched.ended)


async def test_the_deadline_ends_a_stream_in_the_middle() -> None:
    watched = Watched()
    async with serving(many=watched.silent) as channel:
        with pytest.raises(DeadlineExceeded):
            await read(channel, deadline=soon(0.2))
        await within(watched.ended)


async def test_the_handler_is_told_what_remains() -> None:
    async def remaining(_request: Ask, deadline: Deadline) -> Answer:
        return Answer(round(deadline.remaining()))

    async with serving(remaining) as channel:
        assert await channel.call(ONCE, Ask(), soon(30)) == Answer(30)


async def test_a_passed_deadline_is_not_sent() -> None:
    async with serving() as channel:
        with pytest.raises(DeadlineExceeded):
            await channel.call(ONCE, Ask(), soon(-1))


# --- peers that are not there ----------------------------------------------------------------


async def test_a_peer_that_is_not_there_is_unavailable() -> None:
    channel = RpcChannel("127.0.0.1:1", "")
    with pytest.raises(Unavailable) as caught:
        await channel.call(ONCE, Ask(), soon(5))
    assert caught.value.retryable
    await channel.close()


async def test_a_server_that_stops_makes_its_streams_unavailable() -> None:
    watched = Watched()
    server = RpcServer("127.0.0.1", 0, "")
    server.add_stream(MANY, watched.silent)
    channel = RpcChannel(f"127.0.0.1:{await server.start()}", "")
    task = asyncio.create_task(read(channel))
    await within(watched.began)
    await server.stop(0)
    with pytest.raises(Unavailable):
        await task
    await channel.close()


@pytest.mark.parametrize("method", [ONCE, MANY])
async def test_closing_the_channel_ends_its_calls_as_unavailable(
    method: Method[Ask, Answer],
) -> None:
    """A task that nobody cancelled must not see a cancellation."""
    watched = Watched()

    async def wait(channel: RpcChannel) -> None:
        if method.stream:
            await read(channel)
        else:
            await channel.call(method, Ask(), soon())

    async with serving(watched.once, watched.silent) as channel:
        task = asyncio.create_task(wait(channel))
        await within(watched.began)
        await channel.close()
        with pytest.raises(Unavailable):
            await task
        with pytest.raises(Unavailable):
            await wait(channel)


async def test_a_port_that_is_taken_is_said() -> None:
    first = RpcServer("127.0.0.1", 0, "")
    port = await first.start()
    second = RpcServer("127.0.0.1", port, "")
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port}"):
        await second.start()
    await first.stop(0)


# --- the cluster token -----------------------------------------------------------------------


@pytest.mark.parametrize("present", ["", "wrong", "secre", "secret2"])
async def test_a_wrong_token_is_unauthorized_before_the_handler_runs(present: str) -> None:
    watched = Watched()
    async with serving(watched.once, watched.silent, token="secret", present=present) as channel:
        with pytest.raises(Unauthorized):
            await channel.call(ONCE, Ask(), soon())
        with pytest.raises(Unauthorized):
            await read(channel)
        assert not watched.began.is_set()


async def test_the_right_token_is_let_in() -> None:
    async with serving(token="secret") as channel:
        assert await channel.call(ONCE, Ask(3), soon()) == Answer(3)


async def test_a_credential_that_is_not_text_is_refused() -> None:
    async with (
        serving(token="secret") as channel,
        grpc.aio.insecure_channel(channel.address) as raw,
    ):
        call = raw.unary_unary(ONCE.name, None, None)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(msgspec.msgpack.encode(Ask()), metadata=(("authorization", "secret"),))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
