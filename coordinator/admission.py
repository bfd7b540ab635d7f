"""What is let in: requests, body bytes, image tokens and KV tokens at once.

Decided before a body is read and media are decoded. Tokens are not known yet then: an image counts
as many as images have had lately, and render's answer corrects it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from protocol.errors import Overloaded

_RETRY_S = 1.0
_SMOOTHING = 0.1


class AdmissionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Most that may be in flight at once; 0 means no limit.

    Attributes:
        requests: let in and not ended.
        body_bytes: of their bodies.
        image_tokens: embedding rows of their media.
        kv_tokens: prompt tokens and tokens that may still be generated.
        text_share: part of `requests` that only requests without media may take, so that
            text is not starved.
    """

    requests: int = 512
    body_bytes: int = 1 << 30
    image_tokens: int = 1 << 20
    kv_tokens: int = 0
    text_share: float = 0.1


@dataclass(slots=True)
class Ticket:
    """What one request counts for; closed when it ends."""

    admission: Admission
    body_bytes: int
    image_tokens: int = 0
    kv_tokens: int = 0
    media: bool = False
    _closed: bool = False

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
            self.admission.leave(self)


class Admission:
    """Counts what is in flight.

    Attributes:
        requests, body_bytes, image_tokens, kv_tokens: in flight now.
    """

    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
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

    def leave(self, ticket: Ticket) -> None:
        """A request has ended."""
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
