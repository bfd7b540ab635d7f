"""Connectors with small stores, closed after each test."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from tests.ec_connector.helpers import open_things, until

_HERE = Path(__file__).parent

MakeConnector = Callable[..., Awaitable[EcConnector]]

TOKEN = "a token of the tests"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests over each of the transports say by their names which one it is."""
    for item in items:
        if "ucx" in item.name and item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.ucx)


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


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """The test leaves as many open descriptors, and as little mapped memory, as it found."""
    gc.collect()
    descriptors, mappings = open_things()
    yield
    gc.collect()
    await until(lambda: open_things()[0] <= descriptors and open_things()[1] <= mappings)
