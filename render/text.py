"""One choice's plain text: detokenised, cut at stop strings, with the logprobs of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from protocol.derender import DerenderedDelta
from protocol.generate import Logprobs
from protocol.openai import ChatCompletionRequest, CompletionRequest, TokenTextLogprob
from protocol.rpc import TokenDelta
from serving.detokenizer import (
    Detokenizer,
    StopStrings,
    WholeTokens,
    special_ids,
    token_table,
)


class TextDerenderer:
    """Plain text of one choice: detokenised, cut at stop strings.

    Args:
        texts: for logprobs, None where they are not asked for.
        keep: special tokens that a parser needs to see.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: ChatCompletionRequest | CompletionRequest,
        prompt_token_ids: Sequence[int],
        texts: TokenTexts | None,
        keep: frozenset[int] = frozenset(),
    ) -> None:
        stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
        self._include_stop = request.include_stop_str_in_output
        self._min_tokens = request.min_tokens
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_token_ids,
            skip_special_tokens=request.skip_special_tokens,
            keep=keep,
        )
        self._stops = StopStrings(stop, self._include_stop)
        self._special = special_ids(tokenizer)
        self._texts = texts
        # OpenAI's chat answers list the likeliest only, not the sampled token besides them.
        self._most: int | None = None
        if isinstance(request, ChatCompletionRequest):
            self._most = request.top_logprobs or 0
        self._seen = 0
        self._whole: WholeTokens | None = None

    def push(self, delta: TokenDelta) -> DerenderedDelta:
        """Take new tokens in order."""
        ids = delta.token_ids
        if (
            (whole := self._whole) is not None
            and delta.finish_reason is None
            and delta.logprobs is None
            and len(ids) == 1
            and (text := whole[ids[0]])
        ):
            return DerenderedDelta(content=text, token_ids=ids)
        done = self.push_any(delta)
        self._whole = self.whole(frozenset())
        return done

    def whole(self, stops: frozenset[str]) -> WholeTokens | None:
        """Tokens that add their text and nothing else, as things stand, and have no `stops`."""
        if self._seen < self._min_tokens or not self._stops.quiet:
            return None
        return self._detokenizer.whole(stops | self._stops.initials)

    def push_any(self, delta: TokenDelta) -> DerenderedDelta:
        """`push` the long way."""
        ids = delta.token_ids
        text = self._detokenizer.push(ids[:-1] if self._ends_in_stop_token(delta) else ids)
        text = self._cut(text, len(ids), last=delta.finish_reason is not None)
        matched = self._stops.matched
        return DerenderedDelta(
            content=text,
            logprobs=self._logprobs(delta.logprobs),
            token_ids=ids,
            finish_reason="stop" if matched is not None else delta.finish_reason,
            stop_reason=matched if matched is not None else delta.stop_reason,
            stopped=matched is not None and delta.finish_reason is None,
        )

    def state(self) -> dict[str, Any]:
        """What a stateless caller carries to the next call, as JSON values."""
        return {
            "text": self._detokenizer.state(),
            "stops": self._stops.state(),
            "seen": self._seen,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same request.

        Raises:
            ValueError, TypeError, KeyError: it is not a state.
        """
        self._detokenizer.restore(state["text"])
        self._stops.restore(state["stops"])
        self._seen = int(state["seen"])
        self._whole = None

    def _ends_in_stop_token(self, delta: TokenDelta) -> bool:
        """Whether the last token is the one that ended the choice, which is no text."""
        if delta.finish_reason != "stop" or self._include_stop or not delta.token_ids:
            return False
        if delta.stop_reason is None:  # an end-of-sequence token
            return delta.token_ids[-1] in self._special
        return isinstance(delta.stop_reason, int)

    def _cut(self, text: str, count: int, *, last: bool) -> str:
        self._seen += count
        if self._seen <= self._min_tokens:
            return text
        text = self._stops.push(text)
        if last and self._stops.matched is None:
            text += self._detokenizer.finish() + self._stops.finish()
        return text

    def _logprobs(self, logprobs: Logprobs | None) -> list[TokenTextLogprob] | None:
        if self._texts is None or logprobs is None:
            return None
        return self._texts.logprobs(logprobs, self._most)


class TokenTexts:
    """The text and bytes of single tokens, for logprobs."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._table = token_table(tokenizer)

    def of(self, token: int) -> tuple[str, list[int]]:
        """Text of a token (U+FFFD where it is not whole characters), and its bytes."""
        if self._table is not None:
            raw = self._table.of(token)
            return raw.decode(errors="replace"), list(raw)
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        return text, list(text.encode())

    def logprobs(self, logprobs: Logprobs, most: int | None = None) -> list[TokenTextLogprob]:
        """An entry per token, with at most `most` alternatives, the likeliest."""
        out = []
        for entry in logprobs.content:
            text, raw = self.of(entry.token_id)
            top = []
            tops = entry.top_logprobs
            if most is not None and 0 <= most < len(tops):
                tops = sorted(tops, key=lambda other: -other.logprob)[:most]
            for other in tops:
                other_text, other_raw = self.of(other.token_id)
                top.append({"token": other_text, "logprob": other.logprob, "bytes": other_raw})
            out.append(TokenTextLogprob(text, entry.logprob, raw, top))
        return out
