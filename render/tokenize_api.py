"""`/tokenize` and `/detokenize` (wire-protocol §1.8)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest
from render.renderer import Renderer

_THREAD_CHARS = 20_000
_MAX_CHARS = 4 * 2**20
_MAX_TOKENS = 2**20


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Text, or a chat, to be tokenised."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages is required")


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids to be turned into text."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0)]]
    model: str | None = None


async def tokenize(renderer: Renderer, request: TokenizeRequest) -> dict[str, Any]:
    """The ids of a text, or of a chat before its media are expanded.

    Raises:
        TriptychError: as a render of the same would.
    """
    renderer.check_model(request.model)
    if request.messages is not None:
        ids = await renderer.chat_ids(
            ChatCompletionRequest(
                messages=request.messages,
                add_special_tokens=request.add_special_tokens,
                add_generation_prompt=(
                    None if request.continue_final_message else request.add_generation_prompt
                ),
                continue_final_message=request.continue_final_message,
                chat_template=request.chat_template,
                chat_template_kwargs=request.chat_template_kwargs,
                mm_processor_kwargs=request.mm_processor_kwargs,
                media_io_kwargs=request.media_io_kwargs,
                tools=request.tools,
            )
        )
    else:
        ids = await _text_ids(renderer, request)
    strings = None
    if request.return_token_strs:
        strings = [renderer.tokenizer.id_to_token(token) for token in ids]
    return {
        "count": len(ids),
        "max_model_len": renderer.max_model_len,
        "tokens": ids,
        "token_strs": strings,
    }


def detokenize(renderer: Renderer, request: DetokenizeRequest) -> dict[str, Any]:
    """The text of ids; ids outside the vocabulary give none.

    Raises:
        InvalidRequest: there are too many.
    """
    renderer.check_model(request.model)
    if len(request.tokens) > _MAX_TOKENS:
        raise InvalidRequest(f"at most {_MAX_TOKENS} tokens at once", "tokens")
    size = renderer.tokenizer.get_vocab_size(with_added_tokens=True)
    known = [token for token in request.tokens if token < size]
    return {"prompt": renderer.tokenizer.decode(known, skip_special_tokens=False)}


async def _text_ids(renderer: Renderer, request: TokenizeRequest) -> list[int]:
    text = request.prompt or ""
    if len(text) > _MAX_CHARS:
        raise InvalidRequest(f"at most {_MAX_CHARS} characters at once", "prompt")
    special = request.add_special_tokens is not False

    def encode() -> list[int]:
        batch = renderer.tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return batch[0].ids

    return await asyncio.to_thread(encode) if len(text) > _THREAD_CHARS else encode()
