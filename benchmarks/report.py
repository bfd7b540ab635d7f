"""What every benchmark says and writes: medians, a table, JSON, and checks."""

from __future__ import annotations

import datetime
import math
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import psutil


@dataclass(frozen=True, slots=True)
class Check:
    """A figure and the bound that it must keep."""

    figure: str
    value: float
    bound: float
    at_least: bool = True

    @property
    def kept(self) -> bool:
        """Whether it does; a figure that is not a number does not."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "ok" if self.kept else "FAILED"
        return f"{verdict}: {self.figure} is {self.value:.3f}, must be {sign} {self.bound:g}"


def median(values: Iterable[float]) -> float:
    """The median, NaN of nothing."""
    listed = list(values)
    return statistics.median(listed) if listed else math.nan


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed, NaN of nothing."""
    listed = sorted(values)
    if not listed:
        return math.nan
    return listed[max(0, math.ceil(share * len(listed)) - 1)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns, the first to the left and the others to the right."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "grpcio", "msgspec")},
    }


def write(path: Path, benchmark: str, settings: Any, figures: Any, checks: list[Check]) -> None:
    """The whole run as JSON."""
    document = {
        "benchmark": benchmark,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": settings,
        "figures": figures,
        "checks": [
            {"figure": c.figure, "value": c.value, "bound": c.bound, "kept": c.kept} for c in checks
        ],
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def exit_status(checks: Sequence[Check], *, enforced: bool) -> int:
    """Print every check; 1 where one is enforced and not kept."""
    for check in checks:
        print(check, file=sys.stderr if enforced and not check.kept else sys.stdout)
    return int(enforced and not all(check.kept for check in checks))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
