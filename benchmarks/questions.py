"""Greedy questions about drawings, and answers of which every token counts.

A streamed answer is kept token by token, so that one which was continued on another replica can be
compared with one which was not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from examples.drawings import Example
from tests.cluster.asking import chat, unseen

_HEADERS = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Question:
    """A streaming chat request, ready to be sent.

    Attributes:
        truth: what a right answer says.
        images: how many pictures it shows.
    """

    body: bytes
    truth: str
    images: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got.

    Attributes:
        text, token_ids: put together from the events.
        seconds: from sending to the last byte.
        error: why it is not a whole answer, or "".
        status: of the response, 0 where there was none.
    """

    text: str
    token_ids: tuple[int, ...]
    seconds: float
    error: str = ""
    status: int = 200
    retry_after: str = ""

    def same(self, other: Answer) -> bool:
        """Whether both say the same, token by token."""
        return (self.text, self.token_ids) == (other.text, other.token_ids)


def question(example: Example, **fields: Any) -> Question:
    """An example as a request that streams its tokens."""
    body = chat(example, stream=True, return_token_ids=True, **fields)
    return Question(msgspec.json.encode(body), example.answer, len(example.images))


def questions(images: int, *, seed: int) -> list[Question]:
    """About so many different pictures: most about one, some about three, one long one about none.

    Args:
        images: at least 3.
        seed: other seeds draw other pictures.
    """
    triples = images // 10
    asked = [question(one) for one in unseen("describe", images - 3 * triples, seed=seed)]
    asked += [question(one) for one in unseen("which", triples, images=3, seed=seed)]
    counting = Example((), "Count to fifty.", " ".join(str(number) for number in range(1, 51)))
    return [*asked, question(counting, max_tokens=200)]


async def ask(http: httpx.AsyncClient, url: str, asked: Question) -> Answer:
    """Send a question to `/v1/chat/completions` and read all of the answer; never raises."""
    began = time.perf_counter()
    words: list[str] = []
    token_ids: list[int] = []
    error = "the stream ended without [DONE]"
    status, retry_after = 0, ""
    try:
        async with http.stream("POST", url, content=asked.body, headers=_HEADERS) as response:
            status = response.status_code
            retry_after = response.headers.get("retry-after", "")
            if status != 200:
                await response.aread()
                error = f"{status}: {response.text[:300]}"
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    error = ""
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    error = f"in the stream: {event['error']}"
                    break
                for choice in event["choices"]:
                    words.append(choice["delta"].get("content") or "")
                    token_ids.extend(choice.get("token_ids") or ())
    except httpx.HTTPError as failure:
        error = f"{type(failure).__name__}: {failure}"
    seconds = time.perf_counter() - began
    return Answer("".join(words), tuple(token_ids), seconds, error, status, retry_after)


def share_true(asked: Sequence[Question], answers: Sequence[Answer]) -> float:
    """How many of the answers say what was drawn."""
    pairs = list(zip(asked, answers, strict=True))
    return sum(one.truth == answer.text for one, answer in pairs) / len(pairs)
