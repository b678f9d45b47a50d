"""Test that one statement summarizes several sets of rows as separate queries would."""

from datetime import timedelta

import pytest
from django.db.models import Case, F, Q, When
from pytest_django import DjangoAssertNumQueries

from django_dcron.db.now import database_now
from django_dcron.diagnosis.summaries import (
    Summary,
    SummaryQuery,
    count,
    count_distinct,
    summarize,
    total,
)
from django_dcron.models import Job, Run
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.django_db


def test_one_statement_summarizes_sets_with_their_own_limits(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    now = database_now("default")
    jobs = [make_idle_job(name=name) for name in "ab"]
    for at in range(3):
        for job in jobs:
            due_at = now + timedelta(minutes=at, microseconds=7)
            make_run(job, "pending", due_at=due_at, missed_before=at)
    runs = Run.objects.order_by("due_at")

    with django_assert_num_queries(1):
        found = summarize(
            SummaryQuery(
                runs,
                4,
                {"jobs": count_distinct("job_id"), "missed": total("missed_before")},
                first="due_at",
            ),
            SummaryQuery(
                runs, numbers={"late": count(Case(When(Q(missed_before=2), then=F("pk"))))}
            ),
            SummaryQuery(runs.filter(state="failed"), 10, {"missed": total("missed_before")}),
            SummaryQuery(Job.objects.none(), numbers={"jobs": count("pk")}, first="starts_at"),
            SummaryQuery(Job.objects.order_by()),
        )

    assert found == [
        Summary(4, {"jobs": 2, "missed": 2}, first=now + timedelta(microseconds=7)),
        Summary(6, {"late": 2}),
        Summary(0, {"missed": 0}),
        Summary(0, {"jobs": 0}),
        Summary(number=2),
    ]


def test_only_empty_sets_need_no_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_num_queries(0):
        assert summarize(SummaryQuery(Run.objects.none(), 5)) == [Summary()]
