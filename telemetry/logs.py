"""Structured logs: JSON lines for machines, aligned columns for a person at a terminal.

Context (`request_id`, `stage`, `replica`) travels in context variables: `bind` it and every line
of the task carries it. Secrets and payloads are dropped by key.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

_HIDDEN = frozenset(
    {"api_key", "api_keys", "authorization", "cluster_token", "token", "body", "image_url", "url"}
)


def configure(level: str = "INFO", form: Literal["auto", "json", "text"] = "auto") -> None:
    """Set up logging for this process; `auto` is text on a terminal and JSON elsewhere."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        hide_secrets,
    ]
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    last: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if as_text
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def hide_secrets(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace values of keys that may hold a secret or a payload."""
    for key in _HIDDEN & event.keys():
        event[key] = "[hidden]"
    return event


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger of keyword events: `log.info("request done", stage="encode")`."""
    bound: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return bound
