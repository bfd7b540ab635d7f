"""Tokens back to text: the derenderer that lives in the coordinator.

Imports tokenizers, but neither transformers nor torch. One object per choice, whose cost is linear
in the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from protocol.derender import ChoiceDerenderer
from protocol.openai import ChatCompletionRequest, CompletionRequest
from render.checkpoint import load_tokenizer, template_source
from render.parsed import ParsedDerenderer
from render.parsers import reasoning, tools
from render.parsers.reasoning.base import ReasoningParser
from render.parsers.tools.base import ToolParser
from render.text import TextDerenderer, TokenTexts

_PROMPT_END = 16
"""Tokens at the end of a prompt that may open or close the reasoning."""


class HfDerenderer:
    """Makes choice derenderers for one model.

    Args:
        model_dir: directory of a Hugging Face checkpoint; tokenizer.json is read.
        reasoning_parser, tool_parser: names, "" for none, `auto` for those that the model's chat
            template calls for.

    Raises:
        InvalidRequest: the tokenizer is missing or malformed, or a parser is unknown.
    """

    def __init__(
        self, model_dir: str, *, reasoning_parser: str = "auto", tool_parser: str = "auto"
    ) -> None:
        self.tokenizer: Tokenizer = load_tokenizer(Path(model_dir))
        self._texts = TokenTexts(self.tokenizer)
        template = template_source(Path(model_dir)) or ""
        self.reasoning_parser = reasoning.choose(reasoning_parser, template)
        self.tool_parser = tools.choose(tool_parser, template)
        self._reasoning_tokens = self._ids(self.reasoning_parser)
        self._tool_tokens = self._ids(self.tool_parser)

    def chat(
        self, request: ChatCompletionRequest, prompt_token_ids: Sequence[int]
    ) -> ChoiceDerenderer:
        """For one choice of a chat request."""
        with_tools = bool(request.tools) and request.tool_choice != "none"
        reasons, calls = self.reasoning_parser, self.tool_parser if with_tools else None
        keep = self._reasoning_tokens | (self._tool_tokens if calls else frozenset())
        text = TextDerenderer(
            self.tokenizer,
            request,
            prompt_token_ids,
            self._texts if request.logprobs else None,
            keep,
        )
        if reasons is None and calls is None:
            return text
        return ParsedDerenderer(
            text,
            reasons(self._prompt_end(prompt_token_ids)) if reasons else None,
            calls(request.tools or []) if calls else None,
            include_reasoning=request.include_reasoning,
            one_call=request.parallel_tool_calls is False,
        )

    def completion(
        self, request: CompletionRequest, prompt_token_ids: Sequence[int]
    ) -> ChoiceDerenderer:
        """For one choice of a completion request."""
        wanted = request.logprobs is not None
        return TextDerenderer(
            self.tokenizer, request, prompt_token_ids, self._texts if wanted else None
        )

    def _prompt_end(self, prompt_token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(
            list(prompt_token_ids[-_PROMPT_END:]), skip_special_tokens=False
        )

    def _ids(self, parser: type[ReasoningParser] | type[ToolParser] | None) -> frozenset[int]:
        """Ids of the tokens that a parser must see, though they are special."""
        tokens = parser.tokens if parser else ()
        found = (self.tokenizer.token_to_id(token) for token in tokens)
        return frozenset(token for token in found if token is not None)
