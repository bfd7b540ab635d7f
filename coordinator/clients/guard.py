"""What must not reach an engine that is not ours: some requests end its process.

See wire-protocol §2.4 and §2.5: items without their embedding, without a field that the model
reads, videos, masked ranges, hashes that are no safe path component.
"""

from __future__ import annotations

import re
from typing import Any

from protocol import items
from protocol.errors import InvalidRequest, NotSupported, TransferError
from protocol.features import ItemRef
from protocol.generate import GenerateRequest
from protocol.transfer import parse_ec_params

_SAFE_HASH = re.compile(r"[A-Za-z0-9_-]{1,256}")

_NEEDED_BESIDE: dict[str, str] = {
    "pixel_values": "image_grid_thw",
    "pixel_values_videos": "video_grid_thw",
}
"""A flat tensor of this name is unusable without the other field."""


def check(request: GenerateRequest) -> None:
    """Refuse what would be fatal.

    Raises:
        NotSupported: a video, or a range with tokens that take no embedding.
        InvalidRequest: an item is incomplete, or its hash is unsafe.
        TransferError: an item comes without pixels and no encoder promises its embedding.
    """
    if request.features is None:
        return
    for item in request.features.items():
        where = f"features.mm_hashes.{item.modality}.{item.index}"
        if _SAFE_HASH.fullmatch(item.mm_hash) is None:
            raise InvalidRequest("mm_hash must be letters, digits, '_' or '-'", where)
        if item.modality == "video" or item.placeholder.is_embed is not None:
            raise NotSupported("this engine does not take videos or masked items", where)
        if item.kwargs is not None:
            _check_fields(item, where)
        elif item.metadata is None:
            raise InvalidRequest("an item has neither kwargs_data nor mm_metadata", where)
        elif not announced(request.ec_transfer_params, item.mm_hash):
            raise TransferError("no encoder holds the item", "missing", (item.mm_hash,))


def _check_fields(item: ItemRef, where: str) -> None:
    fields = items.decode_base64(item.kwargs or "")
    if item.metadata is not None:
        fields |= items.decode_base64(item.metadata)
    for name, needed in _NEEDED_BESIDE.items():
        field = fields.get(name)
        if field is not None and isinstance(field.factory, items.Flat) and needed not in fields:
            raise InvalidRequest(f"the item has {name} without {needed}", where)


def announced(params: dict[str, Any] | None, mm_hash: str) -> bool:
    """Whether `ec_transfer_params` promise the item's embedding.

    An encoder that has lost it already answers an entry without address and metadata.
    """
    parsed = parse_ec_params(params or {})
    if mm_hash in parsed.items:
        return True
    entry = parsed.foreign.get(mm_hash)
    if not isinstance(entry, dict):
        return False
    return bool(entry.get("peer_host") or entry.get("transfer_id") or entry.get("metadata"))
