"""Threads whose coroutines share one event loop.

The event loop has its own thread. A call runs in one of the other threads, which waits while
``async_to_sync`` runs a coroutine of the call on the event loop. One more thread reports code that
blocks the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from typing import Any

from asgiref.sync import sync_to_async

from django_dcron.dispatch.event_loop_monitor import CHECK_EVERY, EventLoopMonitor
from django_dcron.utils.threads import DcronThread, mark_dcron_thread

logger = logging.getLogger("django_dcron.runs")


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
        self._accepts_calls = True
        self._stopping = threading.Event()

    def submit(self, call: Callable[..., Any], *args: Any) -> None:
        """Run ``call``, which must not raise, with an empty context.

        Raises ``RuntimeError`` after ``close``.
        """
        with self._lock:
            if not self._accepts_calls:
                raise RuntimeError("the threads are shut down")
            loop = self._loop or self._start_loop()
            loop.call_soon_threadsafe(self._run, call, *args, context=Context())

    def close(self, wait: bool = True) -> None:
        """``wait``: wait until all submitted calls have ended. Otherwise, no more of them start."""
        with self._lock:
            self._accepts_calls = False
        if not wait:
            self._pool.shutdown(wait=False, cancel_futures=True)
        elif self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._wait_for_calls(), self._loop).result()
            self._pool.shutdown()
            self._stopping.set()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = self._thread = None

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        thread = DcronThread(
            target=self._run_loop, args=[loop], name="dcron-event-loop", daemon=True
        )
        thread.start()
        monitor = EventLoopMonitor(loop, thread)
        DcronThread(
            target=self._watch, args=[monitor], name="dcron-event-loop-monitor", daemon=True
        ).start()
        self._loop, self._thread = loop, thread
        return loop

    def _watch(self, monitor: EventLoopMonitor) -> None:
        with suppress(RuntimeError):  # ``close`` has just closed the event loop
            while not self._stopping.wait(CHECK_EVERY):
                monitor.check()

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the event loop until ``close``, even if a job stops it.

        A task that a job has created stops it by raising ``SystemExit`` or ``KeyboardInterrupt``.
        """
        asyncio.set_event_loop(loop)
        while not self._stopping.is_set():
            try:
                loop.run_forever()
            except BaseException as error:
                extra = {"event": "event_loop_restarted"}
                text = "event loop restarted, a job's task raised an exception: error=%r"
                logger.warning(text, error, extra=extra)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    def _run(self, call: Callable[..., Any], *args: Any) -> None:
        in_thread = sync_to_async(call, thread_sensitive=False, executor=self._pool)
        task = asyncio.ensure_future(in_thread(*args))
        self._calls.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) and self._accepts_calls:
            # For example, the system has no room for another thread.
            extra = {"event": "coroutine_not_started"}
            logger.error("run of a coroutine function not started: error=%r", error, extra=extra)

    async def _wait_for_calls(self) -> None:
        await asyncio.gather(*self._calls, return_exceptions=True)
