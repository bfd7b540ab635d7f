"""Keys and tokens."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidRequest
from serving.auth import bearer, is_loopback, matches, new_token, require_token_beyond_loopback


@pytest.mark.parametrize(
    ("header", "credential"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("abc", None),
        ("", None),
        (None, None),
    ],
)
def test_the_credential_of_a_bearer_header(header: str | None, credential: str | None) -> None:
    assert bearer(header) == credential


def test_a_credential_matches_whole_keys_only() -> None:
    assert matches("b", ("a", "b"))
    assert not matches("a", ("ab", "b"))
    assert not matches(None, ("a",))
    assert not matches("", ("a",))
    assert not matches("ä\udcff", ("a",))
    assert not matches("a", ())


def test_tokens_are_unlike_and_long() -> None:
    assert len({new_token() for _ in range(50)}) == 50
    assert len(new_token()) >= 32


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    require_token_beyond_loopback(host, "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(InvalidRequest, match="--cluster-token") as caught:
        require_token_beyond_loopback(host, "")
    assert caught.value.param == "cluster_token"
    require_token_beyond_loopback(host, "t")
