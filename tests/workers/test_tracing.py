"""Calls of a request that its client traces are spans of the worker's own."""

from __future__ import annotations

import pytest

from protocol.deadline import Deadline
from protocol.errors import NotSupported
from protocol.rpc import ENCODE, GENERATE, EncodeCall
from serving import trace_context
from tests.workers.conftest import StartWorker
from tests.workers.prompts import picture, request, text

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize("traced", [True, False])
async def test_a_call_is_a_span_of_the_clients_trace(
    start_worker: StartWorker, capfd: pytest.CaptureFixture[str], *, traced: bool
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    worker = await start_worker("prefill_decode", tracing="console")
    trace_context.enter(f"00-{TRACE_ID}-b7ad6b7169203331-01" if traced else "no traceparent")
    stream = worker.channel.stream(GENERATE, request(text(1), max_tokens=3), Deadline.after(20))
    assert [delta async for delta in stream]
    call = EncodeCall("r", [picture(1).encode_item()])
    with pytest.raises(NotSupported):
        await worker.channel.call(ENCODE, call, Deadline.after(20))
    trace_context.enter("")
    await worker.server.stop()
    printed = capfd.readouterr().out
    assert printed.count(f'"trace_id": "0x{TRACE_ID}"') == (2 if traced else 0)
    assert ('"name": "triptych.worker.generate"' in printed) is traced
    assert ('"description": "not_supported"' in printed) is traced
