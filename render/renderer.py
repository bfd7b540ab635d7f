"""A client's request to the generate request of the contract: the heart of render."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, NotFound
from protocol.features import MultiModalFeatures
from protocol.generate import GenerateRequest, ReasoningParserKwargs
from protocol.openai import ChatCompletionRequest, CompletionRequest, refuse_unsupported
from render.checkpoint import (
    context_length,
    load_tokenizer,
    open_checkpoint,
    read_json,
    template_source,
)
from render.checks import check_trusted, checked_tools, template_kwargs
from render.config import RenderConfig
from render.converted import Converted
from render.embeds import EmbedItem, EmbedRef, embed_item
from render.families import create
from render.features import TensorSink, without_tensors
from render.literals import LiteralGuard
from render.media import MediaItem, MediaLoader
from render.messages import Conversation, MediaRef, parse
from render.parsers import reasoning, tools
from render.pool import MediaPool
from render.prompt import expand, joined
from render.sampling import SamplingDefaults, sampling_params
from render.structured import form_of
from render.template import ChatTemplate
from render.tokens import PromptTokenizer, Tokens
from telemetry.render import RenderMetrics

_PROMPT_END = 16
"""Tokens at the end of a prompt that may open or close the reasoning."""


class Renderer:
    """Makes prompts of one model.

    Args:
        config: the server's.
        path: the checkpoint's directory.
        metrics: where media work is counted.

    Raises:
        InvalidRequest: the checkpoint cannot be served.
    """

    def __init__(self, config: RenderConfig, path: Path, metrics: RenderMetrics) -> None:
        self.config = config
        self.tokenizer: Tokenizer = load_tokenizer(path)
        checkpoint = open_checkpoint(path, self.tokenizer)
        self.family = create(checkpoint)
        self._pool = (
            MediaPool(path, config.processes, config.media.max_pending)
            if self.family.placeholders
            else None
        )
        self._media = (
            MediaLoader(config.media, self._pool, config.model, metrics) if self._pool else None
        )
        if self._pool is not None:
            self._pool.launch()  # they load their libraries while this process loads its own
        override = Path(config.chat_template).read_text() if config.chat_template else None
        self.template = ChatTemplate(path, override)
        own = context_length(dict(checkpoint.config))
        self.max_model_len = config.max_model_len or own
        if not self.max_model_len:
            raise InvalidRequest("the model states no context length", "max_model_len")
        generation = read_json(path / "generation_config.json") if config.generation_config else {}
        self._prompts = PromptTokenizer(
            self.tokenizer, self.family.placeholders, self.max_model_len
        )
        self._defaults = SamplingDefaults(generation)
        source = template_source(path) or ""
        self._tool_parser = tools.choose(config.tool_parser, source)
        self._reasoning_parser = reasoning.choose(config.reasoning_parser, source)
        self._guard = LiteralGuard(
            self.tokenizer,
            (
                checkpoint.token_text(placeholder.token_id)
                for placeholder in self.family.placeholders.values()
            ),
        )

    async def start(self) -> None:
        """Start the media processes."""
        if self._pool is not None:
            await self._pool.start()

    async def stop(self) -> None:
        """End them."""
        if self._media is not None:
            await self._media.close()
        if self._pool is not None:
            await self._pool.stop()

    @property
    def pending_media(self) -> int:
        """Media that are processed or wait for it."""
        return self._pool.pending if self._pool else 0

    async def chat(
        self,
        request: ChatCompletionRequest,
        request_id: str,
        sink: TensorSink,
        deadline: Deadline,
    ) -> GenerateRequest:
        """The generate request of a chat.

        Raises:
            TriptychError: naming the field at fault.
        """
        self.check_model(request.model)
        refuse_unsupported(request)
        try:
            chat, tokens = await self._chat_prompt(request)
        except RecursionError:
            raise InvalidRequest("the request is nested too deeply", "messages") from None
        form = form_of(request, self._tool_parser)
        items = await self._items(request, chat.media, sink, deadline)
        rendered = await self._finish(request, request_id, tokens, items, form, sink, deadline)
        return self._for_parsers(request, rendered)

    async def _items(
        self,
        request: ChatCompletionRequest,
        media: list[MediaRef | EmbedRef],
        sink: TensorSink,
        deadline: Deadline,
    ) -> list[MediaItem | EmbedItem]:
        """The items of a chat, in its order."""
        if not media or self._media is None:
            return []
        self._media.check_counts(media)
        loaded = await self._media.load(
            [ref for ref in media if isinstance(ref, MediaRef)],
            request.mm_processor_kwargs,
            request.media_io_kwargs,
            deadline,
            as_text=sink.takes_text,
        )
        others = iter(loaded)
        return [
            next(others)
            if isinstance(ref, MediaRef)
            else await asyncio.to_thread(
                embed_item,
                self.family,
                ref,
                self.config.model,
                max_bytes=self.config.media.max_download_bytes,
                as_text=sink.takes_text,
            )
            for ref in media
        ]

    async def converted(
        self, converted: Converted, request_id: str, sink: TensorSink, deadline: Deadline
    ) -> GenerateRequest:
        """The generate request of another API's chat; errors name that API's fields."""
        with converted.own_names():
            return await self.chat(converted.chat, request_id, sink, deadline)

    async def completions(
        self,
        request: CompletionRequest,
        request_ids: list[str],
        sink: TensorSink,
        deadline: Deadline,
    ) -> list[GenerateRequest]:
        """A generate request per prompt; raises as `chat` does."""
        self.check_model(request.model)
        refuse_unsupported(request)
        form = form_of(request, None)
        out = []
        for request_id, prompt in zip(request_ids, prompts(request), strict=True):
            if isinstance(prompt, str):
                special = request.add_special_tokens is not False
                tokens = await self._prompts.encode(prompt, request, add_special_tokens=special)
            else:
                tokens = self._prompts.given(prompt, request)
            if not tokens.ids:
                raise InvalidRequest("prompt must not be empty", "prompt")
            out.append(await self._finish(request, request_id, tokens, [], form, sink, deadline))
        return out

    async def chat_ids(self, request: ChatCompletionRequest) -> list[int]:
        """The token ids of a chat before its media are expanded; raises as `chat` does."""
        _, tokens = await self._chat_prompt(request)
        return tokens.ids

    async def _chat_prompt(self, request: ChatCompletionRequest) -> tuple[Conversation, Tokens]:
        check_trusted(request, self.config, self.family)
        literals = self._guard.literals()
        form = self.template.content_format(request.chat_template)
        chat = parse(
            request.messages,
            self.family.placeholders,
            form,
            literals,
            embeds=self.config.enable_mm_embeds,
        )
        continued = request.continue_final_message
        if continued and request.add_generation_prompt:
            raise InvalidRequest(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
                "continue_final_message",
            )
        text = self.template.render(
            chat.messages,
            tools=literals.mark(checked_tools(request), media_only=True),
            template=request.chat_template,
            add_generation_prompt=request.add_generation_prompt is not False and not continued,
            continue_final_message=continued,
            kwargs=literals.mark(template_kwargs(request, self.config), media_only=True),
        )
        tokens = await self._prompts.encode(
            text, request, add_special_tokens=bool(request.add_special_tokens), literals=literals
        )
        return chat, tokens

    def check_model(self, model: str | None) -> None:
        """Refuse a model that is not served here.

        Raises:
            NotFound: names those that are.
        """
        if model and model != self.config.name:
            raise NotFound(
                f"The model `{model}` does not exist. Valid aliases: {self.config.name}.", "model"
            )

    def _for_parsers(
        self, request: ChatCompletionRequest, rendered: GenerateRequest
    ) -> GenerateRequest:
        """What a worker must know where parsers are named.

        Special tokens stay in its text, and a grammar may begin at once where nothing is reasoned.
        """
        reasons = self.config.reasoning_parser not in ("", "auto")
        if not reasons and self.config.tool_parser in ("", "auto"):
            return rendered
        calls = bool(request.tools) and request.tool_choice != "none"
        if not reasons and not calls:
            return rendered
        sampling = msgspec.structs.replace(rendered.sampling_params, skip_special_tokens=False)
        if not reasons:
            return msgspec.structs.replace(rendered, sampling_params=sampling)
        kwargs = template_kwargs(request, self.config)
        off = not request.include_reasoning or kwargs.get("enable_thinking") is False
        kwargs |= {
            "add_generation_prompt": request.add_generation_prompt is not False,
            "continue_final_message": request.continue_final_message,
        }
        return msgspec.structs.replace(
            rendered,
            sampling_params=sampling,
            reasoning_ended=off or self._reasoning_closed(rendered.token_ids),
            reasoning_parser_kwargs=ReasoningParserKwargs(kwargs),
        )

    def _reasoning_closed(self, ids: list[int]) -> bool:
        if self._reasoning_parser is None:
            return False
        end = self.tokenizer.decode(ids[-_PROMPT_END:], skip_special_tokens=False)
        return self._reasoning_parser(end).closed

    async def _finish(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        request_id: str,
        tokens: Tokens,
        items: list[MediaItem | EmbedItem],
        form: dict[str, Any] | None,
        sink: TensorSink,
        deadline: Deadline,
    ) -> GenerateRequest:
        ids = tokens.ids
        features: MultiModalFeatures | None = None
        if items:
            runs: dict[str, list[Any]] = {}
            for item in items:
                runs.setdefault(item.modality, []).append(item.head.runs)
            expanded = joined(expand(ids, self.family.placeholders, runs), self.family.joins)
            ids = expanded.token_ids
            tensors = request.mm_payload == "tensors"
            features = without_tensors(items, expanded.ranges, metadata=tensors)
        sampling = sampling_params(
            request,
            self._defaults,
            prompt_tokens=len(ids),
            max_model_len=self.max_model_len,
            form=form,
        )
        reasoning_end = None
        if form is not None and self._reasoning_parser is not None:
            end = self.tokenizer.decode(ids[-_PROMPT_END:], skip_special_tokens=False)
            reasoning_end = self._reasoning_parser(end).open_until or None
        if features is not None and request.mm_payload == "tensors":
            features = await sink.add(
                items, features, salt=request.cache_salt or "", deadline=deadline
            )
        return GenerateRequest(
            request_id=request_id,
            token_ids=ids,
            token_offsets=None if items else tokens.offsets,
            features=features,
            sampling_params=sampling,
            model=request.model,
            stream=request.stream,
            stream_options=request.stream_options,
            cache_salt=request.cache_salt,
            priority=request.priority,
            reasoning_end=reasoning_end,
        )


def prompts(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a completion request: one of text or ids, or a list of either."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    assert prompt, "the request's own check"  # noqa: S101
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return [part for part in prompt if not isinstance(part, int)]
