"""Machines whose state is plain data."""

from __future__ import annotations

import copy
from typing import Any, ClassVar


class PlainState:
    """An object whose listed attributes are JSON values and are all that it knows."""

    fields: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """The attributes, as JSON values."""
        return {
            name: value.state() if isinstance(value, PlainState) else copy.copy(value)
            for name in self.fields
            for value in (getattr(self, name),)
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the attributes from a state.

        Raises:
            KeyError, TypeError: it is not a state of this kind.
        """
        for name in self.fields:
            own, value = getattr(self, name), state[name]
            if isinstance(own, PlainState):
                own.restore(value)
            elif type(own) is not type(value):
                raise TypeError(f"{name} must be a {type(own).__name__}")
            else:
                setattr(self, name, value)
