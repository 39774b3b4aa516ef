"""Ctrl-C and termination that wait for the end of a step."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_requests(acknowledge: Callable[[], None]) -> Iterator[threading.Event]:
    """Set by the first Ctrl-C or termination, which then waits for the end of a step; a second one does not wait.

    Args:
        acknowledge: called once, by another thread, as soon as the first one arrives.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with _acknowledged(acknowledge):
        before = {number: signal.signal(number, handle) for number in _SIGNALS}
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _acknowledged(acknowledge: Callable[[], None]) -> Iterator[None]:
    # A handler in Python waits for the end of a backward pass, which may take minutes; the interpreter's own writes the
    # number of the signal at once.
    arrived, arriving = socket.socketpair()

    def listen() -> None:
        while number := arrived.recv(1):
            if number[0] in _SIGNALS:
                acknowledge()
                return

    with arrived, arriving:
        arriving.setblocking(False)
        before = signal.set_wakeup_fd(arriving.fileno(), warn_on_full_buffer=False)
        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            arriving.shutdown(socket.SHUT_WR)
            listener.join()
