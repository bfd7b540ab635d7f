"""The OpenAPI description: every endpoint, and no reference into nothing."""

from __future__ import annotations

import json
import re

from protocol.openai import ChatCompletionRequest
from render.openapi import document


def test_every_endpoint_is_described_and_every_reference_resolves() -> None:
    described = document("1.0")
    text = json.dumps(described)
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names <= described["components"]["schemas"].keys()
    for path in ("/v1/chat/completions/render", "/v1/messages/render", "/detokenize"):
        operation = described["paths"][path]["post"]
        assert {"200", "400", "413", "429"} <= operation["responses"].keys()
        assert operation["requestBody"]["content"]["application/json"]["schema"]


def test_a_requests_fields_are_those_that_are_decoded() -> None:
    chat = document("1.0")["components"]["schemas"]["ChatCompletionRequest"]
    assert set(chat["properties"]) == set(ChatCompletionRequest.__struct_fields__)
    assert chat["required"] == ["messages"]
