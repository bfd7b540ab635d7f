"""One request to a server."""

from __future__ import annotations

import httpx

from interop.difference import Answer

_ATTEMPTS = 3


async def ask(
    http: httpx.AsyncClient, url: str, body: object, headers: dict[str, str] | None = None
) -> Answer:
    """The answer; asked again where the server had closed an idle connection."""
    attempt = 0
    while True:
        attempt += 1
        try:
            response = await http.post(url, json=body, headers=headers)
            break
        except (httpx.RemoteProtocolError, httpx.ReadError):
            if attempt == _ATTEMPTS:
                raise
    try:
        return Answer(response.status_code, response.json())
    except ValueError:
        return Answer(response.status_code, response.text)
