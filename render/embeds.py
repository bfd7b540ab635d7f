"""Embeddings in place of media: `image_embeds` parts (wire-protocol §5.1, §9.2).

A part with a tensor carries what the encoder would have given. One without names by its `uuid` an
embedding that the EC connector holds already, and says only what prefill must know of it. Items of
both kinds are for vLLM's workers, which take them; in our own pipeline they are refused.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pybase64

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, PayloadTooLarge
from protocol.items import Field, Flat, encode, metadata_of
from render.cache import ItemHead
from render.families.base import Family
from render.families.tensors import from_numpy
from render.hashing import media_hash

_HASH = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NPY = b"\x93NUMPY"


class EmbedRef(NamedTuple):
    """One embedding that a message brings.

    Attributes:
        given: the part's value: metadata, and under the part's own name the tensor.
        uuid: name of an embedding that is held elsewhere.
        param: the field it came from.
    """

    modality: str
    given: Mapping[str, Any]
    uuid: str | None
    param: str


class EmbedItem:
    """An embedding of a request.

    Attributes:
        modality: what it stands for.
        head: its hash, metadata and tokens.
        param: the field it came from.
    """

    def __init__(self, modality: str, head: ItemHead, body: bytes, param: str) -> None:
        self.modality = modality
        self.head = head
        self.param = param
        self._body = body

    async def body(self, _deadline: Deadline) -> bytes:
        """The encoded item; of an embedding that is held elsewhere, its metadata."""
        return self._body


def embed_item(
    family: Family, ref: EmbedRef, model_id: str, *, max_bytes: int, as_text: bool
) -> EmbedItem:
    """The item of an embedding.

    Args:
        family: of the model.
        ref: the part.
        model_id: the model as it was named to the server.
        max_bytes: largest tensor file.
        as_text: its body is to be base64.

    Raises:
        InvalidRequest: it cannot be honoured; names the part.
        PayloadTooLarge: it is too large.
    """
    name = f"{ref.modality}_embeds"
    rest = {key: value for key, value in ref.given.items() if key != name}
    try:
        described = family.embeds(ref.modality, rest)
    except ValueError as error:
        raise InvalidRequest(f"the {name} part cannot be used: {error}", ref.param) from None
    fields: dict[str, Field] = dict(described.fields)
    rows = sum(run.repeat for run in described.runs if run.embeds)
    metadata = encode(metadata_of(fields, family.metadata))
    text = ref.given.get(name)
    if text is None:
        if ref.uuid is None or not _HASH.fullmatch(ref.uuid):
            raise InvalidRequest(
                f"{name} without a tensor needs the uuid of one that is held ([A-Za-z0-9_-])",
                ref.param,
            )
        head = ItemHead(ref.uuid, metadata, described.runs)
        return EmbedItem(ref.modality, head, _sent(metadata, as_text), ref.param)
    raw = _file(text, ref.param, max_bytes)
    array = _array(raw, ref.param)
    if array.ndim != 2 or array.shape[0] != rows:
        raise InvalidRequest(
            f"{name} has the shape {list(array.shape)}; its metadata say [{rows}, width]", ref.param
        )
    fields = {name: Field(from_numpy(array), Flat([[[0, rows, None]]])), **fields}
    body = encode(fields)
    mm_hash = media_hash(
        ref.modality, raw, kind=name, model_id=model_id, mm_processor_kwargs=rest or None
    )
    head = ItemHead(mm_hash, metadata, described.runs)
    return EmbedItem(ref.modality, head, _sent(body, as_text), ref.param)


def _sent(body: bytes, as_text: bool) -> bytes:
    return pybase64.b64encode(body) if as_text else body


def _file(text: Any, param: str, max_bytes: int) -> bytes:
    if not isinstance(text, str):
        raise InvalidRequest("a tensor is the base64 of an .npy file", param)
    if len(text) * 3 // 4 > max_bytes + 2:
        raise PayloadTooLarge(f"the tensor is larger than {max_bytes} bytes", param)
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        raise InvalidRequest("the tensor is not valid base64", param) from None


def _array(raw: bytes, param: str) -> np.ndarray[Any, Any]:
    """An .npy file's floats; what a pickle would be needed for is refused."""
    if not raw.startswith(_NPY):
        raise InvalidRequest("a tensor must be an .npy file; nothing is unpickled here", param)
    try:
        array = np.load(io.BytesIO(raw), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError, SyntaxError, TypeError, OverflowError):
        raise InvalidRequest("the tensor's .npy file is damaged", param) from None
    if array.dtype not in (np.float16, np.float32):
        raise InvalidRequest("the tensor must be float16 or float32", param)
    return np.asarray(array)
