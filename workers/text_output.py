"""Tokens to text on the HTTP endpoint: `output_mode: text` and `stop` strings.

Over gRPC tokens stay tokens: the coordinator's derender does this there.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from tokenizers import Tokenizer

from protocol.generate import FinishReason, GenerateRequest, Logprobs, TokenLogprob, TopLogprob
from protocol.rpc import TokenDelta
from serving.detokenizer import Detokenizer, StopStrings


class ChoiceDelta(msgspec.Struct, frozen=True):
    """What a delta adds to a choice of an answer."""

    token_ids: list[int]
    text: str | None
    logprobs: Logprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None

    def followed_by(self, later: ChoiceDelta) -> ChoiceDelta:
        """Both as one."""
        logprobs = self.logprobs or later.logprobs
        if self.logprobs is not None and later.logprobs is not None:
            logprobs = Logprobs(self.logprobs.content + later.logprobs.content)
        text = None if later.text is None else (self.text or "") + later.text
        return ChoiceDelta(
            self.token_ids + later.token_ids,
            text,
            logprobs,
            later.finish_reason,
            later.stop_reason,
        )


class TextOutput:
    """One choice of a request.

    Args:
        request: whose `stop`, `output_mode` and special-token options count.
        tokenizer: None where the checkpoint has none and the request needs none.
        stop: ends the choice in the engine, called when a stop string matches.
    """

    def __init__(
        self, request: GenerateRequest, tokenizer: Tokenizer | None, stop: Callable[[], None]
    ) -> None:
        params = request.sampling_params
        self._as_text = request.output_mode == "text"
        self._stop = stop
        self._tokenizer = tokenizer
        self._strings = StopStrings(params.stop_strings, params.include_stop_str_in_output)
        self._has_strings = bool(params.stop_strings)
        self._detokenizer = (
            Detokenizer(
                tokenizer, request.token_ids, skip_special_tokens=params.skip_special_tokens
            )
            if tokenizer is not None and (self._as_text or self._has_strings)
            else None
        )
        self.over = False

    def push(self, delta: TokenDelta) -> ChoiceDelta:
        """Take a delta; after a stop string nothing more comes of this choice."""
        ids = delta.token_ids
        finish, reason = delta.finish_reason, delta.stop_reason
        entries = delta.logprobs.content if delta.logprobs is not None else None
        text = ""
        if self._detokenizer is not None:
            for index, token in enumerate(ids):
                text += self._strings.push(self._detokenizer.push([token]))
                if self._strings.matched is not None:
                    ids = ids[: index + 1]
                    entries = entries[: index + 1] if entries is not None else None
                    if finish is None or index + 1 < len(delta.token_ids):
                        self._stop()
                    finish, reason = "stop", self._strings.matched
                    break
            if finish is not None and self._strings.matched is None:
                text += self._strings.push(self._detokenizer.finish()) + self._strings.finish()
        self.over = finish is not None
        return ChoiceDelta(
            ids, text if self._as_text else None, self._logprobs(entries), finish, reason
        )

    def _logprobs(self, entries: list[TokenLogprob] | None) -> Logprobs | None:
        if entries is None or not self._as_text or self._tokenizer is None:
            return None if entries is None else Logprobs(entries)
        return Logprobs([_with_text(entry, self._tokenizer) for entry in entries])


def _with_text(entry: TokenLogprob, tokenizer: Tokenizer) -> TokenLogprob:
    """The entry and its alternatives with their tokens' text."""

    def text(token_id: int) -> tuple[str, list[int]]:
        token = tokenizer.decode([token_id], skip_special_tokens=False)
        return token, list(token.encode())

    top = [
        TopLogprob(other.token_id, other.logprob, other.rank, *text(other.token_id))
        for other in entry.top_logprobs
    ]
    return TokenLogprob(entry.token_id, entry.logprob, entry.rank, top, *text(entry.token_id))
