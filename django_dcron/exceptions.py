"""The exceptions that django-dcron raises."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django_dcron.utils.counts import number_of
from django_dcron.utils.messages import Language, TranslatableText
from django_dcron.utils.messages import gettext_noop as _

NAIVE_DATETIME = _("%(value)s has no time zone. Use an aware datetime.")
"""The message of the ``InvalidValue`` for a datetime without time zone."""


class DcronError(Exception):
    """The base class of django-dcron's errors."""


class TranslatableError(Exception):
    """An exception with a translatable message: a template and its values.

    ``str`` of the exception is always English, so that logs and stored texts are, too. ``code``
    identifies the problem, and ``params`` has the values in the message.
    """

    code = "invalid"

    def __init__(self, template: str, /, *, code: str = "", **values: object):
        self.code = code or self.code
        self.text = TranslatableText(template, **values)
        super().__init__(str(self.text))

    @property
    def params(self) -> dict[str, object]:
        """The values in the message, by name."""
        return self.text.values

    def translate(self, language: Language) -> str:
        """Return the message in a language.

        With ``django.utils.translation``, that is the active language.
        """
        return self.text.translate(language)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling.

        The default recreates an exception from its text alone, which fails here. A process pool
        waits forever for an exception that can't be unpickled.
        """
        return _recreate, (type(self), self.args), self.__dict__


def _recreate(kind: type[TranslatableError], args: tuple[Any, ...]) -> TranslatableError:
    return kind.__new__(kind, *args)


class InvalidSchedule(TranslatableError, DcronError, ValueError):
    """A schedule is invalid. The message gives the field, the value and the allowed values."""


class InvalidTimeZone(InvalidSchedule):
    """A time zone is unknown. The message names it and a similar time zone."""


class InvalidCalendar(InvalidSchedule):
    """The dates of a calendar are invalid.

    The message gives the line, the value and the allowed values.
    """


class UnknownTarget(TranslatableError, DcronError, LookupError):
    """The target of a job isn't registered. The message names it and similar targets."""


class InvalidArguments(TranslatableError, DcronError, ValueError):
    """The target doesn't accept the arguments. ``field`` is ``"args"`` or ``"kwargs"``."""

    def __init__(self, template: str, /, field: str, *, code: str = "", **values: object):
        super().__init__(template, code=code, **values)
        self.field = field


class SignatureMismatch(DcronError, TypeError):
    """The code that a worker has loaded doesn't accept the arguments of the job.

    Either the worker hasn't loaded the code that accepts them, or the arguments weren't changed
    with the code.
    """


class InvalidValue(TranslatableError, ValueError):
    """A function doesn't accept the value of a parameter.

    ``field`` is the name of the parameter. The message begins with it. ``problem`` is the message
    without the name.
    """

    def __init__(self, field: str, template: str, /, *, code: str = "", **values: object):
        self.field = field
        self.problem = TranslatableText(template, **values)
        super().__init__(_("%(field)s: %(problem)s"), code=code, field=field, problem=self.problem)

    @property
    def params(self) -> dict[str, object]:
        return self.problem.values


class Conflict(TranslatableError, DcronError):
    """Another process or user has changed the row since it was read. Nothing was saved."""


class BulkSaveError(DcronError):
    """Some of several jobs can't be saved, so none was saved.

    ``errors`` maps the positions of the refused jobs to their errors.
    """

    def __init__(self, errors: Mapping[int, Exception]):
        super().__init__(errors)
        self.errors = dict(errors)

    def __str__(self) -> str:
        position, error = next(iter(self.errors.items()))
        refused = number_of(len(self.errors), "job")
        return f"{refused} can't be saved, so no job was saved. Position {position}: {error}"


class NotPossible(TranslatableError, DcronError):
    """The state of the run or job doesn't allow the action. The message names the state."""


class IdempotencyKeyReused(NotPossible):
    """The job has a run with the idempotency key that was requested with other arguments."""


class UnknownRun(DcronError):
    """A worker received a run that its database doesn't have."""


class LockUnavailable(DcronError):
    """The lock server is unreachable, so lock holders are unknown.

    The cause is the driver's error.
    """


class PermanentFailure(DcronError):
    """Raised by a job's code to fail the run without a retry."""


class RetryLater(DcronError):
    """Raised by a job's code to request another attempt.

    The attempt is due after ``after`` (a timedelta), by default after the job's backoff.
    """

    def __init__(self, message: str = "", *, after: timedelta | None = None):
        if after is not None and not isinstance(after, timedelta):
            raise TypeError(f"RetryLater: after must be a timedelta, not {after!r}")
        super().__init__(message)
        self.after = after


class RunCancelled(BaseException):
    """Raised in a job's code that must stop, because its run was cancelled, for example.

    It isn't an ``Exception``, so ``except Exception`` in the job's code doesn't catch it.
    """


class RunTimedOut(Exception):
    """Raised in a job's code at its timeout, if a worker other than Celery's executes it."""
