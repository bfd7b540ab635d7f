"""What happened to one request, in numbers: for the log line, the trace header and metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

How = Literal["held", "shared", "encoded", "encoded_again", "pixels", "local"]
"""How an item's embedding came about.

held: a replica had it; shared: another request was having it encoded; pixels: the prefill replica
was sent the pixels because the embedding could not be fetched; local: the one replica that does
everything encoded it.
"""


@dataclass(slots=True)
class Call:
    """One call of a stage.

    Attributes:
        stage, replica: where.
        at: seconds from admission to the wish for it.
        wait_s: for a replica.
        item: mm_hash that it was about, "" for none.
        work_s: from the call to its reply, or to the last token.
        error: kind of what it failed with.
    """

    stage: str
    replica: str
    at: float
    wait_s: float
    item: str = ""
    work_s: float = 0.0
    error: str | None = None


@dataclass(slots=True)
class Receipt:
    """Filled while a request is served.

    Attributes:
        endpoint: metric label of what was asked.
        request_id: as the client sees it.
        calls: in the order they began.
        items: mm_hash -> how its embedding came about.
        topology: split, fused or all; "" before it is known.
        first_token_s: from admission; None before there is one.
        on_first_token: called then.
    """

    endpoint: str
    request_id: str = ""
    traceparent: str = ""
    admitted_at: float = field(default_factory=time.monotonic)
    wall_at: float = field(default_factory=time.time)
    calls: list[Call] = field(default_factory=list)
    items: dict[str, How] = field(default_factory=dict)
    topology: str = ""
    first_token_s: float | None = None
    on_first_token: Callable[[], None] = lambda: None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    image_tokens: int = 0
    nbytes: int = 0
    transports: set[str] = field(default_factory=set)
    retries: Counter[str] = field(default_factory=Counter)

    @property
    def elapsed_s(self) -> float:
        """Seconds since admission."""
        return time.monotonic() - self.admitted_at

    @contextmanager
    def call(self, stage: str, replica: str, asked_at: float, item: str = "") -> Iterator[Call]:
        """Times one call; `asked_at` is when its caller began to wait for a replica."""
        began = time.monotonic()
        call = Call(stage, replica, asked_at - self.admitted_at, began - asked_at, item)
        self.calls.append(call)
        try:
            yield call
        finally:
            call.work_s = time.monotonic() - began

    def token(self) -> None:
        """The client is about to get its first token."""
        if self.first_token_s is None:
            self.first_token_s = self.elapsed_s
            self.on_first_token()

    def header(self) -> str:
        """For X-Triptych-Trace: what happened until now, as `key=value` pairs."""
        parts = [f"topology={self.topology or 'none'}"]
        for call in self.calls:
            failed = f" error={call.error}" if call.error else ""
            work = call.work_s or time.monotonic() - self.admitted_at - call.at - call.wait_s
            parts.append(
                f"{call.stage}={_ms(work)} wait={_ms(call.wait_s)} replica={call.replica}{failed}"
            )
        counted = Counter(self.items.values())
        parts += [f"items.{how}={count}" for how, count in sorted(counted.items())]
        if self.first_token_s is not None:
            parts.append(f"first_token={_ms(self.first_token_s)}")
        return "; ".join(parts)

    def summary(self) -> dict[str, Any]:
        """For the one log line at the end."""
        return {
            "request_id": self.request_id,
            "endpoint": self.endpoint,
            "topology": self.topology,
            "seconds": round(self.elapsed_s, 4),
            "first_token_s": None if self.first_token_s is None else round(self.first_token_s, 4),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "image_tokens": self.image_tokens,
            "embedding_bytes": self.nbytes,
            "transports": sorted(self.transports),
            "retries": dict(self.retries),
            "items": dict(Counter(self.items.values())),
            "calls": [
                {
                    "stage": call.stage,
                    "replica": call.replica,
                    "at": round(call.at, 4),
                    "wait_s": round(call.wait_s, 4),
                    "work_s": round(call.work_s, 4),
                    **({"error": call.error} if call.error else {}),
                }
                for call in self.calls
            ],
        }


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}ms"
