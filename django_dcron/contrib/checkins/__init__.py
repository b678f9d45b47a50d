"""Middleware that checks in with services which raise an alarm if a job doesn't report.

``check_in_healthchecks`` pings Healthchecks, or any service with its ping API, for jobs with the
tag ``healthchecks``. ``check_in_sentry`` reports to Sentry Crons, through ``sentry_sdk``, for jobs
with the tag ``sentry``. Add them to ``DCRON_MIDDLEWARE``.

Invariants:

- No run waits for a check-in or fails because of one. A separate thread sends check-ins in order.
- The thread drops a check-in after a few tries, or when it is old. A service that misses check-ins
  raises its alarm.
- A process that ends waits a few seconds for check-ins that aren't sent yet.
- Two jobs have different slugs, unless their names, with the namespace in front, differ only in
  case, or in spaces and dashes.
- Check-ins report the success or failure of a run, not of an attempt. An attempt that will be
  retried reports neither.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from django.utils.text import slugify

from django_dcron.conf import settings
from django_dcron.db.errors import in_one_line
from django_dcron.exceptions import RunCancelled
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.failure import ending_of
from django_dcron.execution.worker_exit import before_exit
from django_dcron.models import Job
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE
from django_dcron.utils.exception_text import exception_text
from django_dcron.utils.threads import DcronThread

if TYPE_CHECKING:
    from sentry_sdk._types import MonitorConfig

logger = logging.getLogger("django_dcron.runs")

Handler = Callable[[CurrentRun], Any]
STARTED, SUCCEEDED, FAILED, UNFINISHED = "started", "succeeded", "failed", "unfinished"
"""The kinds of check-ins.

``UNFINISHED``: the attempt failed or was cancelled, and the run's end is unknown.
"""

TIMEOUT = 5
"""Seconds for one ping."""
MAX_TRIES = 3
"""Maximum number of tries to send a check-in."""
TEXT_LIMIT = 10_000
QUEUE_LIMIT = 1000
MAX_AGE = 300.0
"""Seconds after which an unsent check-in is dropped."""
EXIT_TIMEOUT = 5.0
"""Seconds that a process waits for unsent check-ins when it ends."""
SLUG_LIMIT = 50
"""Sentry's limit."""


def check_in_healthchecks(call_next: Handler) -> Handler:
    return _with_check_ins("healthchecks", _ping, call_next)


def check_in_sentry(call_next: Handler) -> Handler:
    return _with_check_ins("sentry", _send_to_sentry, call_next)


def _with_check_ins(
    tag: str, send: Callable[[CurrentRun, str, str], None], call_next: Handler
) -> Handler:
    def checked(run: CurrentRun) -> Any:
        if tag not in run.job.tags:
            return call_next(run)
        send(run, STARTED, "")
        try:
            result = call_next(run)
        except BaseException as exception:
            send(
                run,
                _kind_after(exception, run),
                f"{type(exception).__name__}: {exception_text(exception)[:TEXT_LIMIT]}",
            )
            raise
        send(run, UNFINISHED if run.cancelled else SUCCEEDED, "")
        return result

    return checked


def _kind_after(exception: BaseException, run: CurrentRun) -> str:
    if isinstance(exception, RunCancelled):
        return UNFINISHED
    failure = ending_of(exception, run).failure
    will_retry = failure is not None and run.job.retry.retry_after(failure, run.attempt) is not None
    return UNFINISHED if will_retry else FAILED


def _slug(job: Job) -> str:
    """Return the slug of a job's check: letters, digits, dashes and underscores.

    If the slug doesn't contain the whole name, it ends with a hash of the name.
    """
    name = job.name if job.namespace == DEFAULT_NAMESPACE else f"{job.namespace}-{job.name}"
    slug = slugify(name)
    if slug == name.lower().replace(" ", "-") and len(slug) <= SLUG_LIMIT and not slug.isdigit():
        return slug
    digest = hashlib.sha256(f"{job.namespace}/{job.name}".encode()).hexdigest()[:8]
    return f"{slug[: SLUG_LIMIT - 9].strip('-') or 'job'}-{digest}"


class Sender:
    """Sends check-ins in one thread, so that a run's end never overtakes its beginning."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[float, Callable[[], None]]] = queue.Queue(QUEUE_LIMIT)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, send: Callable[[], None]) -> None:
        try:
            self._waiting.put_nowait((time.monotonic(), send))
        except queue.Full:
            _log_lost(f"more than {QUEUE_LIMIT} check-ins are waiting")
        with self._starting:
            if self._thread is None:
                thread = DcronThread(target=self._run, name="dcron-checkins", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # too many threads; the next check-in tries again
                    return
                self._thread = thread
                atexit.register(self.flush, EXIT_TIMEOUT)

    def flush(self, timeout: float) -> bool:
        """Wait until all check-ins are sent or dropped, at most ``timeout`` seconds.

        Returns at once if no thread could be started, because nothing sends the check-ins then.
        """
        if self._thread is None:
            return not self._waiting.unfinished_tasks
        with self._waiting.all_tasks_done:
            return self._waiting.all_tasks_done.wait_for(
                lambda: not self._waiting.unfinished_tasks, timeout
            )

    def _run(self) -> None:
        while True:
            since, send = self._waiting.get()
            try:
                if time.monotonic() - since < MAX_AGE:
                    send()
                else:
                    _log_lost(f"older than {MAX_AGE:g} s")
            except Exception as error:
                # Third-party code may raise anything. Its message may contain a URL with a key, so
                # log only the type.
                _log_lost(type(error).__name__)
            finally:
                self._waiting.task_done()


sender = Sender()


def _replace_sender() -> None:
    """Replace the sender in a forked child. The parent keeps its thread and its check-ins."""
    global sender
    sender = Sender()


os.register_at_fork(after_in_child=_replace_sender)
before_exit(lambda: sender.flush(EXIT_TIMEOUT))


def _log_lost(why: str) -> None:
    logger.warning("check-in not sent: reason=%s", why, extra={"event": "check_in_lost"})


# --- Healthchecks ---------------------------------------------------------------------------------

_PATHS = {STARTED: "/start", SUCCEEDED: "", FAILED: "/fail", UNFINISHED: "/log"}


def _ping(run: CurrentRun, kind: str, text: str) -> None:
    base = settings.HEALTHCHECKS_URL.rstrip("/")
    url = f"{base}/{_slug(run.job)}{_PATHS[kind]}?create=1&rid={run.id}"
    sender.put(partial(_send, url, text))


def _send(url: str, text: str) -> None:
    data = text.encode(errors="replace")
    request = Request(url, data=data, method="POST")  # noqa: S310 (the settings name the URL)
    message = ""
    for _ in range(MAX_TRIES):
        try:
            with urlopen(request, timeout=TIMEOUT):  # noqa: S310 (as above)  # nosec B310
                return
        except (OSError, HTTPException) as error:  # includes error statuses
            message = in_one_line(error)
            if isinstance(error, HTTPError):
                error.close()  # closes the response; Python 3.14 warns otherwise
    _log_lost(message)


# --- Sentry Crons ---------------------------------------------------------------------------------

_STATUS = {STARTED: "in_progress", SUCCEEDED: "ok", FAILED: "error"}
_STANDARD_FIELD = re.compile(r"(?:[0-9*/,-]|\b[A-Za-z]{3}\b)+")
"""A cron field of numbers and names of months or weekdays, without ``H``, ``L``, ``W``, ``#``."""


def _send_to_sentry(run: CurrentRun, kind: str, text: str) -> None:
    """Report to the run's check-in, which all of its attempts share.

    The SDK gets a copy of the current context.
    """
    if kind in _STATUS:
        check_in = partial(_capture, _slug(run.job), run.id.hex, _STATUS[kind], _monitor(run.job))
        sender.put(partial(copy_context().run, check_in))


def _capture(slug: str, check_in_id: str, status: str, monitor: MonitorConfig | None) -> None:
    try:
        from sentry_sdk.crons import capture_checkin
    except ImportError:
        _log_lost("sentry_sdk is not installed: pip install django-dcron[sentry]")
        return
    capture_checkin(
        monitor_slug=slug, check_in_id=check_in_id, status=status, monitor_config=monitor
    )


def _monitor(job: Job) -> MonitorConfig | None:
    """Return Sentry's monitor configuration, or None if Sentry doesn't support the schedule."""
    fields = job.schedule.split()
    if len(fields) != 5 or not all(map(_STANDARD_FIELD.fullmatch, fields)):
        return None
    return {"schedule": {"type": "crontab", "value": job.schedule}, "timezone": job.timezone}
