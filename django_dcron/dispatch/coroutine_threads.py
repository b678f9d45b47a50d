"""Threads whose coroutines share one event loop.

The event loop has a thread of its own. A call runs in one of the other threads, which waits while
``async_to_sync`` runs a coroutine of the call on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import sync_to_async

from django_dcron.utils.threads import DcronThread, mark_dcron_thread


class CoroutineThreads:
    """Runs up to ``limit`` calls at once. Starts the event loop with the first call.

    A call starts only while the event loop responds: code that blocks it delays other calls.
    """

    def __init__(self, limit: int):
        self._pool = ThreadPoolExecutor(
            limit, thread_name_prefix="dcron-coroutine", initializer=mark_dcron_thread
        )
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        """The calls that wait or run. The event loop itself keeps only weak references."""
        self._is_closed = False

    def submit(self, call: Callable[..., Any], *args: Any) -> None:
        """Run ``call``, which must not raise. Raises ``RuntimeError`` after ``close``."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the threads are shut down")
            loop = self._loop or self._start_loop()
            loop.call_soon_threadsafe(self._run, call, *args)

    def close(self, wait: bool = True) -> None:
        """``wait``: wait until all submitted calls have ended. Otherwise, no more of them start."""
        with self._lock:
            self._is_closed = True
        if not wait:
            self._pool.shutdown(wait=False, cancel_futures=True)
        elif self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._wait_for_calls(), self._loop).result()
            self._pool.shutdown()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        self._loop = loop = asyncio.new_event_loop()
        self._thread = DcronThread(target=loop.run_forever, name="dcron-event-loop", daemon=True)
        self._thread.start()
        return loop

    def _run(self, call: Callable[..., Any], *args: Any) -> None:
        in_thread = sync_to_async(call, thread_sensitive=False, executor=self._pool)
        task = asyncio.ensure_future(in_thread(*args))
        self._calls.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # Without this, asyncio logs calls that came too late for ``close``.

    async def _wait_for_calls(self) -> None:
        await asyncio.gather(*self._calls, return_exceptions=True)
