"""One choice's text with its reasoning and tool calls taken apart."""

from __future__ import annotations

from typing import Any

from protocol.derender import DerenderedDelta
from protocol.rpc import TokenDelta
from render.parsers.reasoning.base import ReasoningParser
from render.parsers.tools.base import ToolParser
from render.text import TextDerenderer


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

    def push(self, delta: TokenDelta) -> DerenderedDelta:
        """Take new tokens in order."""
        done = self._text.push(delta)
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
