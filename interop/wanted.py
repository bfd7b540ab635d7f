"""The differences from the reference that are wanted, each with its reason; no other passes.

A rule names the paths of `interop.difference.Difference` that it covers, and may look at the
request and at both values. A difference that no rule covers fails the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from interop.cases import Case
from interop.difference import Difference

Test = Callable[[Case, Difference], bool]


class Wanted(NamedTuple):
    """A rule.

    Attributes:
        name: for the report.
        reason: why ours is as it is.
        paths: regular expression that a difference's whole path matches.
        test: what else must hold.
    """

    name: str
    reason: str
    paths: str
    test: Test = lambda _case, _difference: True


def rule(case: Case, difference: Difference) -> Wanted | None:
    """The rule that covers a difference, or None."""
    for one in WANTED:
        if re.fullmatch(one.paths, difference.path) and one.test(case, difference):
            return one
    return None


INTERNAL = frozenset(
    {"output_kind", "skip_clone", "output_text_buffer_length", "skip_reading_prefix_cache"}
)
"""Sampling parameters that are not compared: whoever generates overwrites them or, the last,
derives it from `prompt_logprobs`."""

NOTHING: dict[str, tuple[Any, ...]] = {
    "stop": ([],), "stop_token_ids": ([],), "bad_words": ([],), "extra_args": ({},),
}  # fmt: skip
"""Sampling parameters -> values that mean the same as null to every receiver."""


def _spells_a_special_token(case: Case, _difference: Difference) -> bool:
    return case.kind == "literals"


def _has_uuid(case: Case, difference: Difference) -> bool:
    """The reference's hash is the client's word; ours is a hash all the same."""
    ours, theirs = difference.ours, difference.theirs
    return '"uuid"' in json.dumps(case.body) and len(ours) == len(theirs)


def _not_offered(_case: Case, difference: Difference) -> bool:
    return str(difference.theirs).startswith("200") and bool(
        re.match(r"400 BadRequestError: \w+ is not supported by this server", difference.ours)
    )


def _parallel(case: Case) -> bool:
    return case.body.get("parallel_tool_calls", True) is not False


def _parts_of_characters(_case: Case, difference: Difference) -> bool:
    """Whether tokens are equal but where one is not whole characters."""
    ours, theirs = difference.ours.get("tokens", []), difference.theirs.get("tokens", [])
    return len(ours) == len(theirs) and all(
        one == other or "\ufffd" in one for one, other in zip(ours, theirs, strict=True)
    )


def _ends_in_end_token(_case: Case, difference: Difference) -> bool:
    end = difference.theirs.removeprefix(difference.ours)
    return bool(re.fullmatch(r"<\|(im_end|end|eot_id|eot|end_of_text)\|>|</s>", end))


def _told(ours: str, theirs: str) -> Test:
    """Both answers in short match these expressions."""
    return lambda _case, difference: bool(
        re.match(ours, str(difference.ours)) and re.match(theirs, str(difference.theirs))
    )


WANTED: tuple[Wanted, ...] = (
    Wanted(
        "literal special tokens are text",
        "Text of a user that spells a special token must not become one: it could take an image's "
        "place or forge a turn. The prompt is longer, so less is left for the answer.",
        "token_ids|sampling_params.max_tokens",
        _spells_a_special_token,
    ),
    Wanted(
        "mm_hash is of content, not the client's uuid",
        "A client that names items could name another client's; a uuid is an alias at most.",
        "features.mm_hashes.*",
        _has_uuid,
    ),
    Wanted(
        "is_embed in ranges with other tokens inside",
        "An extension of ours that the reference ignores; without it such items cannot be told.",
        r"features.mm_placeholders.*\.is_embed",
        lambda _case, difference: difference.theirs is None,
    ),
    Wanted(
        "cohere_format in every model's template arguments",
        "The reference adds an argument of one vendor's template for all models.",
        r"reasoning_parser_kwargs.chat_template_kwargs.cohere_format",
        lambda _case, difference: difference.ours is None,
    ),
    Wanted(
        "what our engine does not honour is refused by name",
        "A parameter that would be ignored later is refused at once.",
        "status",
        _not_offered,
    ),
    Wanted(
        "what a worker would refuse is refused by render",
        "Token ids outside the vocabulary and more logprobs than a worker gives: the reference "
        "leaves them to the worker; the client learns it sooner here.",
        "status",
        _told("400 .*(is out of vocabulary|greater than max allowed)", "200"),
    ),
    Wanted(
        "a client's fault is never 500",
        "So that a caller knows whether to retry; what may be fetched is refused before it is.",
        "status",
        _told("4", "5"),
    ),
    Wanted(
        "calls are free where tool_choice is auto",
        "The reference constrains calls of tools that are marked strict, and that there is one "
        "where parallel_tool_calls is off; here a model that may also answer in words is left "
        "free: strict is shown to the template, and derender gives the first call alone.",
        "sampling_params.structured_outputs",
        lambda case, difference: (
            difference.ours is None
            and case.body.get("tool_choice", "auto") == "auto"
            and ('"strict": true' in json.dumps(case.body) or not _parallel(case))
        ),
    ),
    Wanted(
        "a token of logprobs has its own bytes",
        "A token that is part of a character is U+FFFD with its raw bytes, as OpenAI has it; the "
        "reference gives the whole character to its last part and nothing to the others.",
        "logprobs",
        _parts_of_characters,
    ),
    Wanted(
        "the text of the token that ended the answer is left out",
        "The coupled chat endpoint leaves it out too; the reference shows it where a parser or "
        "the client keeps special tokens.",
        "content|reasoning",
        _ends_in_end_token,
    ),
    Wanted(
        "an answer with calls ends with tool_calls in both forms",
        "As the chat endpoint does; the reference does it in streams alone.",
        "finish_reason",
        lambda case, difference: (
            case.kind == "at once"
            and (difference.ours, difference.theirs) == ("tool_calls", "stop")
        ),
    ),
    Wanted(
        "every kind of text part is taken in every message",
        "The contract lists plain strings and input_text; the reference takes them in some lists "
        "of parts and in others fails in its own schema.",
        "status",
        _told("200", "400 .*ValidatorIterator"),
    ),
    Wanted(
        "a forced call keeps to the tool's schema",
        "The reference constrains arguments of tools marked strict alone; ours are sure to fit, in "
        "a grammar that its workers read.",
        r"sampling_params.structured_outputs.structural_tag",
        lambda case, _difference: case.body.get("tool_choice") not in (None, "auto", "none"),
    ),
    Wanted(
        "Gemma 3 takes pictures that newlines join",
        "Where the newlines around two pictures become one token the reference loses a picture.",
        "status",
        _told("200", "400 .*must be globally non-overlapping|500 .*to be .* prompt placeholders"),
    ),
    Wanted(
        "a clip of which frames are sampled",
        "The reference's call of Qwen2.5-VL's processor fails for clips that it has thinned out; "
        "the processor itself takes them, as it does here.",
        "status",
        _told("200", "400 .*Failed to apply Qwen2(_5_)?VLProcessor on data=.*videos"),
    ),
    Wanted(
        "a message needs content",
        "A user's or system's message without content is a mistake that OpenAI's API refuses too.",
        "status",
        _told("400 .*message needs content", "200"),
    ),
)
