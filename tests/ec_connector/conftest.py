"""Connectors with small stores, closed after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector

MakeConnector = Callable[..., Awaitable[EcConnector]]

TOKEN = "a token of the tests"


@pytest.fixture
async def make() -> AsyncIterator[MakeConnector]:
    """Start connectors: `await make(fingerprint="fp", **settings)`."""
    started: list[EcConnector] = []

    async def start(fingerprint: str = "fp", **settings: Any) -> EcConnector:
        settings = {
            "cluster_token": TOKEN,
            "capacity_bytes": 32 * 2**20,
            "transports": ("tcp",),
            "threads": 4,
            **settings,
        }
        connector = EcConnector(EcConfig(**settings), fingerprint)
        await connector.start()
        started.append(connector)
        return connector

    yield start
    for connector in reversed(started):
        await connector.stop()
