"""A request of another API as a chat, with the way back to its own field names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from protocol.errors import ClientError, InvalidRequest
from protocol.openai import ChatCompletionRequest

_MESSAGE = re.compile(r"messages\[(\d+)\]")


def converted(fields: dict[str, Any], sources: list[str], names: Mapping[str, str]) -> Converted:
    """A chat of these fields.

    Raises:
        InvalidRequest: they break a rule of the contract.
    """
    try:
        chat = msgspec.convert(fields, ChatCompletionRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    return Converted(chat, sources, names)


class Converted(NamedTuple):
    """A chat made of another request.

    Attributes:
        chat: the chat.
        sources: the field that each message was made of.
        names: chat fields that have another name in the request.
    """

    chat: ChatCompletionRequest
    sources: list[str]
    names: Mapping[str, str]

    @contextmanager
    def own_names(self) -> Iterator[None]:
        """Errors about the chat inside are errors about the request's own fields."""
        try:
            yield
        except ClientError as error:
            raise type(error)(
                error.message, self._own(error.param), error.stage, error.items, error.retry_after
            ) from None

    def _own(self, param: str | None) -> str | None:
        if param is None:
            return None
        found = _MESSAGE.match(param)
        if found is None:
            return self.names.get(param, param)
        index = int(found[1])
        source = self.sources[index] if index < len(self.sources) else "messages"
        return source + param[found.end() :]
