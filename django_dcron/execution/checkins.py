"""Middleware: check-ins with a service that expects a job, and tells people when it does not hear of it.

``check_in_healthchecks`` pings Healthchecks (or whoever speaks its ping API) for jobs with the tag ``healthchecks``;
``check_in_sentry`` tells Sentry Crons, by ``sentry_sdk``, of jobs with the tag ``sentry``. Both are to be named in ``DCRON_MIDDLEWARE``.

Invariants:

- No run waits for a check-in, and none fails of one: they are sent by a thread of their own, in order, and given up after a
  few tries, or when they are old. A service that is away hears nothing, which is what it takes for an alarm.
- A process that ends waits for what is still to be sent, for a few seconds.
- Two jobs have two slugs, unless their names differ in case, or in what divides words, alone.
- Success or failure is told of a run, not of an attempt: a failure after which another attempt is due is neither.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import queue
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
from django_dcron.exceptions import RunCancelled
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.failure import ending_of
from django_dcron.models import Job
from django_dcron.models.database import in_one_line

if TYPE_CHECKING:
    from sentry_sdk._types import MonitorConfig

logger = logging.getLogger("django_dcron.runs")

Handler = Callable[[CurrentRun], Any]
BEGUN, SUCCEEDED, FAILED, GOES_ON = "begun", "succeeded", "failed", "goes on"
"""What a check-in says. ``GOES_ON``: this attempt failed, or was cancelled, and the run's end is not known."""

TIMEOUT = 5
"""Seconds for one ping."""
TRIES = 3
TEXT_LIMIT = 10_000
MOST_WAITING = 1000
OLD = 300.0
"""Seconds: what could not be sent for so long is no longer true."""
LAST_PATIENCE = 5.0
"""Seconds that a process which ends waits."""
SLUG_LIMIT = 50
"""Sentry's."""


def check_in_healthchecks(call_next: Handler) -> Handler:
    return _checking_in("healthchecks", _ping, call_next)


def check_in_sentry(call_next: Handler) -> Handler:
    return _checking_in("sentry", _tell_sentry, call_next)


def _checking_in(tag: str, tell: Callable[[CurrentRun, str, str], None], call_next: Handler) -> Handler:
    def checked(run: CurrentRun) -> Any:
        if tag not in run.job.tags:
            return call_next(run)
        tell(run, BEGUN, "")
        try:
            result = call_next(run)
        except BaseException as exception:
            tell(run, _after(exception, run), f"{type(exception).__name__}: {_said(exception)}")
            raise
        tell(run, GOES_ON if run.cancelled else SUCCEEDED, "")
        return result

    return checked


def _after(exception: BaseException, run: CurrentRun) -> str:
    if isinstance(exception, RunCancelled):
        return GOES_ON
    failure = ending_of(exception, run).failure
    again = failure is not None and run.job.retry.retry_after(failure, run.attempt) is not None
    return GOES_ON if again else FAILED


def _said(exception: BaseException) -> str:
    try:
        return str(exception)[:TEXT_LIMIT]
    except Exception:  # a __str__ of somebody else's may do anything
        return "its message cannot be read"


def _slug(job: Job) -> str:
    """Of the check that stands for a job: letters, digits and dashes; if they do not say its whole name, with a hash of that."""
    name = job.name if job.namespace == "default" else f"{job.namespace}-{job.name}"
    slug = slugify(name)
    if slug == name.lower().replace(" ", "-") and len(slug) <= SLUG_LIMIT and not slug.isdigit():
        return slug
    own = hashlib.sha256(f"{job.namespace}/{job.name}".encode()).hexdigest()[:8]
    return f"{slug[: SLUG_LIMIT - 9].strip('-') or 'job'}-{own}"


class Sender:
    """One thread, so that an end never overtakes its beginning."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[float, Callable[[], None]]] = queue.Queue(MOST_WAITING)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, send: Callable[[], None]) -> None:
        try:
            self._waiting.put_nowait((time.monotonic(), send))
        except queue.Full:
            _lost("too many wait already")
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dcron-checkins", daemon=True)
                self._thread.start()
                atexit.register(self.flush, LAST_PATIENCE)

    def flush(self, patience: float) -> bool:
        """Wait until all is sent, or given up; at most so many seconds."""
        with self._waiting.all_tasks_done:
            return self._waiting.all_tasks_done.wait_for(lambda: not self._waiting.unfinished_tasks, patience)

    def _run(self) -> None:
        while True:
            since, send = self._waiting.get()
            try:
                if time.monotonic() - since < OLD:
                    send()
                else:
                    _lost(f"it has waited for more than {OLD:g} s")
            except (
                Exception
            ) as error:  # somebody else's code, which may raise anything, and maybe a URL with its key
                _lost(type(error).__name__)
            finally:
                self._waiting.task_done()


sender = Sender()


def _anew() -> None:
    """A child has no threads of its parent's, and nothing of its parent's to say."""
    global sender
    sender = Sender()


os.register_at_fork(after_in_child=_anew)


def _lost(why: str) -> None:
    logger.warning("a check-in was not taken: %s", why, extra={"event": "check_in_lost"})


# --- Healthchecks -----------------------------------------------------------------------------------------------------

_PATHS = {BEGUN: "/start", SUCCEEDED: "", FAILED: "/fail", GOES_ON: "/log"}


def _ping(run: CurrentRun, what: str, text: str) -> None:
    base = settings.HEALTHCHECKS_URL.rstrip("/")
    url = f"{base}/{_slug(run.job)}{_PATHS[what]}?create=1&rid={run.id}"
    sender.put(partial(_send, url, text))


def _send(url: str, text: str) -> None:
    request = Request(url, data=text.encode(errors="replace"), method="POST")  # noqa: S310 (the settings' own)
    said = ""
    for _ in range(TRIES):
        try:
            with urlopen(request, timeout=TIMEOUT):  # noqa: S310
                return
        except (OSError, HTTPException) as error:  # a status that is no success is one, too
            said = in_one_line(error)
            if isinstance(error, HTTPError):
                error.close()  # the response, which Python 3.14 warns about otherwise
    _lost(said)


# --- Sentry Crons -----------------------------------------------------------------------------------------------------

_STATUS = {BEGUN: "in_progress", SUCCEEDED: "ok", FAILED: "error"}


def _tell_sentry(run: CurrentRun, what: str, text: str) -> None:
    """One check-in for all attempts of a run, with what the SDK knows of this very context."""
    if what in _STATUS:
        check_in = partial(_capture, _slug(run.job), run.id.hex, _STATUS[what], _monitor(run.job))
        sender.put(partial(copy_context().run, check_in))


def _capture(slug: str, check_in_id: str, status: str, monitor: MonitorConfig | None) -> None:
    try:
        from sentry_sdk.crons import capture_checkin
    except ImportError:
        _lost("sentry_sdk is not installed: pip install django-dcron[sentry]")
        return
    capture_checkin(monitor_slug=slug, check_in_id=check_in_id, status=status, monitor_config=monitor)


def _monitor(job: Job) -> MonitorConfig | None:
    """What Sentry is to expect; None for schedules that it does not know."""
    fields = job.schedule.split()
    if len(fields) != 5 or not job.schedule.isascii() or any(letter in job.schedule for letter in "HLW#?"):
        return None
    return {"schedule": {"type": "crontab", "value": job.schedule}, "timezone": job.timezone}
