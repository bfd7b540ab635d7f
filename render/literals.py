"""Text that looks like a special token stays text.

A special token's text inside a message would be tokenised as the token: a literal image
placeholder would take the place of a real one, an end-of-turn marker would forge a turn. Such text
is replaced by a random marker before the template sees it, put back after, and where the tokenizer
still makes the special token of it, that token is replaced by its plain spelling. Ends of texts
that could join into a special token are marked with an empty literal.
"""

from __future__ import annotations

import bisect
import re
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec
from tokenizers import Tokenizer


class LiteralGuard:
    """Knows the special tokens of one tokenizer; shared by all requests.

    Args:
        tokenizer: the model's.
        placeholders: texts of the media placeholders: guarded in every role.
    """

    def __init__(self, tokenizer: Tokenizer, placeholders: Iterable[str]) -> None:
        self._tokenizer = tokenizer
        self._plain_tokenizer: Tokenizer | None = None
        # ASCII letters and digits, so that no filter of a template changes it.
        self._nonce = "qx" + secrets.token_hex(12)
        self._marker = re.compile(self._nonce + r"x(\d+)x")
        media = {text for text in placeholders if text}
        special = media | {
            token.content
            for token in tokenizer.get_added_tokens_decoder().values()
            if token.special and token.content.strip()
        }
        self._ids = frozenset(
            token for text in special if (token := tokenizer.token_to_id(text)) is not None
        )
        self._all = _Patterns(special)
        self._media = _Patterns(media)

    def literals(self) -> Literals:
        """A fresh collection for one request."""
        return Literals(self)

    def mark(self, text: str, found: list[str], *, media_only: bool) -> str:
        """The text with its literals replaced by markers, which are appended to `found`."""
        patterns = self._media if media_only else self._all

        def marker(literal: str) -> str:
            found.append(literal)
            return f"{self._nonce}x{len(found) - 1}x"

        marked = patterns.whole.sub(lambda match: marker(match.group()), text)
        if marked.startswith(patterns.tails):
            marked = marker("") + marked
        if marked.endswith(patterns.heads):
            marked += marker("")
        return marked

    def restore(self, prompt: str, found: list[str]) -> tuple[str, list[tuple[int, int]]]:
        """The prompt with its literals back, and where they are, as character ranges."""
        pieces: list[str] = []
        ranges: list[tuple[int, int]] = []
        length = position = 0
        for match in self._marker.finditer(prompt):
            literal = found[int(match.group(1))]
            before = prompt[position : match.start()]
            length += len(before)
            ranges.append((length, length + len(literal)))
            length += len(literal)
            pieces += (before, literal)
            position = match.end()
        pieces.append(prompt[position:])
        return "".join(pieces), ranges

    def encode(
        self, text: str, ranges: list[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of a restored prompt, and each one's place in it.

        Special tokens that touch a literal are spelled out; their pieces share its place.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            pieces = [token]
            if token in self._ids and _touches(ranges, start, end):
                pieces = self._plain(text[start:end], token)
            ids += pieces
            offsets += [(start, end)] * len(pieces)
        return ids, offsets

    def _plain(self, text: str, token: int) -> list[int]:
        if self._plain_tokenizer is None:
            self._plain_tokenizer = _without_added_tokens(self._tokenizer)
        # Behind a letter, so that no word-start mark is put before it.
        plain = self._plain_tokenizer
        lead = plain.encode("a", add_special_tokens=False).ids
        ids = plain.encode("a" + text, add_special_tokens=False).ids
        ids = (
            ids[len(lead) :]
            if ids[: len(lead)] == lead
            else plain.encode(text, add_special_tokens=False).ids
        )
        if token in ids:  # the vocabulary itself spells it as one piece
            half = len(text) // 2
            ids = [i for part in (text[:half], text[half:]) for i in self._plain(part, token)]
        return ids


class Literals:
    """The literals of one request."""

    def __init__(self, guard: LiteralGuard) -> None:
        self._guard = guard
        self._found: list[str] = []

    def mark(self, value: Any, *, media_only: bool = False) -> Any:
        """A JSON value whose strings have markers for their literals; keys stay as they are."""
        if isinstance(value, str):
            return self._guard.mark(value, self._found, media_only=media_only)
        if isinstance(value, list):
            return [self.mark(element, media_only=media_only) for element in value]
        if isinstance(value, dict):
            return {
                key: self.mark(element, media_only=media_only) for key, element in value.items()
            }
        return value

    def __bool__(self) -> bool:
        return bool(self._found)

    def encode(self, prompt: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of a prompt that holds markers, and their places in its text."""
        return self._guard.encode(*self._guard.restore(prompt, self._found))


class _Patterns:
    def __init__(self, tokens: set[str]) -> None:
        longest_first = sorted(tokens, key=len, reverse=True)
        self.whole = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self.heads = tuple({token[:n] for token in tokens for n in range(1, len(token))})
        self.tails = tuple({token[n:] for token in tokens for n in range(1, len(token))})


def _touches(ranges: list[tuple[int, int]], start: int, end: int) -> bool:
    """Whether [start, end) overlaps a range or has an empty one strictly inside."""
    index = bisect.bisect_left(ranges, (start, start))
    before = ranges[index - 1] if index else (0, 0)
    if before[1] > start:
        return True
    return any(low < end and (high > low or low > start) for low, high in ranges[index : index + 2])


def _without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    spec = msgspec.json.decode(tokenizer.to_str(), type=dict[str, Any])
    spec["added_tokens"] = []
    spec["post_processor"] = None
    return Tokenizer.from_str(msgspec.json.encode(spec).decode())
