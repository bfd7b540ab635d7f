"""Tensors put into JSON as it leaves."""

from __future__ import annotations

import json

from render.features import Spliced


def test_bodies_take_the_place_of_their_marks() -> None:
    sink = Spliced()
    marks = [sink._text(b"AAAA"), sink._text(b"BBBB")]
    document = json.dumps({"items": [marks[1], marks[0], marks[1]], "text": "0: 1:"}).encode()
    parts = sink.split(document)
    assert json.loads(b"".join(parts)) == {"items": ["BBBB", "AAAA", "BBBB"], "text": "0: 1:"}
    assert sum(part is body for part in parts for body in sink._bodies) == 3


def test_a_document_without_tensors_is_one_part() -> None:
    assert Spliced().split(b"{}") == [b"{}"]
