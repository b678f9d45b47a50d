"""Say why a failed attempt wasn't followed by another, if its row and definition show it.

Invariants:

- A sentence states only what is certain. The row records the class of the exception, but neither
  its base classes nor a ``PermanentFailure`` that was raised from it.
"""

from __future__ import annotations

from django.utils.translation import gettext as _

from django_dcron.exceptions import InvalidArguments, PermanentFailure, UnknownTarget
from django_dcron.jobs.representation import Document
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.policies.retry import exception_name, find_refused_retry_note

PERMANENT = frozenset(map(exception_name, (PermanentFailure, UnknownTarget, InvalidArguments)))
"""The names of the exceptions that the retry policy never retries."""
PERMANENT_FAILURE = exception_name(PermanentFailure)
"""The beginning of the line of a traceback that names this exception."""


def why_run_not_retried(run: Run, latest: Attempt | None) -> str:
    """Return why the failed run wasn't retried after its latest attempt; empty if not certain."""
    if run.state != State.FAILED or latest is None or latest.number != run.attempt:
        return ""
    content = latest.definition.content if latest.definition else {}
    return why_not_retried(
        latest.number, latest.outcome, latest.exception_class, latest.traceback, content
    )


def why_not_retried(
    number: int, outcome: str, exception_class: str, traceback: str, definition: Document
) -> str:
    """Return why attempt ``number``, the last one of a failed run, wasn't retried.

    Returns an empty string if the reason isn't certain. If the run had no further attempts, returns
    the note in the traceback that the task asked for one, if any. ``definition`` is the definition
    that the attempt executed, or empty if it is unrecorded.
    """
    if outcome != Outcome.FAILED or not exception_class:
        return ""
    if number >= definition.get("max_attempts", 0):
        return find_refused_retry_note(traceback)
    never, allowed = definition["never_retry_on"], definition["retry_on"]
    name = exception_class.rpartition(".")[2]
    values = {"exception": name}
    if exception_class in PERMANENT:
        return _("Not retried: the attempt raised %(exception)s.") % values
    names = frozenset({name, exception_class})
    if names & set(never):
        return _("Not retried: never_retry_on of the job lists %(exception)s.") % values
    is_mentioned = "PermanentFailure" in traceback
    is_raised = any(line.startswith(PERMANENT_FAILURE) for line in traceback.splitlines())
    if is_raised and not (never or allowed):
        # Nothing else forbids a retry: PermanentFailure was raised from the exception.
        return _("Not retried: the attempt raised %(exception)s.") % {
            "exception": "PermanentFailure"
        }
    if never or is_mentioned:
        return ""  # a base class may be listed, or the failure may be permanent
    if allowed and not names & set(allowed):
        return _("Not retried: retry_on of the job doesn't list %(exception)s.") % values
    return ""
