"""Calls that wait: nothing that happens meanwhile is missed."""

import os
import signal
import threading
import time

import pytest

from rollway.client._pending import PendingResult, identity


class Never:
    """An engine's call that is never answered."""

    def __init__(self):
        self.polled = threading.Event()

    def poll(self, wake):
        self.polled.set()

    def close(self):
        pass


def test_a_signal_during_a_wait_is_handled():
    # Another thread takes the signal, so that the lock this one waits for is not interrupted: the
    # same as a signal that comes just before the wait.
    never = Never()

    def interrupt():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        never.polled.wait()
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            PendingResult("wait", lambda: never, identity).result()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        thread.join()


@pytest.mark.parametrize("timeout", [0, 0.05, 0.3])
def test_a_call_is_given_up_when_its_time_is_up_and_not_before(timeout):
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="did not finish"):
        PendingResult("wait", Never, identity).result(timeout)
    assert time.monotonic() - began >= timeout
