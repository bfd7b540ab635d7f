"""A replica that lies, babbles or says nothing costs a try, never a wrong answer.

In each case one replica of a stage is hostile whenever it is asked, and another one is well. A
request must be answered right and in time, and leave nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from coordinator.config import StageConfig
from protocol.errors import InvalidRequest, NotFound, TransferError
from protocol.features import PlaceholderRange
from protocol.generate import Usage
from protocol.replica import Role
from protocol.rpc import Encoded, Prefilled, Rendered, Reservation, Reserved, TokenDelta
from protocol.transfer import EcItem, KvHandoff, kv_params
from tests.coordinator.conftest import Start, events
from tests.coordinator.stub_stages import StubReplica
from tests.coordinator.stub_words import expected, next_token

GARBAGE: Any = msgspec.Raw(b"\xc1 no msgpack")
NUMBER: Any = msgspec.Raw(msgspec.msgpack.encode(7))
PROMPT = [2, 9, 9, 9, 9, *(10 + ord(c) % 80 for c in "hi")]
COUNT = 10
LIMIT_S = 1.0
"""What a stage may take here: a peer that says nothing costs a second."""

Lie = Callable[[StubReplica, Any], Any]
"""Makes a reply of a call (its request is given), or raises."""


async def never() -> Any:
    await asyncio.Event().wait()


def elsewhere(item: EcItem) -> EcItem:
    """The descriptor, but of a host that nobody knows."""
    return msgspec.structs.replace(item, peer_host="192.0.2.1")


def item(replica: StubReplica, request: Any, **changes: Any) -> EcItem:
    """The descriptor that an honest encode replica gives, changed."""
    [one] = request.items
    honest = EcItem(
        one.mm_hash, "127.0.0.1", 2, f"{replica.replica.id}//{one.mm_hash}", shape=(4, 8)
    )
    return msgspec.structs.replace(honest, **changes)


def pretends(replica: StubReplica, call: Any) -> Any:
    """Says that an item is encoded that is not; who waits for it is told that it will not come."""
    expected = replica.cluster.expected.pop(item(replica, call).key, None)
    if expected is not None:
        expected.set_result(None)
    return Encoded([item(replica, call)], [False])


def decode_id(replica: StubReplica) -> str:
    assert isinstance(replica, Liar)
    return replica.decode_id


def with_requests(change: Callable[[Any], Any]) -> Lie:
    """A rendering of the body that is changed."""

    def lie(replica: StubReplica, call: Any) -> Any:
        body = msgspec.json.decode(call.body)
        parts = ["image:a", "hi"]
        return Rendered([change(replica._request(call, body, parts))])

    return lie


def misplaced(request: Any) -> Any:
    """The picture's placeholder reaches beyond the prompt."""
    ranges = {"image": [PlaceholderRange(len(request.token_ids) - 1, 4)]}
    features = msgspec.structs.replace(request.features, mm_placeholders=ranges)
    return msgspec.structs.replace(request, features=features)


def unequal(request: Any) -> Any:
    """More hashes than placeholders."""
    features = msgspec.structs.replace(request.features, mm_hashes={"image": ["a", "b"]})
    return msgspec.structs.replace(request, features=features)


def handed(deltas: list[TokenDelta], params: Any) -> Lie:
    return lambda _replica, _request: Prefilled(deltas, params, Usage())


def without_blocks(_replica: StubReplica, request: Any) -> Prefilled:
    """The right token, of a request that goes on elsewhere too, with blocks that nobody has."""
    before = [*request.token_ids, *(request.resume_token_ids or ())]
    token = next_token(before, request.sampling_params.seed, 0)
    source = EcItem("", "127.0.0.1", 3, "nowhere")
    params = kv_params(KvHandoff(source, len(before), 16, (token,)))
    return Prefilled([TokenDelta(0, [token])], params, Usage())


FIRST = expected(PROMPT, 1)[0]
HANDOFF = kv_params(KvHandoff(EcItem("", "127.0.0.1", 3, "nowhere"), 7, 16, (FIRST,)))

LIES: dict[str, tuple[Role, str, Lie]] = {
    "render: garbage": ("render", "render", lambda *_: GARBAGE),
    "render: another type": ("render", "render", lambda *_: NUMBER),
    "render: no prompt": ("render", "render", lambda *_: Rendered([])),
    "render: two prompts": ("render", "render", lambda r, c: Rendered(
        2 * with_requests(lambda request: request)(r, c).requests)),
    "render: placeholder outside": ("render", "render", with_requests(misplaced)),
    "render: columns of unequal length": ("render", "render", with_requests(unequal)),
    "render: negative tokens": ("render", "render", with_requests(
        lambda request: msgspec.structs.replace(request, token_ids=[-1, *request.token_ids[1:]]))),
    "render: nothing": ("render", "render", lambda *_: never()),
    "reserve: garbage": ("encode", "reserve", lambda *_: GARBAGE),
    "reserve: no answer about the item": ("encode", "reserve", lambda *_: Reserved([])),
    "reserve: held, but is not": ("encode", "reserve", lambda r, c: Reserved(
        [Reservation("held", item(r, c))])),
    "reserve: held, without a descriptor": ("encode", "reserve", lambda *_: Reserved(
        [Reservation("held")])),
    "reserve: of other rows": ("encode", "reserve", lambda r, c: Reserved(
        [Reservation("held", item(r, c, shape=(5, 8)))])),
    "reserve: another item": ("encode", "reserve", lambda r, c: Reserved(
        [Reservation("held", item(r, c, mm_hash="b"))])),
    "reserve: elsewhere, nobody knows where": ("encode", "reserve", lambda *_: Reserved(
        [Reservation("elsewhere", None, "nobody")])),
    "reserve: elsewhere, at a decode replica": ("encode", "reserve", lambda r, _: Reserved(
        [Reservation("elsewhere", None, decode_id(r))])),
    "reserve: a foreign host": ("encode", "reserve", lambda r, c: Reserved(
        [Reservation("in_flight", elsewhere(item(r, c)))])),
    "reserve: nothing": ("encode", "reserve", lambda *_: never()),
    "encode: garbage": ("encode", "encode", lambda *_: GARBAGE),
    "encode: no item": ("encode", "encode", lambda *_: Encoded([], [])),
    "encode: another item": ("encode", "encode", lambda r, c: Encoded(
        [item(r, c, mm_hash="b")], [False])),
    "encode: of other rows": ("encode", "encode", lambda r, c: Encoded(
        [item(r, c, shape=(5, 8))], [False])),
    "encode: says done, but is not": ("encode", "encode", pretends),
    "encode: a foreign host": ("encode", "encode", lambda r, c: Encoded(
        [elsewhere(item(r, c))], [False])),
    "encode: nothing": ("encode", "encode", lambda *_: never()),
    "prefill: garbage": ("prefill", "prefill", lambda *_: GARBAGE),
    "prefill: no token": ("prefill", "prefill", handed([], HANDOFF)),
    "prefill: nothing to go on with": ("prefill", "prefill", handed(
        [TokenDelta(0, [FIRST])], None)),
    "prefill: a malformed handoff": ("prefill", "prefill", handed(
        [TokenDelta(0, [11])], {"triptych_kv": {"source": 7}})),
    "prefill: blocks that are not there": ("prefill", "prefill", without_blocks),
    "prefill: for a choice that is not": ("prefill", "prefill", handed(
        [TokenDelta(3, [11])], HANDOFF)),
    "prefill: two first tokens": ("prefill", "prefill", handed(
        [TokenDelta(0, [FIRST, 12])], HANDOFF)),
    "prefill: another first token than it handed on": ("prefill", "prefill", handed(
        [TokenDelta(0, [FIRST + 1])], HANDOFF)),
    "prefill: a negative token": ("prefill", "prefill", handed(
        [TokenDelta(0, [-11])], kv_params(KvHandoff(
            EcItem("", "127.0.0.1", 3, "nowhere"), 7, 16, (-11,))))),
    "prefill: nothing": ("prefill", "prefill", lambda *_: never()),
}  # fmt: skip


class Liar(StubReplica):
    """Answers one kind of call with a lie, whenever it is asked; otherwise it is honest.

    Attributes:
        decode_id: id of a decode replica, for those that like to send callers there.
    """

    decode_id = ""

    def __init__(self, role: Role, cluster: Any, name: str, lie: Lie) -> None:
        super().__init__(role, cluster)
        self._name = name
        self._lie = lie

    async def _said(self, request: Any) -> Any:
        self.served[self._name] += 1
        reply = self._lie(self, request)
        return await reply if asyncio.iscoroutine(reply) else reply

    async def _render(self, call: Any, deadline: Any) -> Any:
        return await (
            self._said(call) if self._name == "render" else super()._render(call, deadline)
        )

    async def _reserve(self, call: Any, deadline: Any) -> Any:
        lies = self._name == "reserve"
        return await (self._said(call) if lies else super()._reserve(call, deadline))

    async def _encode(self, call: Any, deadline: Any) -> Any:
        return await (
            self._said(call) if self._name == "encode" else super()._encode(call, deadline)
        )

    async def _prefill(self, request: Any, deadline: Any) -> Any:
        lies = self._name == "prefill"
        return await (self._said(request) if lies else super()._prefill(request, deadline))


class Wary(StubReplica):
    """An honest prefill replica that refuses descriptors of hosts that it does not know."""

    async def _prefill(self, request: Any, deadline: Any) -> Any:
        for one in (request.ec_transfer_params or {}).get("ec_items", ()):
            if one["peer_host"] != "127.0.0.1":
                raise InvalidRequest("the host is not allowed", "ec_transfer_params.ec_items.0")
        return await super()._prefill(request, deadline)


async def add(stage: Any, *replicas: StubReplica) -> None:
    for replica in replicas:
        await replica.start()
        stage.replicas.append(replica)
    stage.publish()
    await stage.ready()


def text_of(tokens: list[int]) -> str:
    return "".join(f" t{token}" for token in tokens)


async def check(stage: Any, picture: int = 0) -> None:
    """Pictures have other homes, but the stubs' answers depend on the number of rows alone."""
    answer = await stage.chat(f"image:{picture}", "hi", max_tokens=COUNT, stream=True)
    assert answer.status_code == 200, answer.text
    choices = [choice for event in events(answer.text) for choice in event.get("choices", ())]
    assert "error" not in answer.text, answer.text
    said = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert said == text_of(expected(PROMPT, COUNT))


LIMITS = {
    stage: StageConfig(timeout_s=LIMIT_S, attempts=4)
    for stage in ("render", "encode", "prefill", "decode")
}


@pytest.mark.parametrize("name", LIES)
async def test_a_liar_beside_an_honest_replica(start: Start, name: str) -> None:
    role, called, lie = LIES[name]
    honest: list[Role] = [one for one in ("render", "encode", "decode")]  # noqa: C416
    async with start(honest, embedding_lease_s=2.0, **LIMITS) as stage:
        liar = Liar(role, stage.cluster, called, lie)
        liar.decode_id = stage.of("decode")[0].replica.id
        await add(stage, liar, Wary("prefill", stage.cluster))
        for picture in range(16):  # until the liar was asked
            async with asyncio.timeout(8 * LIMIT_S):
                await check(stage, picture)
            if liar.served[called]:
                break
        assert liar.served[called]
        await stage.idle()


@pytest.mark.parametrize("name", LIES)
async def test_a_liar_alone_is_a_typed_error_in_time(start: Start, name: str) -> None:
    """Nobody else can serve the stage: no answer is better than a wrong one."""
    role, called, lie = LIES[name]
    roles: list[Role] = [one for one in ("render", "encode", "decode") if one != role]
    async with start(roles, embedding_lease_s=2.0, **LIMITS, request_timeout_s=6.0) as stage:
        liar = Liar(role, stage.cluster, called, lie)
        liar.decode_id = stage.of("decode")[0].replica.id
        await add(stage, liar, *([] if role == "prefill" else [Wary("prefill", stage.cluster)]))
        answer = await stage.chat("image:a", "hi", max_tokens=COUNT)
        assert liar.served[called]
        if answer.status_code == 200:  # a way around it, as to send prefill the pixels
            said = answer.json()["choices"][0]["message"]["content"]
            assert said == text_of(expected(PROMPT, COUNT))
        else:
            assert answer.status_code in (400, 500, 502, 503, 504), answer.text
            error = answer.json()["error"]
            assert error["stage"] in ("render", "encode", "transfer", "prefill", "decode")
            assert "Traceback" not in answer.text
        await stage.quiet()


Stream = Callable[[AsyncIterator[TokenDelta]], AsyncIterator[Any]]


async def ends_early(real: AsyncIterator[TokenDelta]) -> AsyncIterator[Any]:
    yield await anext(real)
    yield await anext(real)


async def babbles(real: AsyncIterator[TokenDelta]) -> AsyncIterator[Any]:
    yield await anext(real)
    yield GARBAGE


async def wrong_choice(real: AsyncIterator[TokenDelta]) -> AsyncIterator[Any]:
    yield await anext(real)
    yield TokenDelta(5, [11])


async def negative(real: AsyncIterator[TokenDelta]) -> AsyncIterator[Any]:
    yield await anext(real)
    yield TokenDelta(0, [-5])


async def empty_for_ever(real: AsyncIterator[TokenDelta]) -> AsyncIterator[Any]:
    yield await anext(real)
    while True:
        yield TokenDelta(0, [])
        await asyncio.sleep(0.01)


async def says_nothing_more(real: AsyncIterator[TokenDelta]) -> AsyncIterator[Any]:
    yield await anext(real)
    await never()


async def goes_on_for_ever(real: AsyncIterator[TokenDelta]) -> AsyncIterator[Any]:
    async for delta in real:
        yield msgspec.structs.replace(delta, finish_reason=None)
    while True:
        yield TokenDelta(0, [11])
        await asyncio.sleep(0.001)


async def not_found(real: AsyncIterator[TokenDelta]) -> AsyncIterator[Any]:
    yield await anext(real)
    raise TransferError("what KV blocks?", "missing")


async def blames_the_client(real: AsyncIterator[TokenDelta]) -> AsyncIterator[Any]:
    yield await anext(real)
    raise NotFound("no such request")


class StreamLiar(StubReplica):
    """A decode replica whose streams go wrong."""

    def __init__(self, cluster: Any, lie: Stream) -> None:
        super().__init__("decode", cluster)
        self._lie = lie

    async def _generate(self, request: Any, deadline: Any) -> Any:
        real = super()._generate(request, deadline)
        try:
            async for delta in self._lie(real):
                yield delta
        finally:
            await real.aclose()


@pytest.mark.parametrize(
    "lie",
    [
        ends_early, babbles, wrong_choice, negative, empty_for_ever, says_nothing_more, not_found,
        goes_on_for_ever,
    ],
)  # fmt: skip
async def test_a_stream_that_goes_wrong_is_continued_elsewhere(start: Start, lie: Stream) -> None:
    async with start(("render", "encode", "prefill"), **LIMITS) as stage:
        liar = StreamLiar(stage.cluster, lie)
        await add(stage, liar, StubReplica("decode", stage.cluster))
        for picture in range(16):
            async with asyncio.timeout(8 * LIMIT_S):
                await check(stage, picture)
            if liar.served["generate"]:
                break
        assert liar.served["generate"]
        await stage.idle()
