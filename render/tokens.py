"""A prompt's text as token ids, with their places in the text where they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest
from render.families.base import Placeholder
from render.literals import Literals
from render.prompt import kept

_THREAD_CHARS = 20_000
"""Prompts longer than this are tokenised in a thread: about a millisecond of work."""

_CHARS_PER_TOKEN = 64
"""No token of a real vocabulary stands for more characters on average: what is longer than the
context by this measure is refused before it is tokenised."""


class Tokens(NamedTuple):
    """A prompt before its media are expanded.

    Attributes:
        ids: token ids.
        offsets: (start, end) of each token in the text, None where they are not wanted.
    """

    ids: list[int]
    offsets: list[tuple[int, int]] | None = None


class PromptTokenizer:
    """Tokenises the prompts of one model.

    Args:
        tokenizer: the model's.
        placeholders: modality -> placeholder.
        max_model_len: tokens of context.
    """

    def __init__(
        self, tokenizer: Tokenizer, placeholders: Mapping[str, Placeholder], max_model_len: int
    ) -> None:
        self._tokenizer = tokenizer
        self._placeholders = placeholders
        self._max_model_len = max_model_len
        self._vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)

    async def encode(
        self,
        text: str,
        request: ChatCompletionRequest | CompletionRequest,
        *,
        add_special_tokens: bool,
        literals: Literals | None = None,
    ) -> Tokens:
        """The tokens of a text, cut as the request asks.

        Raises:
            InvalidRequest: it is far too long, or the cut would take a placeholder away.
        """
        limit = self._max_model_len * _CHARS_PER_TOKEN
        if len(text) > limit and request.truncate_prompt_tokens is None:
            raise InvalidRequest(
                f"the prompt has {len(text)} characters, far beyond the model's context of "
                f"{self._max_model_len} tokens",
                "input_tokens",
            )
        wants_offsets = bool(request.return_token_offsets)

        def work() -> Tokens:
            if literals:
                return Tokens(*literals.encode(text))
            if wants_offsets:
                encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
                return Tokens(encoding.ids, encoding.offsets)
            batch = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return Tokens(batch[0].ids)

        tokens = await asyncio.to_thread(work) if len(text) > _THREAD_CHARS else work()
        return self._cut(tokens if wants_offsets else Tokens(tokens.ids), request)

    def given(
        self, ids: Sequence[int], request: ChatCompletionRequest | CompletionRequest
    ) -> Tokens:
        """A prompt that came as ids, cut as the request asks.

        Raises:
            InvalidRequest: an id is not in the vocabulary.
        """
        for token in ids:
            if not 0 <= token < self._vocabulary:
                raise InvalidRequest(f"Token id {token} is out of vocabulary", "prompt")
        return self._cut(Tokens(list(ids)), request)

    def _cut(self, tokens: Tokens, request: ChatCompletionRequest | CompletionRequest) -> Tokens:
        keep = request.truncate_prompt_tokens
        if keep is None:
            return tokens
        if keep == -1:
            wanted = request.max_tokens or 1
            if isinstance(request, ChatCompletionRequest):
                wanted = request.max_completion_tokens or wanted
            keep = self._max_model_len - wanted
        if keep < 1:
            raise InvalidRequest(
                "truncate_prompt_tokens must be -1, or at least 1", "truncate_prompt_tokens"
            )
        part = kept(tokens.ids, keep, request.truncation_side or "left", self._placeholders)
        return Tokens(tokens.ids[part], tokens.offsets[part] if tokens.offsets else None)
