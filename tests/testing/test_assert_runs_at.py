"""``assert_runs_at`` accepts a job in any form, and shows actual and expected times."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import shared_task

from django_dcron import control, cron, targets
from django_dcron.exceptions import InvalidSchedule, InvalidValue
from django_dcron.models import Calendar, Job
from django_dcron.testing import ManualClock, assert_runs_at, run_due, set_clock
from tests.factories import make_job
from tests.refusals import refusal
from tests.testing.conftest import NINE

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = timedelta(hours=1)


def berlin(*fields: int) -> datetime:
    return datetime(*fields, tzinfo=BERLIN)  # type: ignore[misc, arg-type]


def failure(*given: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        assert_runs_at(*given, **options)
    return str(raised.value)


def test_schedule_text_needs_no_database() -> None:
    assert_runs_at("0 12 * * *", [NINE + 3 * HOUR, NINE + 27 * HOUR], after=NINE)
    assert_runs_at("0 10 * * *", [NINE], after=NINE - HOUR, timezone="Europe/Berlin")
    assert_runs_at("TZ=Europe/Berlin 0 10 * * *", [NINE], after=NINE - HOUR, timezone="Asia/Tokyo")
    assert_runs_at("@never", [], after=NINE)
    with set_clock(NINE):
        assert_runs_at("@hourly", [NINE + HOUR])


def test_schedule_text_uses_the_project_time_zone_by_default(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert_runs_at("0 10 * * *", [NINE], after=NINE - HOUR)


def test_difference_is_shown_in_the_job_time_zone() -> None:
    message = failure(
        "30 2 * * *",
        [berlin(2026, 3, 28, 2, 30), datetime(2026, 3, 29, 2, 30, tzinfo=UTC)],
        after=berlin(2026, 3, 28),
        timezone="Europe/Berlin",
    )
    assert message.splitlines() == [
        "30 2 * * *, At 02:30 (Europe/Berlin)",
        "The next occurrences after Sat 2026-03-28 00:00:00+0100, in Europe/Berlin:",
        "  expected                      actual",
        "  Sat 2026-03-28 02:30:00+0100  Sat 2026-03-28 02:30:00+0100",
        "! Sun 2026-03-29 04:30:00+0200  Sun 2026-03-29 03:00:00+0200",
    ]


@pytest.mark.parametrize(
    ("expected", "line"),
    [
        ([NINE + HOUR, NINE + 2 * HOUR], "! Mon 2026-03-02 11:00:00+0000  none"),
        ([], "! none      Mon 2026-03-02 10:00:00+0000"),
        ([NINE + HOUR / 2], "! Mon 2026-03-02 09:30:00+0000  Mon 2026-03-02 10:00:00+0000"),
    ],
)
def test_difference_shows_missing_unexpected_and_different_times(
    expected: Iterable[datetime], line: str
) -> None:
    assert line in failure("@at 2026-03-02T10:00Z", expected, after=NINE).splitlines()


def test_expected_times_must_be_in_order() -> None:
    failure("@hourly", [NINE + 2 * HOUR, NINE + HOUR], after=NINE)


def test_invalid_arguments_are_refused() -> None:
    naive = datetime(2026, 3, 2, 10)  # noqa: DTZ001 (a naive datetime)
    with refusal(InvalidValue, "naive", field="expected", value="2026-03-02T10:00:00"):
        assert_runs_at("@hourly", [naive], after=NINE)
    with refusal(InvalidValue, "naive", field="after", value="2026-03-02T10:00:00"):
        assert_runs_at("@hourly", [], after=naive)
    with refusal(InvalidSchedule, "out_of_range"):
        assert_runs_at("61 * * * *", [], after=NINE)
    with pytest.raises(ValueError, match=r"H \* \* \* \*.*H "):
        assert_runs_at("H * * * *", [], after=NINE)
    with pytest.raises(TypeError, match=r"^5 .*@cron"):
        assert_runs_at(5, [], after=NINE)  # type: ignore[arg-type]


@pytest.mark.django_db
def test_job_calendar_start_and_end_are_applied_but_not_jitter(clock_at_nine: ManualClock) -> None:
    control.save_calendar(Calendar(name="off", dates="2026-03-04"))
    given: dict[str, Any] = {
        "name": "report",
        "schedule": "0 12 * * *",
        "starts_at": NINE + 24 * HOUR,
        "ends_at": NINE + 96 * HOUR,
        "calendar_id": "off",
        "jitter": HOUR,
        "target": "tests.app.tasks.ok",
    }
    noons = [datetime(2026, 3, day, 12, tzinfo=UTC) for day in (3, 5)]
    for job in (Job(**given), make_job(**given)):
        assert_runs_at(job, noons)
        message = failure(job, [*noons, NINE])
        assert message.startswith("job report: 0 12 * * *, At 12:00")
        assert message.endswith("! Mon 2026-03-02 09:00:00+0000  none")
        assert_runs_at(job, [noon - HOUR for noon in noons], timezone="Europe/Berlin")
        assert job.timezone == "UTC"
    control.pause(job)
    assert_runs_at(job, noons)


@pytest.mark.django_db
def test_interval_of_a_job_keeps_its_phase(clock_at_nine: ManualClock) -> None:
    job = make_job(schedule="@every 40m")
    clock_at_nine.advance(HOUR)
    assert_runs_at(job, [NINE + 2 * HOUR * 40 / 60])
    assert_runs_at("@every 40m", [NINE + HOUR + HOUR * 40 / 60])


def test_declared_function_or_task_is_accepted() -> None:
    with targets.isolated_registry():

        @cron("0 10 * * *", timezone="Europe/Berlin")
        @shared_task
        def task() -> None: ...

        @cron("H 10 * * *", name="one", ends_at=NINE + 24 * HOUR)
        @cron("@hourly", name="two")
        def function() -> None: ...

        def undeclared() -> None: ...

        assert_runs_at(task, [NINE], after=NINE - HOUR)
        with pytest.raises(ValueError, match=": two, one"):
            assert_runs_at(function, [], after=NINE)
        with pytest.raises(ValueError, match=r"@cron.*control\.update_or_create"):
            assert_runs_at(undeclared, [], after=NINE)


@pytest.mark.django_db
def test_run_due_runs_the_jobs_declared_for_a_function(clock_at_nine: ManualClock) -> None:
    with targets.isolated_registry():
        calls = []

        @cron("@hourly", name="one")
        @cron("30 * * * *", name="two", namespace="shop")
        def function() -> None:
            calls.append("called")

        runs = run_due(at=NINE + HOUR, jobs=[function])
        assert [str(run.job) for run in runs] == ["shop/two", "one"]
        control.pause(Job.objects.get(name="one"))
        assert [str(run.job) for run in run_due(at=NINE + 2 * HOUR, jobs=[function])] == [
            "shop/two"
        ]
        assert len(calls) == 3


@pytest.mark.django_tasks
@pytest.mark.django_db
def test_declared_django_task_is_accepted(clock_at_nine: ManualClock) -> None:
    from tests.tasked.tasks import fetch, report

    with targets.isolated_registry():
        cron("@hourly", args=["Berlin"])(report)
        assert_runs_at(report, [NINE + HOUR])
        (run,) = run_due(at=NINE + HOUR, jobs=[report])
        assert (str(run.job), run.state, run.job.target) == (
            "report",
            "succeeded",
            "tests.tasked.tasks.report",
        )
        with pytest.raises(ValueError, match="@cron"):
            run_due(jobs=[fetch])


@pytest.mark.django_db
def test_invalid_declaration_is_refused_when_run(clock_at_nine: ManualClock) -> None:
    with targets.isolated_registry():

        @cron("@hourly", queue="no queue")
        def function() -> None: ...

        with pytest.raises(
            ValueError,
            match=r"function .*: invalid function queue",
        ):
            run_due(jobs=[function])
