"""Every error django-dcron raises on purpose."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_dcron.phrases import Language, Phrase
from django_dcron.phrases import gettext_noop as _

NAIVE = _("%(value)s has no time zone (allowed: an aware datetime)")
"""Of an ``InvalidValue``."""


class DcronError(Exception):
    """Base of all django-dcron errors."""


class Told(Exception):
    """An error that people are told, maybe in another language: a template, and the values in it if it has any.

    ``str`` of it, and so what is logged and stored, is English always.
    """

    def __init__(self, template: str, /, **values: object):
        self.phrase = Phrase(template, **values)
        super().__init__(str(self.phrase))

    def said(self, language: Language) -> str:
        """Its text in a language: with ``django.utils.translation``, in the active one."""
        return self.phrase.said(language)

    def __reduce__(self) -> tuple[Any, ...]:
        """An exception is usually made anew from its text alone; pools of processes wait for ever for one that cannot be."""
        return _made_anew, (type(self), self.args), self.__dict__


def _made_anew(kind: type[Told], args: tuple[Any, ...]) -> Told:
    return kind.__new__(kind, *args)


class InvalidSchedule(Told, DcronError, ValueError):
    """A schedule text or time zone that cannot be accepted; the message names field, value and what is allowed."""


class InvalidCalendar(InvalidSchedule):
    """A calendar whose dates cannot be read; the message names line, value and what is allowed."""


class UnknownTarget(Told, DcronError, LookupError):
    """A job names a target that nothing has registered; the message names it and what comes near."""


class InvalidArguments(Told, DcronError, ValueError):
    """Arguments that the target's signature does not take. ``field`` is ``"args"`` or ``"kwargs"``."""

    def __init__(self, template: str, /, field: str, **values: object):
        super().__init__(template, **values)
        self.field = field


class InvalidValue(Told, ValueError):
    """What a verb was given and cannot take. ``field`` is the parameter's name, which also begins the text; ``problem`` is the
    text without it."""

    def __init__(self, field: str, template: str, /, **values: object):
        self.field = field
        self.problem = Phrase(template, **values)
        super().__init__(_("%(field)s: %(problem)s"), field=field, problem=self.problem)


class Conflict(Told, DcronError):
    """Somebody else changed the row since it was read; nothing was saved."""


class NotPossible(Told, DcronError):
    """A verb that the run's or job's state does not allow; the message names the state."""


class UnknownRun(DcronError):
    """A worker received a run that its database doesn't have."""


class LockUnavailable(DcronError):
    """The locks cannot be reached or used now: who holds what is unknown. The driver's own error is its cause."""


class PermanentFailure(DcronError):
    """Raised by a job's code: failed, and trying again is no use."""


class RetryLater(DcronError):
    """Raised by a job's code: not now; try again after ``after`` (a timedelta), or after the job's own backoff."""

    def __init__(self, message: str = "", *, after: timedelta | None = None):
        if after is not None and not isinstance(after, timedelta):
            raise TypeError(f"RetryLater: after has to be a timedelta, not {after!r}")
        super().__init__(message)
        self.after = after


class RunCancelled(BaseException):
    """Raised inside a job's code when its run was cancelled.

    Like ``KeyboardInterrupt`` it is no ``Exception``, so that a job's ``except Exception`` does not swallow it.
    """


class RunTimedOut(Exception):
    """Raised inside a job's code at its timeout, where Celery's own soft limit does not (thread pools)."""
