"""Logs: a line is JSON, carries its context, and never a secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from telemetry.logs import configure, hide_secrets, logger


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_json_with_its_context(capsys: pytest.CaptureFixture[str]) -> None:
    configure("INFO", "json")
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        logger("triptych.test").info("request done", stage="encode")
    (line,) = lines(capsys)
    assert (line["event"], line["stage"], line["request_id"]) == ("request done", "encode", "r1")
    assert (line["level"], line["logger"]) == ("info", "triptych.test")


def test_lines_of_the_standard_library_have_the_same_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("INFO", "json")
    logging.getLogger("other").warning("plain %s", "line", extra={"token": "secret"})
    (line,) = lines(capsys)
    assert (line["event"], line["level"], line["token"]) == ("plain line", "warning", "[hidden]")


@pytest.mark.parametrize("key", ["api_key", "authorization", "cluster_token", "token", "url"])
def test_secrets_and_payloads_are_dropped_by_key(key: str) -> None:
    assert hide_secrets(None, "", {key: "secret", "event": "x"}) == {key: "[hidden]", "event": "x"}


def test_an_exception_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure("INFO", "json")
    try:
        raise ValueError("boom")
    except ValueError:
        logger("x").exception("failed")
    (line,) = lines(capsys)
    assert "ValueError: boom" in str(line["exception"])


def test_the_level_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    configure("warning", "json")
    logger("x").info("quiet")
    assert lines(capsys) == []
