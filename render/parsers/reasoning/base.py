"""What a reasoning parser is."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

from render.parsers.lane import Lane
from render.parsers.state import PlainState


class Split(NamedTuple):
    """What a piece of text adds to the reasoning and to the answer."""

    reasoning: str
    content: str


class ReasoningParser(PlainState):
    """Separates a model's reasoning from its answer; one object per choice.

    Args:
        prompt_end: text of the end of the prompt, which may open the reasoning already.
    """

    tokens: ClassVar[tuple[str, ...]] = ()
    """Special tokens that must be in the text."""

    @abstractmethod
    def __init__(self, prompt_end: str) -> None: ...

    @abstractmethod
    def push(self, text: str) -> Split:
        """Take more text in order."""

    @property
    def open_until(self) -> str:
        """The text that ends the reasoning where it is open from the first token, else ""."""
        return ""

    @property
    def closed(self) -> bool:
        """Whether the prompt has ended the reasoning, so that the answer comes at once."""
        return False

    def lane(self) -> Lane | None:
        """The short way for most text in this state, None where there is none."""
        return None

    @abstractmethod
    def finish(self) -> Split:
        """What was held back and is final now."""
