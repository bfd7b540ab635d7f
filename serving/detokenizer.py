"""Token ids to text as they come, and stop strings in that text.

Text is emitted as soon as it is final: only an incomplete UTF-8 sequence, or text that may be the
beginning of a stop string, is held back. State is plain data, so that a stateless caller can carry
it. Imports tokenizers only.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders

_CONTEXT = 6
"""Tokens of context before new ones, so that a decoder keeps leading spaces."""

_WINDOW = 24
"""Tokens after which the window is cut back to its context."""

_LONGEST_INCOMPLETE = 3
"""Bytes of an incomplete UTF-8 sequence, each at most one U+FFFD."""


class TokenTable:
    """The bytes of each token, looked up once, where a decoder is a map from tokens to bytes.

    Two kinds are: byte-level, and word-start marks with or without byte fallback.

    Args:
        tokenizer: the model's.
        byte_level: the kind.
        strips: whether a space at the very beginning of a text is left out.
    """

    def __init__(self, tokenizer: Tokenizer, *, byte_level: bool, strips: bool) -> None:
        self._tokenizer = tokenizer
        self._byte_level = byte_level
        self._bytes: dict[int, bytes] = {}
        self.strips = strips

    def of(self, token: int) -> bytes:
        """The bytes of a token; of an unknown one none."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._look_up(token)
        return found

    def _look_up(self, token: int) -> bytes:
        try:
            text = self._tokenizer.id_to_token(token)
        except OverflowError:
            return b""
        if text is None:
            return b""
        if not self._byte_level:
            byte = _BYTE_TOKEN.fullmatch(text)
            return bytes([int(byte[1], 16)]) if byte else text.replace(_WORD_START, " ").encode()
        mapped = [_BYTE_OF.get(char) for char in text]
        if None in mapped:
            return text.encode()
        return bytes(value for value in mapped if value is not None)


class WholeTokens(dict[int, str]):
    """Token -> its text, "" where that is not whole characters or is not to be taken alone.

    Filled as tokens are asked for: `tokens[7]` is one look-up.
    """

    def __init__(self, table: TokenTable, skipped: frozenset[int], stops: frozenset[str]) -> None:
        super().__init__()
        self._table = table
        self._skipped = skipped
        self._stops = stops

    def __missing__(self, token: int) -> str:
        text = ""
        if token not in self._skipped:
            try:
                text = self._table.of(token).decode()
            except UnicodeDecodeError:
                text = ""
        if not self._stops.isdisjoint(text):
            text = ""
        self[token] = text
        return text


@functools.lru_cache(maxsize=64)
def whole_tokens(
    tokenizer: Tokenizer, skipped: frozenset[int], stops: frozenset[str]
) -> WholeTokens | None:
    """The whole tokens of a tokenizer, None where its decoder is not a map from tokens to bytes.

    Shared by all requests with the same options; those that clients make up push each other out.
    """
    table = token_table(tokenizer)
    return None if table is None else WholeTokens(table, skipped, stops)


@functools.lru_cache(maxsize=8)
def token_table(tokenizer: Tokenizer) -> TokenTable | None:
    """The table of a tokenizer, None where its decoder is not a map from tokens to bytes."""
    decoder = tokenizer.decoder
    if isinstance(decoder, decoders.ByteLevel):
        return TokenTable(tokenizer, byte_level=True, strips=False)
    if decoder is None:
        return None
    spec = json.loads(decoder.__getstate__())
    parts = spec["decoders"] if spec["type"] == "Sequence" else [spec]
    if not all(_is_plain(part) for part in parts):
        return None
    strips = any(
        part["type"] == "Strip" or part.get("prepend_scheme", "never") != "never" for part in parts
    )
    marks = any(part["type"] in ("Replace", "Metaspace") for part in parts)
    return TokenTable(tokenizer, byte_level=False, strips=strips) if marks else None


def _is_plain(part: dict[str, Any]) -> bool:
    """Whether a decoder treats each token by itself, the first one's space apart."""
    match part:
        case {"type": "ByteFallback" | "Fuse"}:
            return True
        case {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}:
            return True
        case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
            return True
        case {"type": "Metaspace", "replacement": "▁"}:
            return True
    return False


@functools.lru_cache(maxsize=8)
def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of the tokens that `skip_special_tokens` leaves out."""
    return frozenset(
        token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special
    )


class Detokenizer:
    """The text of one growing sequence of tokens.

    Args:
        tokenizer: the model's.
        prompt_token_ids: the prompt, of which the last few tokens are context.
        skip_special_tokens: leave special tokens out of the text.
        keep: special tokens that are text all the same.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        keep: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._table = token_table(tokenizer)
        self._special = special_ids(tokenizer) - keep if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._window: list[int] = []
        self._emitted = 0
        context = [t for t in prompt_token_ids[-_CONTEXT:] if t not in self._special]
        self._strip = self._table is not None and self._table.strips and not context
        if self._table is None:
            self._window = context
            self._emitted = len(self._decode())

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that new tokens complete, "" where they complete none."""
        if self._table is not None:
            of, special = self._table.of, self._special
            raw = b"".join([of(t) for t in token_ids if t not in special])
            if self._strip and raw:
                self._strip = False
                raw = raw.removeprefix(b" ")
            return self._utf8.decode(raw)
        new = [t for t in token_ids if t not in self._special]
        if not new:
            return ""
        self._window += new
        text = self._decode()
        open_ = min(len(text) - len(text.rstrip("\ufffd")), _LONGEST_INCOMPLETE)
        final = len(text) - open_
        out = text[self._emitted : final]
        self._emitted = max(self._emitted, final)
        if not open_ and len(self._window) > _WINDOW:
            self._window = self._window[-_CONTEXT:]
            self._emitted = len(self._decode())
        return out

    def whole(self, stops: frozenset[str]) -> WholeTokens | None:
        """Tokens whose text is `push`ed as it is and without a trace, as things stand."""
        if self._strip or self._utf8.getstate()[0]:
            return None
        return whole_tokens(self._tokenizer, self._special, stops)

    def finish(self) -> str:
        """What is left at the end: nothing, an incomplete sequence is dropped."""
        self._utf8.reset()
        return ""

    def state(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {
            "pending": list(self._utf8.getstate()[0]),
            "window": list(self._window),
            "emitted": self._emitted,
            "strip": self._strip,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same tokenizer and options.

        Raises:
            ValueError, TypeError, KeyError: it is not a state.
        """
        pending = state["pending"]
        if not isinstance(pending, list) or len(pending) > _LONGEST_INCOMPLETE:
            raise ValueError("pending must be the bytes of an incomplete character")
        self._utf8.setstate((bytes(pending), 0))
        window, emitted = state["window"], state["emitted"]
        if not all(isinstance(token, int) and token >= 0 for token in window):
            raise ValueError("window must be token ids")
        if len(window) > 4 * _WINDOW or not isinstance(emitted, int) or emitted < 0:
            raise ValueError("not a detokenizer's state")
        self._window, self._emitted, self._strip = list(window), emitted, bool(state["strip"])

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)


class StopStrings:
    """Cuts a text at the first stop string.

    Args:
        stop: the strings, none empty.
        include: keep the matched string in the text.

    Attributes:
        initials: first characters of the strings; text without these is passed on at once.
        matched: the string that was found.
    """

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        self._stop = tuple(stop)
        self._include = include
        self._held = ""
        self._prefixes = tuple({s[:n] for s in stop for n in range(1, len(s))})
        self._longest = max(map(len, stop), default=0)
        self.initials = frozenset(s[0] for s in stop)
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that is safe to emit; after a match it is "" for ever."""
        if self.matched is not None:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        found = [(at, s) for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            # The one that completes first, so that the cuts of the text do not matter.
            at, self.matched = min(found, key=lambda match: (match[0] + len(match[1]), match[0]))
            self._held = ""
            return text[: at + len(self.matched)] if self._include else text[:at]
        keep = self._open(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    @property
    def quiet(self) -> bool:
        """Whether nothing is held back and nothing was found."""
        return not self._held and self.matched is None

    def finish(self) -> str:
        """Text that was held back and belongs to no stop string after all."""
        held, self._held = self._held, ""
        return held

    def state(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {"held": self._held, "matched": self.matched}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state with the same stop strings.

        Raises:
            TypeError, KeyError: it is not a state.
        """
        held, matched = state["held"], state["matched"]
        if not isinstance(held, str) or not isinstance(matched, str | None):
            raise TypeError("not a stop state")
        self._held, self.matched = held, matched

    def _open(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        if not text.endswith(self._prefixes):
            return 0
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            if text[len(text) - size :] in self._prefixes:
                return size
        return 0


_WORD_START = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_characters() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies.

    Printable Latin-1 stands for itself, the other bytes are numbered from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(rest)}


_BYTE_OF = _byte_characters()
