"""Answers of a given form: a mask over the vocabulary before each draw.

llguidance compiles JSON schemas, regular expressions and grammars and says which tokens may come
next. It is an optional dependency, imported here alone; without it such requests are refused.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.errors import InvalidRequest
from protocol.structured import StructuredOutputs, structured_outputs
from telemetry.logs import logger
from workers.structural_tags import TagError, alternatives, regex, to_lark

PARAM = "sampling_params.structured_outputs"
_CACHED = 64
_MOST_CHARACTERS = 2**18
_WHITESPACE = r" ?"
"""Between JSON's tokens: one space at most, since some models would write nothing else for ever."""

BoolArray = npt.NDArray[np.bool_]

_log = logger(__name__)


class Constraint:
    """What one choice may say next. Used by the engine's thread alone.

    Args:
        after: the token after which the form counts, None for the first one.
    """

    def __init__(
        self, matcher: Any, vocab: int, eos: Sequence[int], after: int | None = None
    ) -> None:
        self._after = after
        self._matcher = matcher
        self._vocab = vocab
        self._eos = list(eos)
        self._seen = 0

    def allowed(self, outputs: Sequence[int]) -> BoolArray:
        """[vocab]: which tokens may follow these outputs, which only grow from call to call.

        At the end, and where the grammar's limits are met, that is the end alone.
        """
        new = list(outputs[self._seen :])
        self._seen = len(outputs)
        if self._after is not None:
            if self._after not in new:
                return np.ones(self._vocab, dtype=np.bool_)
            new = new[new.index(self._after) + 1 :]
            self._after = None
        if new and not self._matcher.is_stopped():
            self._matcher.consume_tokens(new)
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            mask = np.unpackbits(bits, bitorder="little")[: self._vocab].astype(np.bool_)
            if mask.any():
                return mask
        if self._matcher.is_error():
            _log.warning("a grammar met its limits", error=self._matcher.get_error()[:200])
        mask = np.zeros(self._vocab, dtype=np.bool_)
        mask[self._eos] = True
        return mask


class Grammars:
    """Compiles the forms that requests ask for; reads the tokenizer when the first one comes.

    Args:
        tokenizer: a tokenizer.json.
        vocab: columns of the logits.
        eos: tokens that end an answer, at least one.
    """

    def __init__(self, tokenizer: Path, vocab: int, eos: Sequence[int]) -> None:
        import llguidance

        self._library: Any = llguidance
        self._file = tokenizer
        self._vocab = vocab
        self._eos = sorted(eos)
        self._tokens: dict[str, int] = {}
        self._tokenizer: Any = None
        self._compiling = threading.Lock()
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    async def constraints(
        self, wanted: Any, choices: Sequence[int], after: str | None = None
    ) -> dict[int, Constraint]:
        """A constraint per choice; a large schema is compiled off the event loop.

        Args:
            wanted: `structured_outputs` as the request has them.
            choices: numbers of the choices.
            after: the token that the form counts after, if the vocabulary has it.

        Raises:
            InvalidRequest: it is no form, or cannot be compiled; names the field.
        """
        form = structured_outputs(wanted, PARAM)
        key = json.dumps(wanted, sort_keys=True, default=str)
        if len(key) > _MOST_CHARACTERS:
            raise InvalidRequest("the form has too many characters", PARAM)
        matcher: Any = self._compiled.get(key)
        if matcher is None:
            matcher = await asyncio.to_thread(self._compile, form)
            self._compiled[key] = matcher
            while len(self._compiled) > _CACHED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        begin = self._tokens.get(after or "")
        return {
            choice: Constraint(matcher.deep_copy(), self._vocab, self._eos, begin)
            for choice in choices
        }

    def _compile(self, form: StructuredOutputs) -> Any:
        with self._compiling:  # one core at most, and the tokenizer is read once
            self._load()
            return self._compile_now(form)

    def _load(self) -> None:
        if self._tokenizer is not None:
            return
        text = self._file.read_text(encoding="utf-8")
        added = json.loads(text).get("added_tokens") or ()
        self._tokens = {token["content"]: token["id"] for token in added}
        self._tokenizer = self._library.LLTokenizer(text, n_vocab=self._vocab, eos_token=self._eos)

    def _compile_now(self, form: StructuredOutputs) -> Any:
        try:
            grammar = self._grammar(form)
        except (TagError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{PARAM}.{form.kind}: {error}", PARAM) from None
        matcher = self._library.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            why = matcher.get_error().strip().split("\n")[0][:300]
            raise InvalidRequest(f"{PARAM}.{form.kind} cannot be compiled: {why}", PARAM)
        matcher.compute_bitmask()  # the first one builds automata that copies share
        if matcher.is_error():
            raise InvalidRequest(f"{PARAM}.{form.kind} is too complex", PARAM)
        return matcher

    def _grammar(self, form: StructuredOutputs) -> str:
        matcher = self._library.LLMatcher
        options = _options(form)
        if form.json is not None:
            schema = json.loads(form.json) if isinstance(form.json, str) else form.json
            if form.disable_additional_properties:
                schema = closed(schema)
            return str(matcher.grammar_from_json_schema(json.dumps(schema), overrides=options))
        if form.json_object:
            return str(matcher.grammar_from_json_schema('{"type": "object"}', overrides=options))
        if form.regex is not None:
            return str(matcher.grammar_from_lark(f"start: {regex(form.regex)}"))
        if form.choice is not None:
            return str(matcher.grammar_from_lark(alternatives(form.choice)))
        if form.structural_tag is not None:
            tag = json.loads(form.structural_tag)
            return str(matcher.grammar_from_lark(to_lark(tag, self._tokens, options)))
        grammar = form.grammar or ""
        if "::=" in grammar:
            from llguidance.gbnf_to_lark import gbnf_to_lark

            grammar = gbnf_to_lark(grammar)
        return str(matcher.grammar_from_lark(grammar))


def load_grammars(checkpoint: Path, vocab: int, eos: Sequence[int]) -> Grammars | None:
    """The compiler of a checkpoint; None without the library, tokenizer.json or an end token."""
    file = checkpoint / "tokenizer.json"
    if not file.is_file() or not eos or importlib.util.find_spec("llguidance") is None:
        return None
    return Grammars(file, vocab, eos)


def closed(schema: Any) -> Any:
    """A schema whose objects have no properties but those that it lists."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    if "properties" in out:
        out.setdefault("additionalProperties", False)
    return out


def _options(form: StructuredOutputs) -> dict[str, Any]:
    if form.disable_any_whitespace:
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": form.whitespace_pattern or _WHITESPACE}
