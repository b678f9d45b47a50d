"""Work around libfaketime in the Python processes of a test whose wall clock is wrong.

Python imports this module at the start of every process that finds it on its path.

CPython sleeps until an instant of the monotonic clock, which isn't faked. libfaketime 0.9.10
(Debian 12, Ubuntu 24.04) then passes a negative time to the kernel (wolfcw/libfaketime#426).
Waiting for an event that never comes avoids that call.
"""

import threading
import time


def sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


time.sleep = sleep
