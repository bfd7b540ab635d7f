"""The path of a request through every topology, over HTTP."""

from __future__ import annotations

import pytest

from protocol.replica import Role
from tests.coordinator.conftest import ALL, FUSED, SPLIT, Start, events
from tests.coordinator.stub_stages import expected


def words(tokens: list[int]) -> str:
    return "".join(f" t{token}" for token in tokens)


@pytest.mark.parametrize("roles", [SPLIT, FUSED, ALL])
@pytest.mark.parametrize("parts", [("hi",), ("image:a", "hi"), ("image:a", "image:b", "image:a")])
async def test_every_topology_gives_the_same_tokens(
    start: Start, roles: tuple[Role, ...], parts: tuple[str, ...]
) -> None:
    async with start(roles) as stage:
        answer = (await stage.chat(*parts, max_tokens=6)).json()
        prompt = [2]
        for part in parts:
            prompt += [9] * 4 if part.startswith("image:") else [10 + ord(c) % 80 for c in part]
        assert answer["choices"][0]["message"]["content"] == words(expected(prompt, 6))
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        assert answer["usage"]["completion_tokens"] == 6
        await stage.idle()


@pytest.mark.parametrize("roles", [SPLIT, FUSED, ALL])
async def test_a_stream_gives_what_the_whole_answer_gives(
    start: Start, roles: tuple[Role, ...]
) -> None:
    async with start(roles) as stage:
        whole = (await stage.chat("image:a", "hi")).json()
        response = await stage.chat(
            "image:a", "hi", stream=True, stream_options={"include_usage": True}
        )
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = events(response.text)
        text = "".join(c["delta"].get("content", "") for e in chunks for c in e["choices"])
        assert text == whole["choices"][0]["message"]["content"]
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        await stage.idle()
