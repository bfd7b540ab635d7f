"""Time to first token with encode and prefill one after the other, and at once.

`python -m benchmarks.overlap --check` asks about four new pictures at a time, one request after
the other, of one encode and one prefill replica, each pinned to a core of its own with one torch
thread. The model is the demo model's architecture, scaled so that encoding four pictures takes as
long as prefilling them. Two coordinators over the same replicas, `overlap` on and off, are asked
in turn. Then once more with an encoder that sleeps as long, which takes no part of the machine.

The ideal: with overlap the pictures are encoded one by one while those before are prefilled, so
that only the prefill of the last one is not hidden.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from benchmarks.coordinator import process
from benchmarks.nursery import Nursery
from benchmarks.report import Check, exit_status, median, table, write
from benchmarks.scaled_model import PATCHES, SIDE
from benchmarks.scaled_model import write as write_model
from tests.cluster.asking import message
from tests.cluster.processes import Processes, ServerProcess, server_environment

IMAGES = 4
BOUNDS = {"computing": 0.85, "sleeping": 0.67}
"""Encoder -> time to first token with overlap over that without, at most."""

LAYERS = (8, 5)
"""Of the language model and of the vision tower, before they are balanced."""

_STEP = re.compile(r"(encode|prefill)=([0-9.]+)ms")


@dataclass(frozen=True, slots=True)
class Times:
    """Medians in seconds.

    Attributes:
        off, on: time to first token without and with overlap.
        encode, prefill: what the stages take without.
    """

    encoder: str
    off: float
    on: float
    encode: float
    prefill: float

    @property
    def ratio(self) -> float:
        """On over off."""
        return self.on / self.off

    @property
    def ideal(self) -> float:
        """The ratio if all but one picture's share of the shorter stage were hidden."""
        hidden = min(self.encode, self.prefill) * (IMAGES - 1) / IMAGES
        return (self.off - hidden) / self.off


@dataclass(frozen=True, slots=True)
class Fleet:
    """What both coordinators share."""

    off: ServerProcess
    on: ServerProcess


class Asker:
    """Asks about pictures of noise, never twice about one."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)
        self._http = httpx.Client(timeout=120)

    def ask(self, door: ServerProcess) -> tuple[float, float, float]:
        """Time to the one token that is asked for, longest encode and prefill, in seconds."""
        coarse = (self._random.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(IMAGES))
        pictures = [Image.fromarray(one).resize((SIDE, SIDE), Image.Resampling.NEAREST)
                    for one in coarse]  # fmt: skip
        body = {"messages": [message("What is this?", pictures)], "max_tokens": 1, "temperature": 0}
        request = self._http.build_request("POST", f"{door.http}/v1/chat/completions", json=body)
        answer = self._http.send(request)
        answer.raise_for_status()
        steps: dict[str, list[float]] = {"encode": [], "prefill": []}
        for stage, ms in _STEP.findall(answer.headers["x-triptych-trace"]):
            steps[stage].append(float(ms) / 1000)
        return answer.elapsed.total_seconds(), max(steps["encode"]), max(steps["prefill"])

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


@contextlib.contextmanager
def fleet(directory: Path, nursery: Nursery, model: Path, sleep_s: float | None) -> Iterator[Fleet]:
    """One replica of each stage, encode and prefill pinned, and two coordinators."""
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(Processes(directory, nursery.start))
        doors = stack.enter_context(Processes(directory))
        path = str(model)
        render = processes.render(model=path)
        prefill = processes.worker("prefill", model=path)
        decode = processes.worker("decode", model=path)
        if sleep_s is None:
            encode = processes.worker("encode", model=path, encoder_max_batch_tokens=PATCHES)
            processes.ready()
            address, pid = encode.grpc, encode.pid
        else:
            arguments = ("benchmarks.sleeping_encoder", path, f"{sleep_s:.4f}")
            child, address = stack.enter_context(process(*arguments))
            pid = child.pid
            processes.ready()
        _pin(pid, cores[0])
        _pin(prefill.pid, cores[-1])
        addresses = [render.grpc, address, prefill.grpc, decode.grpc]
        off, on = (
            doors.coordinator(
                addresses, f"overlap-{name}", path, overlap=name == "on", trace_header=True
            )
            for name in ("off", "on")
        )
        doors.ready()
        yield Fleet(off, on)


def _pin(pid: int, core: int) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def measure(encoder: str, fleet: Fleet, requests: int) -> Times:
    """Ask both coordinators in turn."""
    asker = Asker()
    for _ in range(2):
        asker.ask(fleet.off)
        asker.ask(fleet.on)
    off, on = [], []
    for _ in range(requests):
        off.append(asker.ask(fleet.off))
        on.append(asker.ask(fleet.on))
    asker.close()
    return Times(
        encoder,
        median(one[0] for one in off),
        median(one[0] for one in on),
        median(one[1] for one in off),
        median(one[2] for one in off),
    )


def run(directory: Path, requests: int) -> list[Times]:
    """Balance the model, then measure with an encoder that computes and with one that sleeps."""
    text_layers, vision_layers = LAYERS
    with Nursery(server_environment(1, {})) as nursery:
        while True:
            model = directory / f"model-{text_layers}-{vision_layers}"
            write_model(model, text_layers=text_layers, vision_layers=vision_layers)
            with fleet(directory, nursery, model, None) as running:
                tried = measure("computing", running, 3)
                wanted = max(2, round(vision_layers * tried.prefill / tried.encode))
                if abs(wanted - vision_layers) <= 1:
                    computing = measure("computing", running, requests)
                    break
            vision_layers = wanted
        with fleet(directory, nursery, model, computing.prefill / IMAGES) as running:
            return [computing, measure("sleeping", running, requests)]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.overlap", description=__doc__)
    parser.add_argument("--requests", type=int, default=10, help="per coordinator")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="fail where a bound is not kept")
    given = parser.parse_args()
    # A benchmark that is told to end ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as directory:
        times = run(Path(directory), given.requests)
    rows = [
        (
            one.encoder,
            *(f"{1000 * s:.0f}" for s in (one.encode, one.prefill, one.off, one.on)),
            f"{one.ratio:.3f}",
            f"{one.ideal:.3f}",
        )
        for one in times
    ]
    head = ("encoder", "encode ms", "prefill ms", "TTFT off ms", "TTFT on ms", "ratio", "ideal")
    print(table(head, rows))
    checks = []
    for one in times:
        name = f"TTFT with overlap over without, {one.encoder} encoder"
        checks.append(Check(name, one.ratio, BOUNDS[one.encoder], at_least=False))
    balance = times[0].encode / times[0].prefill
    checks += [
        Check("encode over prefill", balance, 0.8),
        Check("encode over prefill", balance, 1.25, at_least=False),
    ]
    if given.json is not None:
        settings = {"requests": given.requests, "images": IMAGES}
        write(given.json, "overlap", settings, [asdict(one) for one in times], checks)
    return exit_status(checks, enforced=given.check)


if __name__ == "__main__":
    sys.exit(main())
