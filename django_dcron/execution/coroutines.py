"""Run a job's coroutine and wait for its end.

Under the thread dispatcher, coroutines share one event loop (``dispatch.coroutine_threads``).
Elsewhere, each coroutine gets its own event loop. The calling thread meanwhile executes the
coroutine's synchronous parts: the ORM's asynchronous methods, and functions that the coroutine
calls with ``sync_to_async``.

Invariants:

- An interruption cancels the coroutine, which raises ``CancelledError`` in it. Other runs aren't
  affected. The attempt ends only after the coroutine has ended.
- Tasks that the coroutine has created and not awaited are cancelled at its end.
- No exception of the coroutine ends the event loop.
- No coroutine starts in a greenlet, because its event loop would break the other greenlets' runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from asgiref.sync import async_to_sync
from django.db import close_old_connections

from django_dcron.conf import settings
from django_dcron.exceptions import PermanentFailure
from django_dcron.execution.interruption import Interruption
from django_dcron.utils.threads import in_dcron_thread, in_greenlet

NOT_IN_GREENLETS = (
    "The coroutine function wasn't started, because gevent and eventlet pools can't run coroutine "
    "functions. Give the job a queue whose worker has the prefork or threads pool."
)
_children: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("dcron_children", default=None)
"""The unfinished tasks that a job's coroutine, or one of its tasks, has created."""


def run_coroutine(coroutine: Coroutine[Any, Any, Any], interruption: Interruption) -> Any:
    """Return the coroutine's result, or raise its exception.

    If an interruption cancels the coroutine, the exception of the interruption is raised. Raises
    ``PermanentFailure`` in a greenlet.
    """
    if in_greenlet():
        coroutine.close()
        raise PermanentFailure(NOT_IN_GREENLETS)
    if in_dcron_thread():
        # Many threads may wait at once, so each keeps its connections only as long as CONN_MAX_AGE
        # allows. In other processes, the connections belong to the project.
        close_old_connections()
    call = _Call(coroutine, interruption)
    try:
        with interruption.redirected_to(call.cancel):
            async_to_sync(call.run)()
    except BaseException:  # raised in this thread by other code, such as a signal handler
        call.cancel_and_wait()
        raise
    if call.error is None:
        return call.result
    try:
        raise call.error
    finally:
        del call  # breaks the cycle of the exception, its traceback and this frame


class _Call:
    """The coroutine's task, which another thread may cancel, also before it starts."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], interruption: Interruption):
        self.result: Any = None
        self.error: BaseException | None = None
        self._coroutine = coroutine
        self._interruption = interruption
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._ended = threading.Event()

    def cancel(self) -> None:
        """Cancel the task, or let ``run`` find that it is cancelled.

        This sets ``_cancelled`` before it reads ``_task``, and ``run`` sets ``_task`` before it
        reads ``_cancelled``. So at least one of them notices the other.
        """
        self._cancelled = True
        if (task := self._task) is not None:
            with suppress(RuntimeError):  # The event loop is closed, so the task has ended.
                task.get_loop().call_soon_threadsafe(task.cancel)

    def cancel_and_wait(self) -> None:
        """Cancel the task, and wait for its end as long as for any code after its timeout."""
        self.cancel()
        if self._task is not None:
            self._ended.wait(settings.HARD_TIMEOUT_AFTER.total_seconds())
        else:
            self._coroutine.close()

    async def run(self) -> None:
        """Await the coroutine and its tasks, and keep its result or exception. Raises nothing."""
        self._task = asyncio.current_task()
        children: set[asyncio.Task[Any]] = set()
        token = _children.set(children)
        # Always, because a job may have set another factory.
        asyncio.get_running_loop().set_task_factory(_create_task)
        try:
            if self._cancelled:
                self._coroutine.close()
                raise asyncio.CancelledError
            self.result = await self._coroutine
        except asyncio.CancelledError as cancelled:
            self.error = self._interruption.exception
            if self.error is None:  # The coroutine has cancelled itself.
                self.error = cancelled
            else:
                self.error.__cause__ = cancelled
        except BaseException as error:
            self.error = error
        finally:
            with suppress(asyncio.CancelledError):  # The coroutine has ended, so its result counts.
                await _end_tasks(children)
            _children.reset(token)
            self._ended.set()


async def _end_tasks(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, and those that they create meanwhile, and wait until they have ended.

    Each task removes itself from the set when it ends.
    """
    while tasks:
        unfinished = list(tasks)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


def _create_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    if (children := _children.get()) is not None and not task.done():
        children.add(task)
        task.add_done_callback(children.discard)
    return task
