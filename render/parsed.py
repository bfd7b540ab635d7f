"""One choice's text with its reasoning and tool calls taken apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.derender import DerenderedDelta
from protocol.rpc import TokenDelta
from render.parsers.lane import Lane
from render.parsers.reasoning.base import ReasoningParser
from render.parsers.tools.base import ToolParser
from render.text import TextDerenderer
from serving.detokenizer import WholeTokens

_CONTENT = Lane("content")


class ParsedDerenderer:
    """Text, then reasoning, then tool calls; linear in the tokens.

    Args:
        text: the choice's text.
        reasoning: the parser of its reasoning, or None.
        tools: the parser of its calls, or None.
        include_reasoning: give the reasoning to the client.
        one_call: leave out every call but the first.
    """

    def __init__(
        self,
        text: TextDerenderer,
        reasoning: ReasoningParser | None,
        tools: ToolParser | None,
        *,
        include_reasoning: bool,
        one_call: bool = False,
    ) -> None:
        self._text = text
        self._reasoning = reasoning
        self._tools = tools
        self._include = include_reasoning
        self._one_call = one_call
        self._sink = "content"
        self._take: Callable[[str], bool] | None = None
        self._whole: WholeTokens | None = None
        self._index = 0

    def push(self, delta: TokenDelta) -> DerenderedDelta:
        """Take new tokens in order; most of them change nothing and go by the lane."""
        ids = delta.token_ids
        if (
            (whole := self._whole) is not None
            and delta.finish_reason is None
            and delta.logprobs is None
            and len(ids) == 1
            and (text := whole[ids[0]])
            and ((take := self._take) is None or take(text))
        ):
            sink = self._sink
            if sink == "content":
                return DerenderedDelta(content=text, token_ids=ids)
            if sink == "arguments":
                call = {"index": self._index, "function": {"arguments": text}}
                return DerenderedDelta(tool_calls=[call], token_ids=ids)
            if sink == "reasoning":
                return DerenderedDelta(reasoning=text, token_ids=ids)
            return DerenderedDelta(token_ids=ids)
        done = self._parse(delta)
        self._aim()
        return done

    def _aim(self) -> None:
        """Choose the lane of the state that the parsers are in now."""
        lane = _CONTENT if self._reasoning is None else self._reasoning.lane()
        if lane is not None and lane.sink == "content" and self._tools is not None:
            outer, lane = lane, self._tools.lane()
            if lane is not None and outer.stops:
                lane = lane._replace(stops=lane.stops | outer.stops)
        self._whole = None
        if lane is None:
            return
        self._index = 0 if self._tools is None else self._tools.count - 1
        hidden = (lane.sink == "reasoning" and not self._include) or (
            lane.sink == "arguments" and self._one_call and self._index > 0
        )
        self._sink, self._take = "nothing" if hidden else lane.sink, lane.take
        self._whole = self._text.whole(lane.stops)

    def _parse(self, delta: TokenDelta) -> DerenderedDelta:
        done = self._text.push_any(delta)
        reasoning, content = "", done.content
        calls: list[dict[str, Any]] = []
        last = done.finish_reason is not None
        if self._reasoning is not None:
            reasoning, content = self._reasoning.push(content) if content else ("", "")
            if last:
                more = self._reasoning.finish()
                reasoning, content = reasoning + more.reasoning, content + more.content
        if self._tools is not None:
            if content:
                content, calls = self._tools.push(content)
            if last:
                ended = self._tools.finish()
                content += ended.content
                calls = [*calls, *ended.calls]
        if self._one_call:
            calls = [call for call in calls if call["index"] == 0]
        called = self._tools is not None and self._tools.count > 0
        return DerenderedDelta(
            content=content,
            reasoning=reasoning if self._include else "",
            tool_calls=calls,
            logprobs=done.logprobs,
            token_ids=done.token_ids,
            finish_reason=(
                "tool_calls" if called and done.finish_reason == "stop" else done.finish_reason
            ),
            stop_reason=done.stop_reason,
            stopped=done.stopped,
        )

    def state(self) -> dict[str, Any]:
        """What a stateless caller carries to the next call, as JSON values."""
        return {
            "plain": self._text.state(),
            "reasoning": None if self._reasoning is None else self._reasoning.state(),
            "tools": None if self._tools is None else self._tools.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same request.

        Raises:
            ValueError, TypeError, KeyError: it is not a state.
        """
        self._text.restore(state["plain"])
        if self._reasoning is not None:
            self._reasoning.restore(state["reasoning"])
        if self._tools is not None:
            self._tools.restore(state["tools"])
        self._whole = None
