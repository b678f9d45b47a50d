"""Nodes in the processes of a web server (``DCRON_AUTOSTART``).

Invariants:

- A node starts only in a process that created a WSGI or ASGI application to serve requests:
  ``runserver`` (with autoreload, in the child), gunicorn, uvicorn and other servers. It starts in
  no other management command, no Celery worker and no test.
- No thread of a node exists when a server forks its workers. The node starts ``GRACE`` seconds
  after the application was created, or at the first request. If the process has forked by then, it
  may be a server that forks workers or one that started a helper. Its node starts ``FORK_GRACE``
  seconds later.
- The master of gunicorn or uWSGI that loads the application before it forks starts no node.
- A forked process starts a node only if it is a worker of gunicorn or serves a request. A process
  that Python code forks after the node has started starts no node.
- A node that ends doesn't end the server. It is started again after a pause.
- When the process exits, the node drains and releases its shards.
- ``runserver`` exits soon, so that it can reload. Attempts that it doesn't wait for are lost.
"""

from __future__ import annotations

import atexit
import logging
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from enum import Enum
from functools import wraps
from types import FrameType
from typing import Any

from django.core.signals import request_started
from django.db import DatabaseError, InterfaceError, connections

from django_dcron.conf import settings
from django_dcron.db.error_remedies import with_remedy
from django_dcron.utils.test_environment import is_test
from django_dcron.utils.threads import DcronThread, in_dcron_thread

logger = logging.getLogger("django_dcron.scheduler")

GRACE = 1.0
"""Seconds from the creation of the application to the start of the node. A server that preloads the
application forks its workers within this time.
"""
FORK_GRACE = 10.0
"""Seconds that a process which has forked waits for a request after ``GRACE``."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a node that ended is started again. The pause doubles each time. It is reset after
a node has run for more than ``LONGEST_PAUSE``.
"""
STOP_TIMEOUT = 30.0
"""Seconds to wait for the node when the process exits. After that, the interpreter waits for the
threads that execute runs, until the server or its supervisor kills the process.
"""
RUNSERVER_STOP_TIMEOUT = 5.0
"""Seconds that ``runserver`` waits. Until then, it serves the old code and schedules nothing."""
QUIET_STOP = 2.0
"""Seconds of this wait after which a warning says why the process doesn't exit yet."""
RUNSERVER = ".management.commands.runserver"
APPLICATIONS = {"django.core.wsgi", "django.core.asgi"}


class AutostartState(Enum):
    IDLE = "idle"
    """No node will start."""
    ARMED = "armed"
    """A thread waits to start the node."""
    PRELOADED = "preloaded"
    """The node starts at the first request. This process was forked, or it loads the application
    before it forks.
    """
    STARTED = "started"


class _NodeLeft(BaseException):
    """Ends the wait for threads at the exit of the interpreter."""


class Autostart:
    """The node of this process."""

    def __init__(self, run_node: Callable[[Autostart], None]):
        self._run_node = run_node
        self._fork_check = threading.Lock()
        """Used only by a process that was forked in C."""
        self._reset()

    def _reset(self) -> None:
        self.state = AutostartState.IDLE
        self.stopping = threading.Event()
        self.on_stop: Callable[[], None] | None = None
        """Ends ``run_node``."""
        self.running_jobs: Callable[[], str] = str
        """Returns the number and the jobs of the node's running runs as text, or nothing."""
        self._in_runserver = False
        self._lock = threading.Lock()
        self._requested = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_forked = False
        self._pid = os.getpid()

    def arm(self) -> None:
        """Start the node soon, if this process serves requests."""
        modules = set(_modules_on_stack())
        if not serves_requests(modules):
            return
        self._reset_after_c_fork()
        with self._lock:
            if self.state is not AutostartState.IDLE:
                return
            self._in_runserver = _is_runserver(modules)
            if _is_gunicorn_master(modules) or _is_uwsgi_master():
                self.state = AutostartState.PRELOADED
            else:
                self._arm()

    def request(self, **kwargs: Any) -> None:
        """Start the node now. Receives ``request_started``."""
        self._reset_after_c_fork()
        if self.state is AutostartState.ARMED:
            self._requested.set()
        elif self.state is AutostartState.PRELOADED:
            with self._lock:
                if self.state is AutostartState.PRELOADED:
                    self._requested.set()
                    self._arm()

    def stop(self) -> None:
        """Drain the node, and wait until it has stopped."""
        if self._pid != os.getpid():
            return  # the node belongs to the parent process
        self.stopping.set()
        self._requested.set()
        if self.on_stop:
            self.on_stop()
        if self._thread is None:
            return
        limit, end = STOP_TIMEOUT, "it kills this process after its own limit"
        if self._in_runserver:
            limit, end = RUNSERVER_STOP_TIMEOUT, f"it exits after {RUNSERVER_STOP_TIMEOUT:g} s"
        # With another server, Ctrl-C ends the wait and then the process.
        with suppress(KeyboardInterrupt) if self._in_runserver else nullcontext():
            self._thread.join(QUIET_STOP)
            if self._thread.is_alive():
                # A warning, because projects without LOGGING see no other records.
                text = "server waits for its node to end"
                if running := self.running_jobs():
                    text = f"server waits for running jobs to end: {running}; {end}"
                logger.warning(text, extra={"event": "autostart_stopping"})
                self._thread.join(limit - QUIET_STOP)
            if not self._in_runserver:
                return
        if self._thread.is_alive():
            text = "server exits before its node has ended"
            if running := self.running_jobs():
                text = f"server exits, attempts are lost: {running}"
            logger.warning(text, extra={"event": "autostart_node_left"})
            # An exception ends the interpreter's wait for threads, but keeps the exit code, which
            # makes ``runserver`` reload. Python reports the exception to this hook.
            sys.unraisablehook = lambda _: None
            raise _NodeLeft

    def announce_start(self, name: str) -> None:
        """Print that the node has started, in a terminal with ``runserver`` and without this log.

        The last line may otherwise be an error that ended the node before.
        """
        is_logged = logger.hasHandlers() and logger.isEnabledFor(logging.INFO)
        if not self._in_runserver or is_logged:
            return
        # Without stderr, or if it is closed, the node has to start all the same.
        with suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(f"node started: node={name}\n")
            sys.stderr.flush()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._has_forked = self.state is AutostartState.ARMED
        self._lock.release()

    def after_fork_in_child(self) -> None:
        is_waiting = self.state in (AutostartState.ARMED, AutostartState.PRELOADED)
        self._reset()  # the locks and the thread belong to the parent process
        if is_waiting and _is_gunicorn_master(set(_modules_on_stack())):
            self._arm()
            return
        if is_waiting:
            self.state = AutostartState.PRELOADED
        _restore_sigterm()

    def _reset_after_c_fork(self) -> None:
        """Reset the state if this process was forked in C, as by uWSGI.

        Such a fork doesn't call Python's fork hooks.
        """
        if self._pid == os.getpid():
            return
        with self._fork_check:
            if self._pid != os.getpid():
                will_start = self.state is not AutostartState.IDLE
                self._reset()
                self.state = AutostartState.PRELOADED if will_start else AutostartState.IDLE

    def _arm(self) -> None:
        self.state = AutostartState.ARMED
        _exit_on_sigterm()
        self._thread = DcronThread(target=self._wait, name="dcron-node", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        if not self._requested.wait(GRACE) and self._has_forked:
            self._requested.wait(FORK_GRACE)
        with self._lock:
            if self.stopping.is_set():
                return
            self.state = AutostartState.STARTED
        _at_exit(self.stop)
        try:
            self._run_node(self)
        finally:
            connections.close_all()


def run_node(autostart: Autostart) -> None:
    """Run a node until the process exits."""
    # The models and the scheduler can be imported only when the apps are loaded.
    from django.apps import apps

    apps.ready_event.wait()
    from django_dcron.checks import as_node_start, check_settings
    from django_dcron.db.routing import alias_for
    from django_dcron.db.sqlite_writes import early_write_locks
    from django_dcron.models import Job
    from django_dcron.node import create_runner, sync_declared
    from django_dcron.scheduler.dead_nodes import server_node_name

    name = server_node_name(platform.node(), os.getpid())
    with as_node_start():
        errors = [message for message in check_settings(None) if message.is_serious()]
    for error in errors:
        extra = {"event": "autostart_failed", "node": name}
        logger.error("node not started: node=%s error=%s", name, error.msg, extra=extra)
    if errors:
        return

    def run() -> int:
        runner = create_runner(name)
        autostart.on_stop, autostart.running_jobs = runner.stop, runner.running_jobs
        return (
            0
            if autostart.stopping.is_set()
            else runner.run(prepare=sync_declared, on_start=lambda: autostart.announce_start(name))
        )

    with early_write_locks(alias_for(Job), applies=in_dcron_thread):
        restart_until_stopped(run, autostart.stopping, name)


def restart_until_stopped(run: Callable[[], int], stopping: threading.Event, name: str) -> None:
    """Call ``run``, and call it again after a pause when it ends or fails."""
    pause = FIRST_PAUSE
    while not stopping.is_set():
        started_at = time.monotonic()
        try:
            reason = f"exit code {run()}"
        except (DatabaseError, InterfaceError) as error:
            reason = with_remedy(error)
        except Exception as error:  # The server continues.
            reason = str(error) or repr(error)
        if stopping.is_set():
            return
        ran_for = time.monotonic() - started_at
        if ran_for > LONGEST_PAUSE:
            pause = FIRST_PAUSE
        extra = {"event": "autostart_restart", "node": name, "restart_in": pause}
        text = "node ended and restarts: node=%s restart_in=%gs ran=%.1fs reason=%s"
        logger.warning(text, name, pause, ran_for, reason, extra=extra)
        stopping.wait(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


autostart = Autostart(run_node)
_installed = False


def install() -> None:
    """Start the node when this process creates a WSGI or ASGI application."""
    global _installed
    if _installed:
        return
    _installed = True
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler

    for handler in (WSGIHandler, ASGIHandler):
        _arm_on_creation(handler)
    request_started.connect(autostart.request, weak=False)
    os.register_at_fork(
        before=autostart.before_fork,
        after_in_parent=autostart.after_fork_in_parent,
        after_in_child=autostart.after_fork_in_child,
    )


def _arm_on_creation(handler: Any) -> None:
    """Wrap the constructor of an application, because Django has no signal for a new one."""
    create = handler.__init__

    @wraps(create)
    def create_and_arm(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        if settings.AUTOSTART:
            autostart.arm()

    handler.__init__ = create_and_arm


def serves_requests(modules: set[str]) -> bool:
    """Return whether an application created by these modules will serve requests."""
    if is_test():
        return False
    if _is_runserver(modules):
        return True
    if any(name.startswith(("django.core.management", "celery.")) for name in modules):
        return False
    return bool(APPLICATIONS & modules)


def _is_runserver(modules: set[str]) -> bool:
    return any(RUNSERVER in name for name in modules)


def _is_gunicorn_master(modules: set[str]) -> bool:
    """Return whether gunicorn loads the application before it forks (``preload_app``)."""
    return "gunicorn.arbiter" in modules and not any(
        name.startswith("gunicorn.workers") for name in modules
    )


def _is_uwsgi_master() -> bool:
    """Return whether uWSGI loads the application before it forks (without ``lazy-apps``)."""
    uwsgi = sys.modules.get("uwsgi")  # Only inside uWSGI.
    return uwsgi is not None and bool(uwsgi.masterpid()) and uwsgi.worker_id() == 0


def _modules_on_stack() -> Iterator[str]:
    """Yield the names of the modules on the stacks of this thread and of the main thread."""
    main = threading.main_thread().ident
    frames = [sys._getframe(), sys._current_frames().get(main) if main else None]
    for innermost in frames:
        frame: FrameType | None = innermost
        while frame is not None:
            yield str(frame.f_globals.get("__name__"))
            frame = frame.f_back


def _exit_on_sigterm() -> None:
    """Let SIGTERM end the process as ``sys.exit`` does, unless the server does the same."""
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGTERM)
    server = getattr(handler, "__self__", None)
    if handler is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)
    elif type(server).__module__ == "uvicorn.server":
        # After its shutdown, uvicorn raises the signal again, which ends the process at once.
        signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))


def _restore_sigterm() -> None:
    """Let SIGTERM end a forked process that has no node, for example one of multiprocessing."""
    if signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(*_: object) -> None:
    sys.exit(0)


def _at_exit(stop: Callable[[], None]) -> None:
    """Call ``stop`` when the interpreter exits, before it waits for thread pools.

    A function registered with ``atexit`` is called after that wait. The node would keep running
    until the last run has ended. Python's thread pools use the same function. It isn't public, so
    ``atexit`` is the fallback.
    """
    getattr(threading, "_register_atexit", atexit.register)(stop)
