"""Loaded at the start of every Python process that finds it on its path: those of a test whose wall clock is wrong.

libfaketime 0.9.10 (Debian 12, Ubuntu 24.04) passes the kernel a negative time where CPython sleeps until an instant of the
monotonic clock, although that clock is not faked (wolfcw/libfaketime#426). Waiting for an event that never comes is no
such call.
"""

import threading
import time


def sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


time.sleep = sleep
