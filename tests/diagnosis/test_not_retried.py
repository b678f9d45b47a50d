"""Why a failed run wasn't retried, as far as its last attempt and definition show it."""

from typing import Any

import pytest

from django_dcron.diagnosis.not_retried import PERMANENT, why_not_retried
from django_dcron.execution import failure
from django_dcron.policies.retry import exception_name, refused_retry_note

DEFINITION = {"max_attempts": 3, "retry_on": [], "never_retry_on": []}
CLASS = "requests.exceptions.HTTPError"


def reason(
    exception_class: str = CLASS,
    *,
    number: int = 1,
    outcome: str = "failed",
    traceback: str = "",
    **definition: Any,
) -> str:
    return why_not_retried(number, outcome, exception_class, traceback, DEFINITION | definition)


def test_permanent_exceptions_are_those_of_the_execution() -> None:
    assert {exception_name(each) for each in failure.PERMANENT} == PERMANENT


@pytest.mark.parametrize("exception_class", sorted(PERMANENT))
def test_permanent_failure_is_named(exception_class: str) -> None:
    assert exception_class.rpartition(".")[2] in reason(exception_class)


@pytest.mark.parametrize("listed", ["HTTPError", CLASS])
def test_listed_exception_is_named(listed: str) -> None:
    assert "never_retry_on" in reason(never_retry_on=[listed])
    assert "HTTPError" in reason(never_retry_on=[listed])
    assert reason(retry_on=[listed]) == ""


def test_exception_outside_retry_on_is_named() -> None:
    assert "retry_on of the job doesn't list HTTPError" in reason(retry_on=["OSError"])


def test_permanent_failure_that_was_raised_from_the_exception_is_named() -> None:
    assert "PermanentFailure" in reason(traceback="django_dcron.exceptions.PermanentFailure")


def test_last_attempt_whose_task_asked_for_a_retry_is_explained() -> None:
    note = refused_retry_note(3)
    assert reason(number=3, traceback=f"OSError: no answer\n{note}\n") == note
    assert reason(number=3, traceback=f"{note}\nOSError: no answer\n") == "", "of a cause"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"never_retry_on": ["RequestException"]},
        {"never_retry_on": ["RequestException"], "retry_on": ["OSError"]},
        {"retry_on": ["OSError"], "traceback": "django_dcron.exceptions.PermanentFailure"},
        {"traceback": "    raise error  # not a django_dcron.exceptions.PermanentFailure"},
        {"retry_on": ["OSError"], "outcome": "lost", "exception_class": ""},
        {"retry_on": ["OSError"], "outcome": "timed_out"},
        {"retry_on": ["OSError"], "number": 3},
    ],
)
def test_uncertain_reason_is_omitted(given: dict[str, Any]) -> None:
    assert reason(**given) == ""


def test_attempt_without_a_definition_has_no_reason() -> None:
    assert why_not_retried(1, "failed", CLASS, "", {}) == ""
