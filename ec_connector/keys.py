"""Keys of entries: opaque to all but their holder, who can tell whose fingerprint they carry.

`<fingerprint digest>/<digest of salt and hash>` for an item, `<fingerprint digest>/offer/<random>`
for an offer. The salt is hashed in, so a descriptor does not reveal it.
"""

from __future__ import annotations

import functools
import hashlib
import secrets


@functools.lru_cache(maxsize=64)
def fingerprint_digest(fingerprint: str) -> str:
    """16 hex digits that stand for a fingerprint of any length."""
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:16]


def item_key(fingerprint: str, salt: str, mm_hash: str) -> str:
    """The key of an item; equal for equal (fingerprint, salt, mm_hash) alone."""
    salted = hashlib.sha256(f"{len(salt)}:{salt}{mm_hash}".encode()).hexdigest()[:32]
    return f"{fingerprint_digest(fingerprint)}/{salted}"


def offer_key(fingerprint: str) -> str:
    """A fresh key of an offer."""
    return f"{fingerprint_digest(fingerprint)}/offer/{secrets.token_hex(16)}"


def belongs_to(key: str, fingerprint: str) -> bool:
    """Whether a key was made under this fingerprint."""
    return key.partition("/")[0] == fingerprint_digest(fingerprint)
