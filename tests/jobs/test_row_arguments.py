"""The functions of ``control`` take rows. For a name or a key, the error names the remedy."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from django_dcron import control
from django_dcron.models import Job

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
ONE: dict[str, Callable[[Any], object]] = {
    "backfill": lambda job: control.backfill(job, NOON, NOON),
    **{
        name: getattr(control, name)
        for name in ("delete", "pause", "preview", "resume", "save", "trigger")
    },
}
MANY = ("pause_many", "resume_many", "save_many", "trigger_many")


@pytest.mark.parametrize("function", ONE)
@pytest.mark.parametrize(
    ("given", "query"),
    [
        ("tenants/sync-101", "Job.objects.get(namespace='tenants', name='sync-101')"),
        ("sync", "Job.objects.get(namespace='default', name='sync')"),
        (17, "Job.objects.get(pk=17)"),
        (None, "Job.objects.get(...)"),
    ],
)
def test_function_for_a_job_names_the_query(function: str, given: object, query: str) -> None:
    with pytest.raises(TypeError) as caught:
        ONE[function](given)
    assert str(caught.value) == f"{given!r} isn't a Job. Pass a row, such as {query}."


@pytest.mark.parametrize("function", ONE)
def test_function_for_a_job_refuses_a_queryset(function: str) -> None:
    with pytest.raises(TypeError, match="_many"):
        ONE[function](Job.objects.all())


@pytest.mark.parametrize("function", MANY)
@pytest.mark.parametrize("given", ["tenants/sync-101", Job(), ["tenants/sync-101"]])
def test_function_for_jobs_takes_a_list_of_rows(function: str, given: Any) -> None:
    with pytest.raises(TypeError, match=r"rows of Job|isn't a Job"):
        getattr(control, function)(given)


@pytest.mark.parametrize("function", ["cancel", "rerun"])
def test_function_for_a_run_names_the_query(function: str) -> None:
    with pytest.raises(TypeError, match=r"Run\.objects\.get\(pk='0192f0c1'\)"):
        getattr(control, function)("0192f0c1")
    with pytest.raises(TypeError, match="isn't a Run"):
        control.cancel_many(["0192f0c1"])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", ["calendar", "limit"])
@pytest.mark.parametrize("verb", ["save", "delete"])
def test_function_for_a_named_row_names_the_query(verb: str, kind: str) -> None:
    with pytest.raises(TypeError, match=rf"{kind.title()}\.objects\.get\(name='holidays'\)"):
        getattr(control, f"{verb}_{kind}")("holidays")
