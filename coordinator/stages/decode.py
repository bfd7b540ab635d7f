"""KV blocks become a stream of tokens; or, without a separate prefill, the whole prompt does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from coordinator.config import CoordinatorConfig
from coordinator.member import Member
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, TriptychError, Unavailable
from protocol.generate import GenerateRequest
from protocol.rpc import GENERATE, TokenDelta


class DecodeStage:
    """GenerateRequest -> TokenDelta stream, at one replica."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self._config = config

    async def run(
        self,
        member: Member,
        request: GenerateRequest,
        deadline: Deadline,
        open_choices: set[int],
    ) -> AsyncGenerator[TokenDelta, None]:
        """The tokens of the choices that are open; each in the stage's time limit.

        Raises:
            Unavailable: the replica was lost, or its stream ended before every choice had.
            DeadlineExceeded: no token came in time.
        """
        missing = set(open_choices)
        loop, patience = asyncio.get_running_loop(), self._config.decode.timeout_s
        ends = loop.time() + patience
        async with contextlib.aclosing(member.client.stream(GENERATE, request, deadline)) as stream:
            while True:
                try:
                    async with asyncio.timeout_at(ends):
                        delta = await anext(stream)
                except StopAsyncIteration:
                    break
                except TimeoutError:
                    raise DeadlineExceeded("no token came in time", stage="decode") from None
                except TriptychError:
                    if missing:
                        raise
                    return  # lost after its last word
                if delta.token_ids or delta.finish_reason is not None:
                    ends = loop.time() + patience  # empty words do not count
                yield delta
                if delta.finish_reason is not None:
                    missing.discard(delta.index)
        if missing:
            raise Unavailable("the stream of tokens ended too early", stage="decode")
