"""What is written down about a request."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from protocol.errors import TransferError
from tests.coordinator.conftest import ALL, SPLIT, Stage, Start


async def samples(stage: Stage) -> dict[tuple[str, ...], float]:
    text = (await stage.client.get("/metrics")).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_one_line_tells_what_happened(start: Start) -> None:
    async with start(SPLIT) as stage:
        await stage.chat("image:a", "hi")
        with capture_logs() as lines:
            await stage.chat("image:a", "image:b", "hi", max_tokens=4)
        line = next(line for line in lines if line["event"] == "request")
        assert (line["outcome"], line["topology"]) == ("ok", "split")
        assert line["items"] == {"held": 1, "encoded": 1}
        assert (line["prompt_tokens"], line["image_tokens"]) == (11, 8)
        assert line["completion_tokens"] == 4
        assert [call["stage"] for call in line["calls"]] == [
            "render", "encode", "prefill", "decode",
        ]  # fmt: skip
        assert 0 < line["first_token_s"] <= line["seconds"]


async def test_the_trace_header_is_there_by_flag_alone(start: Start) -> None:
    async with start(SPLIT) as stage:
        assert "x-triptych-trace" not in (await stage.chat("hi")).headers
    async with start(SPLIT, trace_header=True) as stage:
        for stream in (False, True):
            trace = (await stage.chat("image:a", stream=stream)).headers["x-triptych-trace"]
            assert "topology=split" in trace
            assert "prefill=" in trace
            assert ("replica=decode-" in trace) != stream  # a stream's headers precede decode


async def test_metrics_tell_the_same_and_when_disaggregation_was_off(start: Start) -> None:
    async with start(SPLIT) as stage:
        await stage.chat("image:a")
        for replica in stage.of("prefill"):
            served = replica.served["prefill"]
            replica.fail = lambda _name, r=replica, n=served: (  # type: ignore[misc]
                TransferError("no", "transport_failed") if r.served["prefill"] <= n + 3 else None
            )
        await stage.chat("image:b")
        await stage.idle()
        found = await samples(stage)
        assert found[("triptych_items_total", "encoded")] == 1
        assert found[("triptych_items_total", "pixels")] == 1
        assert found[("triptych_requests_total", "chat", "ok")] == 2
        assert found[("triptych_requests_running",)] == 0
        assert found[("triptych_retries_total", "prefill.transport_failed")] == 3
        assert found[("triptych_replicas_ready", "encode")] == 2
        assert found[("triptych_in_flight", "requests")] == 0
        assert found[("triptych_directory_entries",)] >= 1


@pytest.mark.parametrize(("roles", "how"), [(SPLIT, "encoded"), (ALL, "local")])
async def test_items_of_one_replica_for_everything_are_local(
    start: Start, roles: Any, how: str
) -> None:
    async with start(roles) as stage:
        await stage.chat("image:a")
        assert (await samples(stage))[("triptych_items_total", how)] == 1


async def test_spans_join_the_clients_trace(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    async with start(SPLIT, tracing="console", http=True) as stage:
        await stage.client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}]},
            headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"},
        )
    printed = capfd.readouterr().out
    assert printed.count(f'"trace_id": "0x{trace_id}"') == 4
    for name in ("chat", "render", "prefill", "decode"):
        assert f'"name": "triptych.{name}"' in printed
