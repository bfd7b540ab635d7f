"""The first signal asks to stop, the second stops."""

from __future__ import annotations

import os
import signal

import pytest

from deploy.signals import StopSignal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_sets_the_event(number: signal.Signals) -> None:
    with StopSignal() as stop:
        assert not stop.is_set
        os.kill(os.getpid(), number)
        assert stop.wait(5)
        assert stop.is_set


def test_a_second_signal_interrupts() -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_that_a_library_took_are_taken_back_and_the_first_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.install()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
    assert signal.getsignal(signal.SIGTERM) is before


def test_waiting_ends_at_its_time() -> None:
    with StopSignal() as stop:
        assert not stop.wait(0.0)
