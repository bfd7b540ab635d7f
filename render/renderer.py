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
from render.checkpoint import context_length, load_tokenizer, open_checkpoint, read_json
from render.config import RenderConfig
from render.converted import Converted
from render.families import create
from render.features import TensorSink, without_tensors
from render.literals import LiteralGuard
from render.media import MediaItem, MediaLoader
from render.messages import Conversation, parse
from render.pool import MediaPool
from render.prompt import expand, truncate
from render.sampling import SamplingDefaults, sampling_params
from render.template import RESERVED, ChatTemplate
from telemetry.render import RenderMetrics

_THREAD_CHARS = 20_000
"""Prompts longer than this are tokenised in a thread: about a millisecond of work."""

_CHARS_PER_TOKEN = 64
"""No token of a real vocabulary stands for more characters on average: what is longer than the
context by this measure is refused before it is tokenised."""


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
        self._defaults = SamplingDefaults(generation)
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
            chat, ids = await self._chat_prompt(request)
        except RecursionError:
            raise InvalidRequest("the request is nested too deeply", "messages") from None
        ids = self._truncated(request, ids)
        items: list[MediaItem] = []
        if chat.media and self._media is not None:
            items = await self._media.load(chat.media, request.mm_processor_kwargs, deadline)
        rendered = await self._finish(request, request_id, ids, items, sink, deadline)
        return self._for_parsers(request, rendered)

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
        out = []
        for request_id, prompt in zip(request_ids, prompts(request), strict=True):
            if isinstance(prompt, str):
                add_special = request.add_special_tokens is not False
                ids = await self._tokenise(prompt, add_special, None)
            else:
                ids = self._check_ids(prompt)
            if not ids:
                raise InvalidRequest("prompt must not be empty", "prompt")
            ids = self._truncated(request, ids)
            out.append(await self._finish(request, request_id, ids, [], sink, deadline))
        return out

    async def chat_ids(self, request: ChatCompletionRequest) -> list[int]:
        """The token ids of a chat before its media are expanded; raises as `chat` does."""
        _, ids = await self._chat_prompt(request)
        return ids

    async def _chat_prompt(self, request: ChatCompletionRequest) -> tuple[Conversation, list[int]]:
        self._check_trusted(request)
        literals = self._guard.literals()
        form = self.template.content_format(request.chat_template)
        chat = parse(request.messages, self.family.placeholders, form, literals)
        continued = request.continue_final_message
        if continued and request.add_generation_prompt:
            raise InvalidRequest(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
                "continue_final_message",
            )
        text = self.template.render(
            chat.messages,
            tools=literals.mark(_tools(request), media_only=True),
            template=request.chat_template,
            add_generation_prompt=request.add_generation_prompt is not False and not continued,
            continue_final_message=continued,
            kwargs=literals.mark(self._template_kwargs(request), media_only=True),
        )
        add_special = bool(request.add_special_tokens)
        ids = await self._tokenise(text, add_special, literals.encode if literals else None)
        return chat, ids

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
        sampling = msgspec.structs.replace(rendered.sampling_params, skip_special_tokens=False)
        if not reasons:
            return msgspec.structs.replace(rendered, sampling_params=sampling)
        kwargs = self._template_kwargs(request)
        off = not request.include_reasoning or kwargs.get("enable_thinking") is False
        kwargs |= {
            "add_generation_prompt": request.add_generation_prompt is not False,
            "continue_final_message": request.continue_final_message,
        }
        return msgspec.structs.replace(
            rendered,
            sampling_params=sampling,
            reasoning_ended=True if off else None,
            reasoning_parser_kwargs=ReasoningParserKwargs(kwargs),
        )

    async def _finish(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        request_id: str,
        ids: list[int],
        items: list[MediaItem],
        sink: TensorSink,
        deadline: Deadline,
    ) -> GenerateRequest:
        features: MultiModalFeatures | None = None
        if items:
            runs: dict[str, list[Any]] = {}
            for item in items:
                runs.setdefault(item.modality, []).append(item.head.runs)
            expanded = expand(ids, self.family.placeholders, runs)
            ids = expanded.token_ids
            tensors = request.mm_payload == "tensors"
            features = without_tensors(items, expanded.ranges, metadata=tensors)
        sampling = sampling_params(
            request,
            self._defaults,
            prompt_tokens=len(ids),
            max_model_len=self.max_model_len,
        )
        if features is not None and request.mm_payload == "tensors":
            features = await sink.add(
                items, features, salt=request.cache_salt or "", deadline=deadline
            )
        return GenerateRequest(
            request_id=request_id,
            token_ids=ids,
            features=features,
            sampling_params=sampling,
            model=request.model,
            stream=request.stream,
            stream_options=request.stream_options,
            cache_salt=request.cache_salt,
            priority=request.priority,
        )

    async def _tokenise(self, text: str, add_special_tokens: bool, marked: Any) -> list[int]:
        if len(text) > self.max_model_len * _CHARS_PER_TOKEN:
            raise InvalidRequest(
                f"the prompt has {len(text)} characters, far beyond the model's context of "
                f"{self.max_model_len} tokens",
                "input_tokens",
            )

        def encode() -> list[int]:
            if marked is not None:
                ids: list[int] = marked(text)
                return ids
            batch = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return batch[0].ids

        if len(text) > _THREAD_CHARS:
            return await asyncio.to_thread(encode)
        return encode()

    def _truncated(
        self, request: ChatCompletionRequest | CompletionRequest, ids: list[int]
    ) -> list[int]:
        keep = request.truncate_prompt_tokens
        if keep is None:
            return ids
        if keep == -1:
            wanted = request.max_tokens or 1
            if isinstance(request, ChatCompletionRequest):
                wanted = request.max_completion_tokens or wanted
            keep = self.max_model_len - wanted
        if keep < 1:
            raise InvalidRequest(
                "truncate_prompt_tokens must be -1, or at least 1", "truncate_prompt_tokens"
            )
        return truncate(ids, keep, request.truncation_side or "left", self.family.placeholders)

    def _check_ids(self, ids: list[int]) -> list[int]:
        size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        for token in ids:
            if not 0 <= token < size:
                raise InvalidRequest(f"Token id {token} is out of vocabulary", "prompt")
        return list(ids)

    def _check_trusted(self, request: ChatCompletionRequest) -> None:
        if request.chat_template is not None and not self.config.trust_request_chat_template:
            raise InvalidRequest(
                "chat_template is refused unless the server runs with "
                "--trust-request-chat-template",
                "chat_template",
            )
        if request.media_io_kwargs:
            raise InvalidRequest(
                "media_io_kwargs is not supported by this server", "media_io_kwargs"
            )
        if request.mm_processor_kwargs:
            if not self.config.trust_request_mm_kwargs:
                raise InvalidRequest(
                    "mm_processor_kwargs is refused unless the server runs with "
                    "--trust-request-mm-kwargs",
                    "mm_processor_kwargs",
                )
            for name in request.mm_processor_kwargs:
                if name not in self.family.mm_kwargs:
                    raise InvalidRequest(
                        f"mm_processor_kwargs.{name} is not supported for this model",
                        f"mm_processor_kwargs.{name}",
                    )

    def _template_kwargs(self, request: ChatCompletionRequest) -> dict[str, Any]:
        given = request.chat_template_kwargs or {}
        for name in given:
            if name in RESERVED:
                raise InvalidRequest(
                    f"chat_template_kwargs.{name} is set by the server",
                    f"chat_template_kwargs.{name}",
                )
        kwargs = {**self.config.default_chat_template_kwargs, **given}
        if request.reasoning_effort is not None:
            kwargs["reasoning_effort"] = request.reasoning_effort
            kwargs.setdefault("enable_thinking", request.reasoning_effort != "none")
        return kwargs


def prompts(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a completion request: one of text or ids, or a list of either."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return [part for part in prompt if not isinstance(part, int)]


def _tools(request: ChatCompletionRequest) -> list[dict[str, Any]] | None:
    """The tools that the template is shown.

    Raises:
        InvalidRequest: they do not have the contract's form, or the choice cannot be honoured.
    """
    tools, choice = request.tools, request.tool_choice
    if tools is None:
        if choice not in (None, "none"):
            raise InvalidRequest("tool_choice needs tools", "tool_choice")
        return None
    if not tools:
        raise InvalidRequest("tools must not be empty", "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest("a tool needs a function with a name", f"tools[{index}].function")
    if choice not in (None, "auto", "none"):
        raise InvalidRequest(
            "tool_choice must be 'auto' or 'none': a forced call needs structured outputs, which "
            "this server does not offer",
            "tool_choice",
        )
    return tools
