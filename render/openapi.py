"""The OpenAPI description of a render server's endpoints, from the structs that decode them."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from protocol.generate import GenerateRequest
from protocol.openai import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDerenderRequest,
    CompletionDerenderRequest,
    CompletionRequest,
    CompletionResponse,
    ModelList,
)
from render.anthropic import MessagesRequest
from render.openapi_chat import refine
from render.responses import ResponsesRequest
from render.tokenize_api import DetokenizeRequest, TokenizeRequest

_OPERATIONS: dict[str, tuple[str, type, Any]] = {
    "/v1/chat/completions/render": ("Render a chat", ChatCompletionRequest, GenerateRequest),
    "/v1/completions/render": ("Render prompts", CompletionRequest, list[GenerateRequest]),
    "/v1/responses/render": ("Render a Responses request", ResponsesRequest, GenerateRequest),
    "/v1/messages/render": ("Render a Messages request", MessagesRequest, GenerateRequest),
    "/v1/chat/completions/derender": (
        "Tokens to a chat answer, or one chunk of it",
        ChatDerenderRequest,
        ChatCompletionResponse,
    ),
    "/v1/completions/derender": (
        "Tokens to a completion, or one chunk of it",
        CompletionDerenderRequest,
        CompletionResponse,
    ),
    "/tokenize": ("Text or a chat to token ids", TokenizeRequest, dict[str, Any]),
    "/detokenize": ("Token ids to text", DetokenizeRequest, dict[str, str]),
}

_FAULTS = {
    "400": "the request is at fault; `param` names the field",
    "401": "the API key is missing or wrong",
    "404": "the model does not exist",
    "413": "the body or a medium is too large",
    "422": "a medium could not be fetched",
    "429": "too much waits already",
    "503": "the server is stopping",
    "504": "the request took too long",
}


@functools.cache
def document(version: str) -> dict[str, Any]:
    """The description, as JSON values."""
    types = [t for _, request, answer in _OPERATIONS.values() for t in (request, answer)]
    schemas, components = msgspec.json.schema_components(
        [*types, ModelList], ref_template="#/components/schemas/{name}"
    )
    refine(components)
    pairs = zip(schemas[0:-1:2], schemas[1:-1:2], strict=True)
    paths: dict[str, Any] = {
        path: {"post": _operation(summary, request, _streamed(path, answer))}
        for (path, (summary, _, _)), (request, answer) in zip(
            _OPERATIONS.items(), pairs, strict=True
        )
    }
    paths["/v1/models"] = {"get": {"summary": "The model", "responses": _answers(schemas[-1])}}
    for path in ("/health", "/live", "/ping", "/version", "/metrics"):
        paths[path] = {"get": {"summary": path[1:], "responses": {"200": {"description": "up"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Triptych render", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _streamed(path: str, answer: dict[str, Any]) -> dict[str, Any]:
    """A derender answers with a chunk and a state where the call says `stream`."""
    if not path.endswith("/derender"):
        return answer
    chunk = {"type": "object", "required": ["chunk", "stream_state"]}
    return {"anyOf": [answer, chunk]}


def _operation(summary: str, request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    faults = {
        status: {"description": text, "content": {"application/json": {"schema": {}}}}
        for status, text in _FAULTS.items()
    }
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
        "responses": {**_answers(answer), **faults},
    }


def _answers(schema: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {"200": {"description": "done", "content": content}}
