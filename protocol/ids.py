"""Request ids: how they are made and what a client may choose."""

from __future__ import annotations

import re
import secrets

_ALLOWED = re.compile(r"[\x21-\x7e]{1,256}")


def new_id(prefix: str = "") -> str:
    """A fresh id: the prefix and 16 hex digits."""
    return prefix + secrets.token_hex(8)


def is_valid_id(value: str) -> bool:
    """Whether a client's id is printable ASCII without spaces, at most 256 characters."""
    return _ALLOWED.fullmatch(value) is not None
