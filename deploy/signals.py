"""SIGINT, SIGTERM and SIGHUP as an event that the main thread waits for."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignal:
    """While entered, the first signal sets the event and the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Take the signals; again after a library has taken them, as `ray.init` does."""
        for number in _SIGNALS:
            before = signal.signal(number, self._on_signal)
            self._before.setdefault(number, before)

    @property
    def is_set(self) -> bool:
        """Whether a signal came."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a signal; whether one came."""
        return self._event.wait(timeout)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()
