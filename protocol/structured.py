"""`structured_outputs`: what an answer must look like (wire-protocol §2.7)."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.errors import InvalidRequest

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""The forms, of which a request has exactly one."""


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One form and its options; keys that others add are ignored.

    Attributes:
        json: a JSON schema, as an object or as its text.
        regex: a regular expression for the whole answer.
        choice: the answer is one of these.
        grammar: a grammar in GBNF or Lark.
        json_object: the answer is any JSON object.
        structural_tag: JSON text of a structural tag: text, schemas and tags in a sequence.
        disable_any_whitespace: no white space between JSON's tokens.
        disable_additional_properties: objects have the listed properties alone.
        whitespace_pattern: what may stand between JSON's tokens.
    """

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    @property
    def kind(self) -> str:
        """Which of `KINDS` it is."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(KINDS)} must be given, not {len(given)}")
        if self.choice is not None and not self.choice:
            raise ValueError("choice must not be empty")


def structured_outputs(value: Any, param: str) -> StructuredOutputs:
    """The typed form of what a request holds.

    Args:
        value: JSON value.
        param: the field that it stands in.

    Raises:
        InvalidRequest: it is none; names the field.
    """
    try:
        return msgspec.convert(value, StructuredOutputs)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{param}: {error}", param) from None
