"""Run a job's coroutine and wait for its end.

Under the thread dispatcher, coroutines share one event loop (``dispatch.coroutine_threads``).
Elsewhere, each coroutine gets an event loop of its own. The calling thread meanwhile executes the
coroutine's synchronous parts: the ORM's asynchronous methods, and functions that the coroutine
calls with ``sync_to_async``.

Invariants:

- An interruption cancels the coroutine, which raises ``CancelledError`` in it. Other runs aren't
  affected. The attempt ends only after the coroutine has ended.
- Tasks that the coroutine has created and not awaited are cancelled at its end.
- No exception of the coroutine ends the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

from asgiref.sync import async_to_sync
from django.db import close_old_connections

from django_dcron.execution.interruption import Interruption
from django_dcron.utils.threads import in_dcron_thread

_children: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("dcron_children", default=None)
"""The unfinished tasks that a job's coroutine, or one of its tasks, has created."""


def run_coroutine(coroutine: Coroutine[Any, Any, Any], interruption: Interruption) -> Any:
    """Return the coroutine's result, or raise its exception.

    If an interruption cancels the coroutine, the exception of the interruption is raised.
    """
    if in_dcron_thread():
        # Many threads may wait at once, so each keeps its connections only as long as CONN_MAX_AGE
        # allows. In other processes, the connections belong to the project.
        close_old_connections()
    call = _Call(coroutine, interruption)
    with interruption.redirected_to(call.cancel):
        async_to_sync(call.run)()
    if call.error is not None:
        raise call.error
    return call.result


class _Call:
    """The coroutine's task, which another thread may cancel, also before it starts."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], interruption: Interruption):
        self.result: Any = None
        self.error: BaseException | None = None
        self._coroutine = coroutine
        self._interruption = interruption
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True  # before ``_task`` is read, because ``run`` does the opposite
        if (task := self._task) is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def run(self) -> None:
        """Await the coroutine, and keep its result or exception. Raises nothing."""
        self._task = asyncio.current_task()
        try:
            if self._cancelled:
                self._coroutine.close()
                raise asyncio.CancelledError
            self.result = await _with_its_tasks(self._coroutine)
        except asyncio.CancelledError as cancelled:
            self.error = self._interruption.exception
            if self.error is None:  # The coroutine has cancelled itself.
                self.error = cancelled
            else:
                self.error.__cause__ = cancelled
        except BaseException as error:
            self.error = error


async def _with_its_tasks(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the coroutine's result after the end of all tasks that it has created."""
    children: set[asyncio.Task[Any]] = set()
    token = _children.set(children)
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_create_task)
    try:
        return await coroutine
    finally:
        unfinished = list(children)
        for child in unfinished:
            child.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        _children.reset(token)


def _create_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    if (children := _children.get()) is not None and not task.done():
        children.add(task)
        task.add_done_callback(children.discard)
    return task
