"""One family: both servers, every request to both, every answer compared."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import httpx

from interop import servers
from interop.ask import ask
from interop.cases import Case, Family, cases
from interop.codec import ReferenceCodec
from interop.compare import compare
from interop.difference import Difference
from interop.families import MAX_MODEL_LEN, setup
from interop.report import Report

_IN_FLIGHT = 3
_TIMEOUT_S = 120.0


class Settings(NamedTuple):
    """What all families share.

    Attributes:
        command: the reference's `vllm`.
        folder: for checkpoints and logs.
        requests: per family.
        only: numbers of the requests that are sent, None for all.
    """

    command: Path
    codec: ReferenceCodec
    folder: Path
    requests: int
    only: list[int] | None


async def run_family(name: str, settings: Settings) -> Report:
    """Compare the servers of one family.

    Raises:
        StartFailed: one of them does not serve it.
    """
    folder = settings.folder
    made = setup(name, folder)
    reference = servers.reference(
        settings.command, made.model, MAX_MODEL_LEN, made.reference_options,
        folder / f"{name}.reference.log",
    )  # fmt: skip
    mine = servers.ours(made.model, MAX_MODEL_LEN, made.config, folder / f"{name}.ours.log")
    report = Report(name)
    with reference, mine:
        await asyncio.to_thread(mine.wait)
        await asyncio.to_thread(reference.wait)
        async with httpx.AsyncClient(timeout=_TIMEOUT_S) as http:
            await _render(http, mine.url, reference.url, made.family, settings, report)
    return report


async def _render(
    http: httpx.AsyncClient,
    ours: str,
    theirs: str,
    family: Family,
    settings: Settings,
    report: Report,
) -> None:
    turn = asyncio.Semaphore(_IN_FLIGHT)
    chosen = [
        case
        for case in cases(family, settings.requests)
        if settings.only is None or case.number in settings.only
    ]

    async def one(case: Case) -> list[Difference]:
        async with turn:
            mine, other = await asyncio.gather(
                *(ask(http, base + case.path, case.body, case.headers) for base in (ours, theirs))
            )
            differences = compare(mine, other)
            if mine.status == 200:
                differences += await asyncio.to_thread(lambda: list(settings.codec.check(mine)))
            return differences

    for case, differences in zip(
        chosen, await asyncio.gather(*(one(case) for case in chosen)), strict=True
    ):
        report.add(case, differences)
