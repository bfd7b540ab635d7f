"""The language of the stubs: tokens that depend on everything before them, and their words."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Sequence

from protocol.derender import DerenderedDelta
from protocol.openai import ChatCompletionRequest, CompletionRequest, TokenTextLogprob
from protocol.rpc import TokenDelta


def next_token(before: Sequence[int], seed: int | None, choice: int) -> int:
    """Depends on everything before it, so that a lost or repeated token shows."""
    text = f"{list(before)}{seed}{choice}".encode()
    return 10 + hashlib.sha256(text).digest()[0] % 80


def expected(
    prompt: Sequence[int], count: int, seed: int | None = None, choice: int = 0
) -> list[int]:
    """The tokens that an undisturbed request gives."""
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(next_token([*prompt, *tokens], seed, choice))
    return tokens


class WordDerenderer:
    """A token is the word `t<id>`; stop strings are matched against whole words."""

    def chat(self, request: ChatCompletionRequest, prompt_token_ids: Sequence[int]) -> WordChoice:
        return WordChoice(request, bool(request.logprobs))

    def completion(self, request: CompletionRequest, prompt_token_ids: Sequence[int]) -> WordChoice:
        return WordChoice(request, request.logprobs is not None)


class WordChoice:
    def __init__(self, request: ChatCompletionRequest | CompletionRequest, logprobs: bool) -> None:
        stop = request.stop
        self._stop = [stop] if isinstance(stop, str) else stop or []
        self._logprobs = logprobs

    def push(self, delta: TokenDelta) -> DerenderedDelta:
        words = [f" t{token}" for token in delta.token_ids]
        for number, word in enumerate(words):
            if word.strip() in self._stop:
                return DerenderedDelta(
                    content="".join(words[:number]),
                    token_ids=delta.token_ids,
                    finish_reason="stop",
                    stop_reason=word.strip(),
                    stopped=True,
                )
        entries = [TokenTextLogprob(word, -0.5, None, []) for word in words]
        return DerenderedDelta(
            content="".join(words),
            token_ids=delta.token_ids,
            logprobs=entries if self._logprobs else None,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
        )


async def eventually(check: Callable[[], bool], within: float = 20.0) -> None:
    """Wait until something that other tasks bring about is so."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            while not check():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    assert check()
