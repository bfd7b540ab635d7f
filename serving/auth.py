"""API keys and the cluster token: compared in constant time, never logged."""

from __future__ import annotations

import hmac
import ipaddress
import secrets

from protocol.errors import InvalidRequest


def new_token() -> str:
    """A random cluster token."""
    return secrets.token_urlsafe(32)


def bearer(header: str | None) -> str | None:
    """The credential of an `Authorization: Bearer ...` header, or None."""
    scheme, _, credential = (header or "").partition(" ")
    return credential.strip() if scheme.lower() == "bearer" else None


def matches(given: str | None, accepted: tuple[str, ...]) -> bool:
    """Whether `given` is one of `accepted`, in time that does not depend on which."""
    found = False
    presented = (given or "").encode("utf-8", "surrogatepass")
    for expected in accepted:
        found |= hmac.compare_digest(presented, expected.encode())
    return found


def is_loopback(host: str) -> bool:
    """Whether a bind address stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_token_beyond_loopback(host: str, token: str) -> None:
    """Refuse to serve peers of other machines without a cluster token.

    Raises:
        InvalidRequest: names the option.
    """
    if not token and not is_loopback(host):
        raise InvalidRequest(
            f"listening on {host} needs a cluster token: set --cluster-token or "
            "TRIPTYCH_CLUSTER_TOKEN",
            "cluster_token",
        )
