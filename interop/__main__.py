"""`python -m interop`: our render server against vLLM's, request by request.

Both get the same tiny checkpoints and the same requests. What differs must be in
`interop/wanted.py`; anything else is shown and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from interop import derender, environment
from interop.codec import ReferenceCodec
from interop.families import NAMES
from interop.report import Report
from interop.run import Settings, run_family
from interop.servers import StartFailed

ALL = (*NAMES, *derender.NAMES)

UNAVAILABLE = 3
"""Exit status where the reference cannot be installed."""


def main() -> int:
    """Run; returns the exit status."""
    options = _options()
    try:
        command = environment.get(options.install_seconds)
    except environment.CannotBuild as error:
        print(f"THE REFERENCE CANNOT BE INSTALLED HERE: {error}", file=sys.stderr)
        return UNAVAILABLE
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = Path(tempfile.mkdtemp(prefix="triptych-interop-"))
    print(f"logs and checkpoints in {folder}", flush=True)
    reports: list[Report] = []
    unserved: list[str] = []
    with ReferenceCodec(command, folder / "codec.log") as codec:
        settings = Settings(command, codec, folder, options.requests, options.only)
        for family in options.families:
            started = time.monotonic()
            try:
                if family in derender.NAMES:
                    report = asyncio.run(derender.run_set(family, command, folder))
                else:
                    report = asyncio.run(run_family(family, settings))
            except StartFailed as error:
                print(f"{family}: NOT COMPARED: {error}\n", flush=True)
                unserved.append(family)
                continue
            reports.append(report)
            report.show(options.show, time.monotonic() - started)
    return 1 if unserved or any(report.failed for report in reports) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m interop", description=__doc__)
    parser.add_argument(
        "--families", nargs="+", choices=ALL, default=ALL, metavar="NAME",
        help=f"of {', '.join(ALL)}",
    )  # fmt: skip
    parser.add_argument("--requests", type=int, default=200, help="to render, per family")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of requests, to look closer")
    parser.add_argument(
        "--install-seconds", type=float, default=float("inf"), metavar="S",
        help="what installing the reference may take; after that the exit status is 3",
    )  # fmt: skip
    parser.add_argument("--show", type=int, default=5, help="unwanted differences that are shown")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
