"""What is let in: requests, body bytes, image tokens and KV tokens at once.

Decided before a body is read and media are decoded. Tokens are not known yet then: an image counts
as many as images have had lately, and render's answer corrects it.

Nor is it known what the replicas can do; it is learned from the requests that get their first
token. Who would have to wait too long for it is refused at once, instead of after the wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from protocol.errors import Overloaded

_RETRY_S = 1.0
_SMOOTHING = 0.1
_LONGEST_RETRY_S = 30.0

_FEW = 32
"""Requests that may always wait: the pace that is known may be that of a quiet time."""

_SAMPLE_S = 5.0
"""Time that a pace is taken from: first tokens come in batches."""

_HALF_LIFE_S = 60.0
"""A pace that was once reached counts half after that time."""


class AdmissionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Most that may be in flight at once; 0 means no limit.

    Attributes:
        requests: let in and not ended.
        body_bytes: of their bodies.
        image_tokens: embedding rows of their media.
        kv_tokens: prompt tokens and tokens that may still be generated.
        wait_s: longest that a request may be expected to wait for its first token, going by how
            many wait and at what pace they got it lately. Less than `stage_wait_s`.
        text_share: part of `requests` that only requests without media may take, so that
            text is not starved.
    """

    requests: int = 512
    body_bytes: int = 1 << 30
    image_tokens: int = 1 << 20
    kv_tokens: int = 0
    wait_s: float = 15.0
    text_share: float = 0.1


@dataclass(slots=True)
class Ticket:
    """What one request counts for; closed when it ends."""

    admission: Admission
    body_bytes: int
    image_tokens: int = 0
    kv_tokens: int = 0
    media: bool = False
    _waits: bool = True
    _closed: bool = False

    def first_token(self) -> None:
        """Its wait is over; counts once."""
        if self._waits and not self._closed:
            self._waits = False
            self.admission.served()

    def expect(self, images: int, new_tokens: int) -> None:
        """The body is parsed: how many media it has, how many tokens it may generate.

        Raises:
            Overloaded: this kind of request is not let in now.
        """
        self.image_tokens, self.kv_tokens = self.admission.expect(self, images, new_tokens)
        self.media = images > 0

    def correct(self, image_tokens: int, images: int, kv_tokens: int) -> None:
        """The prompt is rendered: the true numbers."""
        self.admission.correct(self, image_tokens, images, kv_tokens)

    def close(self) -> None:
        """Give everything back, once."""
        if not self._closed:
            self._closed = True
            self.admission.leave(self, waits=self._waits)


class Admission:
    """Counts what is in flight.

    Args:
        config: the limits.
        clock: monotonic seconds.

    Attributes:
        requests, body_bytes, image_tokens, kv_tokens: in flight now.
        waiting: requests in flight that have no token yet.
    """

    def __init__(
        self, config: AdmissionConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._clock = clock
        self._served = 0
        self._counted_from = clock()
        self._pace = 0.0
        self._paced_at = 0.0
        self.waiting = 0
        self._tokens_per_image = 256.0
        self._media_requests = 0
        self.requests = 0
        self.body_bytes = 0
        self.image_tokens = 0
        self.kv_tokens = 0

    def enter(self, body_bytes: int) -> Ticket:
        """Let a request in by the length of its body, before it is read.

        Raises:
            Overloaded: there are enough.
        """
        config = self._config
        _refuse_above("requests", self.requests + 1, config.requests)
        if self.requests:  # a single body is limited by max_body_bytes
            _refuse_above("body bytes", self.body_bytes + body_bytes, config.body_bytes)
        self._refuse_long_wait()
        self.waiting += 1
        self.requests += 1
        self.body_bytes += body_bytes
        return Ticket(self, body_bytes)

    def expect(self, ticket: Ticket, images: int, new_tokens: int) -> tuple[int, int]:
        """Count a parsed request; see `Ticket.expect`."""
        config = self._config
        image_tokens = round(images * self._tokens_per_image)
        kv_tokens = image_tokens + ticket.body_bytes // 4 * (images == 0) + new_tokens
        if images and config.requests:
            share = config.requests - int(config.text_share * config.requests)
            _refuse_above("requests with media", self._media_requests + 1, max(1, share))
        if self.image_tokens and images:
            wanted = self.image_tokens + image_tokens
            _refuse_above("image tokens", wanted, config.image_tokens)
        if self.kv_tokens:
            _refuse_above("KV tokens", self.kv_tokens + kv_tokens, config.kv_tokens)
        self._media_requests += images > 0
        self.image_tokens += image_tokens
        self.kv_tokens += kv_tokens
        return image_tokens, kv_tokens

    def correct(self, ticket: Ticket, image_tokens: int, images: int, kv_tokens: int) -> None:
        """Replace a ticket's estimates; see `Ticket.correct`."""
        self.image_tokens += image_tokens - ticket.image_tokens
        self.kv_tokens += kv_tokens - ticket.kv_tokens
        ticket.image_tokens, ticket.kv_tokens = image_tokens, kv_tokens
        if images:
            seen = image_tokens / images
            self._tokens_per_image += _SMOOTHING * (seen - self._tokens_per_image)

    def served(self) -> None:
        """A request got its first token."""
        self.waiting -= 1
        self._served += 1
        now = self._clock()
        elapsed = now - self._counted_from
        if elapsed < _SAMPLE_S:
            return
        pace = self._served / elapsed
        if pace >= self.pace(now):
            self._pace, self._paced_at = pace, now
        self._served, self._counted_from = 0, now

    def pace(self, now: float) -> float:
        """First tokens per second that were reached lately; 0 where that is not known."""
        return self._pace * math.exp2((self._paced_at - now) / _HALF_LIFE_S)

    def _refuse_long_wait(self) -> None:
        limit, pace = self._config.wait_s, self.pace(self._clock())
        if not limit or self.waiting < _FEW or not pace:
            return
        excess = self.waiting / pace - limit
        if excess > 0:
            retry_s = float(math.ceil(min(max(excess, _RETRY_S), _LONGEST_RETRY_S)))
            message = f"too many requests wait already: for more than {limit:g} s"
            raise Overloaded(message, None, "edge", (), retry_s)

    def leave(self, ticket: Ticket, *, waits: bool) -> None:
        """A request has ended; `waits`: without a token."""
        self.waiting -= waits
        self.requests -= 1
        self.body_bytes -= ticket.body_bytes
        self.image_tokens -= ticket.image_tokens
        self.kv_tokens -= ticket.kv_tokens
        self._media_requests -= ticket.media


def _refuse_above(what: str, count: int, limit: int) -> None:
    if limit and count > limit:
        raise Overloaded(
            f"too many {what} in flight: the limit is {limit}", None, "edge", (), _RETRY_S
        )
