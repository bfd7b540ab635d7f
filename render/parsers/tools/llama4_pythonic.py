"""Llama 4: calls as a Python list, `[f(a=1), g(b="x")]`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from render.parsers.lane import Lane
from render.parsers.scan import Markers
from render.parsers.tools.base import ToolDelta, ToolParser

_TAGS = Markers(["<|python_start|>", "<|python_end|>"])
_STOPS = re.compile(r"""["'\\()\[\]{}]""")
_BEGINS = re.compile(r"\[\s*[A-Za-z_]\w*(\.\w+)*\s*\(")
_MAY_BEGIN = re.compile(r"\[\s*([A-Za-z_][\w.]*\s*)?$")


class Llama4Pythonic(ToolParser):
    """A call is sent when its closing parenthesis is there, and its arguments are literals."""

    tokens = ("<|python_start|>", "<|python_end|>")

    fields = (*ToolParser.fields, "_call", "_depth", "_quote", "_escaped", "_begun")
    modes = frozenset({"text", "list"})

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        super().__init__(tools)
        self._call = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._begun = False

    def push(self, text: str) -> ToolDelta:
        """Take more text in order."""
        text = self._held + text
        self._held = ""
        content: list[str] = []
        calls: list[dict[str, Any]] = []
        while text:
            text = self._list(text, calls) if self._mode == "list" else self._text(text, content)
        return ToolDelta("".join(content), calls)

    def lane(self) -> Lane | None:
        """Text after the answer's beginning runs to the first sign of a tag."""
        if self._held or self._fresh or self._mode != "text" or not self._begun:
            return None
        return Lane("content", _TAGS.initials)

    def finish(self) -> ToolDelta:
        """What was held back and is final now; an unfinished call is shown as it was written."""
        held, self._held = self._held + self._call, ""
        self._call = ""
        return ToolDelta(held, [])

    def _text(self, text: str, content: list[str]) -> str:
        found = _TAGS.split(text)
        if found.before:
            rest = self._find_list(found.before, content, last=not found.marker)
            if self._mode == "list":
                return rest + found.marker + found.after
            self._held = rest
        if not found.marker:
            self._held += found.after
            return ""
        self._begun = found.marker == "<|python_end|>"
        return found.after

    def _find_list(self, text: str, content: list[str], *, last: bool) -> str:
        """Pass text on; a list counts only at the beginning of the answer or after its tag."""
        stripped = text.lstrip()
        if not self._begun:
            if _BEGINS.match(stripped):
                self._mode, self._depth, self._call = "list", 0, ""
                return stripped[1:]
            if last and (not stripped or _MAY_BEGIN.match(stripped)):
                return text
        self._begun = self._begun or bool(stripped)
        content.append(self.outside(text, call_follows=False))
        return ""

    def _list(self, text: str, calls: list[dict[str, Any]]) -> str:
        at = 0
        while at < len(text):
            if self._escaped:
                self._call += text[at]
                self._escaped = False
                at += 1
                continue
            stop = _STOPS.search(text, at)
            end = stop.end() if stop else len(text)
            self._call += text[at:end]
            at = end
            if stop is None:
                break
            char = stop[0]
            if char == "\\":
                self._escaped = bool(self._quote)
            elif self._quote:
                self._quote = "" if char == self._quote else self._quote
            elif char in "\"'":
                self._quote = char
            elif char in "([{":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    self._end_call(calls)
                elif self._depth < 0:
                    self._mode, self._call, self._begun = "text", "", True
                    return text[at:]
        return ""

    def _end_call(self, calls: list[dict[str, Any]]) -> None:
        source, self._call = self._call.lstrip(", \n\t"), ""
        try:
            call = ast.parse(source, mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                return
            arguments = {
                word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg
            }
            text = json.dumps(arguments, ensure_ascii=False)
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return
        calls.append(self.begin(ast.unparse(call.func), text))
