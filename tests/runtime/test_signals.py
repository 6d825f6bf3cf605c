"""Signals: heard in the main thread, left alone in any other."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

import pytest

from pate_fed import simulation
from pate_fed.runtime.signals import Interrupted, interruptible, raise_if, terminating


def _in_a_thread(work: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(60)
    return found[0]


def test_a_study_may_be_started_from_any_thread(capsys: pytest.CaptureFixture[str]) -> None:
    assert _in_a_thread(lambda: simulation.main(["--num-clients", "0"])) == 2
    assert "--num-clients" in capsys.readouterr().err


def test_in_a_thread_signals_stay_the_callers(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work() -> object:
        with terminating(threading.Event()), interruptible(threading.Event()):
            return signal.getsignal(signal.SIGTERM)

    assert _in_a_thread(work) is before


def test_what_was_asked_for_before_is_heard_in_a_thread_too() -> None:
    def work() -> object:
        stop = threading.Event()
        stop.set()
        with pytest.raises(Interrupted), interruptible(stop):
            pass
        return True

    assert _in_a_thread(work) is True


def test_the_first_signal_asks_to_stop_and_hushes_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    stop, before = threading.Event(), signal.getsignal(signal.SIGTERM)
    with interruptible(stop, note="all is kept"):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # the same one twice, as from a wrapper
        assert stop.is_set()
        assert not logging.getLogger("flwr").isEnabledFor(logging.ERROR)
    assert logging.getLogger("flwr").isEnabledFor(logging.ERROR)
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == "\nstopping: all is kept (again to end at once)\n"


def test_an_interruption_that_a_library_made_another_error_is_still_one() -> None:
    asked = threading.Event()
    with pytest.raises(Interrupted), terminating(asked):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("cannot build the model") from error
    with pytest.raises(Interrupted):
        raise_if(asked)
