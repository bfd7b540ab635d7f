"""Items that every producer has for the asking, so that an operator can measure the way to it.

Their hash is `triptych-probe-<bytes>`; they are zeros, made when asked for, and evictable at once.
"""

from __future__ import annotations

import re
import time

import numpy as np

from ec_connector.holder import Ask, Holder
from ec_connector.keys import item_key
from ec_connector.regions import Region
from ec_connector.store import Entry
from protocol.errors import TransferError

_NAME = re.compile(r"triptych-probe-([0-9]{1,12})")
_MENTION = re.compile(r"item triptych-probe-\d+: ")
_MOST_OF_THE_STORE = 0.5


def probe_hash(nbytes: int) -> str:
    """The hash of the probe of this size."""
    return f"triptych-probe-{nbytes}"


def plain(message: str) -> str:
    """An error's message without the probe's name, on one line."""
    return " ".join(_MENTION.sub("", message).split())


def prepare(holder: Holder, region: Region, mm_hash: str) -> None:
    """Put a probe into the store if this is the hash of one.

    Raises:
        TransferError: `store_full`: no room, or more than half of the store.
    """
    found = _NAME.fullmatch(mm_hash)
    if found is None:
        return
    nbytes = int(found[1])
    key = item_key(holder.fingerprint, "", mm_hash)
    if holder.store.find(key) is not None:
        return
    if not 0 < nbytes <= holder.store.capacity * _MOST_OF_THE_STORE:
        raise TransferError(
            f"a probe of {nbytes} bytes does not fit into this store", "store_full", (mm_hash,)
        )
    probe: Entry[Ask] = Entry(key, mm_hash, nbytes, (nbytes,), "uint8", "filling", 0.0)
    entry = holder.store.begin(probe, time.monotonic())
    np.frombuffer(region.buffer, np.uint8)[entry.offset : entry.offset + nbytes] = 0
    holder.commit(entry, 0.0)
