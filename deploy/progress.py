"""What a person sees while a cluster starts: a line per step, and on a terminal a spinner."""

from __future__ import annotations

import time

from rich.console import Console


class Progress:
    """Lines with the time so far.

    Args:
        console: where to; without a terminal there is no spinner.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._started = time.monotonic()

    def __enter__(self) -> Progress:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def doing(self, what: str) -> None:
        """What goes on right now."""
        self._status.update(f"[dim]{self.elapsed_s:3.0f} s[/]  {what}")

    def done(self, what: str) -> None:
        """A step that is finished."""
        self._console.print(f"[green]✓[/] [dim]{self.elapsed_s:5.1f} s[/]  {what}", highlight=False)

    def note(self, what: str) -> None:
        """Something to know, beneath the last step."""
        self._console.print(f"            {what}", highlight=False, markup=False)

    def stop(self) -> None:
        """No more spinner."""
        self._status.stop()
