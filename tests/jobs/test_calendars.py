"""Calendars of jobs: how changes to a calendar or its jobs affect cursors, runs and claims."""

import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import OperationalError, connection, transaction
from django.db.models import ProtectedError
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis.load import planned_load
from django_dcron.diagnosis.lookahead import look_ahead
from django_dcron.diagnosis.why import explanation, nearby
from django_dcron.diagnosis.why.explanation import explain
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.exceptions import Conflict, InvalidCalendar, NotPossible
from django_dcron.jobs import calendars, placement
from django_dcron.jobs.bulk_skips import why_not_resumed
from django_dcron.jobs.cursors import move_outdated_cursors, retry_quarantined
from django_dcron.models import Calendar, Cursor, Job, Run
from django_dcron.models.calendar import read_dates
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.scheduler.claim import claim
from django_dcron.schedules import public_holidays
from tests.factories import make_idle_job, make_job
from tests.jobs.conftest import cursor_of, reread
from tests.management.calling import call
from tests.refusals import refusal
from tests.threads import in_threads

DAY = timedelta(days=1)
FAR = "2150-01-01"
"""A date that no test uses."""

pytestmark = pytest.mark.django_db


def make_calendar(dates: str = FAR, name: str = "closed") -> Calendar:
    return control.save_calendar(Calendar(name=name, dates=dates))


def current_dates() -> str:
    """Return dates that exclude all occurrences a test can claim, even if it runs past midnight."""
    today = database_now("default").date()
    return f"{today - DAY}..{today + 2 * DAY}"


def claim_ahead() -> None:
    claim(range(64), database_now("default"), node="a")


def count_future_runs(job: Job) -> int:
    return Run.objects.filter(
        job=job, state="pending", scheduled_at__gt=cursor_of(job).placed_at
    ).count()


def is_after_current_dates(job: Job) -> bool:
    next_at = cursor_of(job).next_at
    return next_at is not None and next_at.date() > database_now("default").date() + DAY


# --- claims -------------------------------------------------------------------------------------


def test_no_run_is_claimed_on_an_excluded_date() -> None:
    kept, excluded = (
        make_job(calendar=make_calendar()),
        make_job(calendar=make_calendar(current_dates(), "now")),
    )
    claim_ahead()
    assert count_future_runs(kept) >= 5
    assert not Run.objects.filter(job=excluded).exists()
    assert is_after_current_dates(excluded)
    assert cursor_of(excluded).problem == ""


def test_moved_occurrence_runs_on_the_next_allowed_date() -> None:
    today = datetime.combine(database_now("default").date(), time(12), UTC)
    first = today + 3 * DAY
    calendar = make_calendar(f"{first.date()}..{(first + DAY).date()}")
    job = make_job(
        schedule=f"0 12 {first.day} {first.month} *", calendar=calendar, calendar_policy="next_day"
    )
    assert cursor_of(job).next_at == first + 2 * DAY
    assert control.preview(job, 1) == [first + 2 * DAY]
    claim([*range(64)], first + 2 * DAY, node="a")
    assert Run.objects.get(job=job).scheduled_at == first + 2 * DAY


def test_calendar_adds_no_queries_to_a_claim() -> None:
    counts = []
    for calendar in (None, make_calendar()):
        for _ in range(3):
            make_job(calendar=calendar)
        with CaptureQueriesContext(connection) as queries:
            claim_ahead()
        counts.append(len(queries))
    assert counts[0] == counts[1]


@pytest.mark.django_db(transaction=True)
def test_two_nodes_can_claim_jobs_of_the_same_calendar_concurrently() -> None:
    """A claim locks only its cursors. A lock on the calendar would block other jobs' claims."""
    if not connection.features.has_select_for_update_skip_locked:
        assert connection.vendor == "sqlite"  # one transaction there excludes all others
        return
    calendar = make_calendar()
    jobs = [make_job(calendar=calendar) for _ in range(2)]
    own, other = ([job.pk % 64] for job in jobs)
    with transaction.atomic():
        claim(own, database_now("default"), node="a")
        in_threads(lambda: claim(other, database_now("default"), node="b"))
        assert Run.objects.filter(job=jobs[0]).exists()
    assert Run.objects.filter(job=jobs[1]).exists()


# --- changes ------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_changed_calendar_withdraws_future_runs() -> None:
    calendar, other = make_calendar(), make_job(calendar=make_calendar(name="other"))
    job = make_job(calendar=calendar)
    claim_ahead()
    assert count_future_runs(job) >= 5
    calendar.dates = current_dates()
    control.save_calendar(calendar)
    assert placement.matches_definition(cursor_of(job), reread(job))
    assert (count_future_runs(job), is_after_current_dates(job)) == (0, True)
    assert count_future_runs(other) >= 5
    calendar.dates = FAR
    control.save_calendar(calendar)
    claim_ahead()
    assert count_future_runs(job) >= 5


@pytest.mark.parametrize("how", ["update", "save"])
def test_move_outdated_cursors_applies_a_calendar_changed_without_control(how: str) -> None:
    calendar = make_calendar()
    job = make_job(calendar=calendar)
    claim_ahead()
    if how == "update":
        Calendar.objects.filter(pk=calendar.pk).update(dates=current_dates())
    else:
        calendar.dates = current_dates()
        calendar.save()
    cursor = cursor_of(job)
    assert not placement.matches_definition(cursor, reread(job))
    assert cursor not in Cursor.objects.current()
    before = Run.objects.filter(job=job).count()
    claim([*range(64)], database_now("default") + DAY / 24, node="a")
    assert Run.objects.filter(job=job).count() == before  # the old dates claim nothing
    assert move_outdated_cursors(database_now("default"), Job.objects.all()) == 1
    assert move_outdated_cursors(database_now("default"), Job.objects.all()) == 0
    assert (count_future_runs(job), is_after_current_dates(job)) == (0, True)
    assert cursor_of(job) in Cursor.objects.current()


def test_occurrences_due_by_the_old_dates_are_claimed() -> None:
    calendar = make_calendar()
    job = make_job(
        schedule="* * * * *", calendar=calendar, misfire_policy="run_all", misfire_grace=DAY
    )
    ten_ago = database_now("default").replace(second=0, microsecond=0) - timedelta(minutes=10)
    Cursor.objects.filter(pk=job.pk).update(next_at=ten_ago, placed_at=ten_ago - DAY)
    Calendar.objects.filter(pk=calendar.pk).update(dates=current_dates())
    move_outdated_cursors(database_now("default"), Job.objects.all())
    assert Run.objects.filter(job=job).count() in (11, 12)
    assert is_after_current_dates(job)


@pytest.mark.parametrize(
    "change", [{"calendar": "now"}, {"calendar": None}, {"calendar_policy": "next_day"}]
)
def test_changing_the_calendar_of_a_job_moves_its_cursor(change: dict[str, Any]) -> None:
    make_calendar(current_dates(), "now")
    job = make_idle_job(calendar=make_calendar("02-01"))
    placed = cursor_of(job).placed_at
    for name, value in change.items():
        setattr(job, "calendar_id" if name == "calendar" else name, value)
    control.save(job)
    cursor = cursor_of(job)
    assert cursor.placed_at > placed
    assert (cursor.calendar_dates, cursor.calendar_policy) == (
        job.calendar_dates,
        job.calendar_policy,
    )
    Job.objects.filter(pk=job.pk).update(calendar="closed", calendar_policy="skip")
    assert move_outdated_cursors(database_now("default"), Job.objects.all()) == 1
    assert placement.matches_definition(cursor_of(job), reread(job))


@pytest.mark.django_db(transaction=True)
def test_calendar_is_saved_if_moving_the_cursors_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("the connection broke")

    monkeypatch.setattr(calendars, "_move_cursors_of_calendar", fail)
    control.save_calendar(Calendar(name="free", dates="2026-12-24"))
    assert Calendar.objects.get().dates == "2026-12-24"


def test_changed_calendar_description_keeps_cursor_and_runs() -> None:
    calendar = make_calendar()
    job = make_job(calendar=calendar)
    claim_ahead()
    claimed, placed = count_future_runs(job), cursor_of(job).placed_at
    calendar.description = "Ask Ada."
    control.save_calendar(calendar)
    assert move_outdated_cursors(database_now("default"), Job.objects.all()) == 0
    assert (count_future_runs(job), cursor_of(job).placed_at) == (claimed, placed)


def test_change_of_letter_case_is_detected() -> None:
    """Otherwise, a database with a case-insensitive collation would miss the change."""
    calendar = make_calendar("sat # A")
    job, renamed = make_job(calendar=calendar), make_job(name="name")
    Calendar.objects.filter(pk=calendar.pk).update(dates="SAT # a")
    Job.objects.filter(pk=renamed.pk).update(name="Name")
    assert move_outdated_cursors(database_now("default"), Job.objects.all()) == 2
    for each in (job, renamed):
        assert placement.matches_definition(cursor_of(each), reread(each))
    assert cursor_of(job) in Cursor.objects.current()


def job_without_occurrences(calendar: Calendar) -> Job:
    """Return a job for which the calendar excludes every occurrence."""
    job = make_job(schedule="0 0 1 1 *", calendar=calendar)
    calendar.dates = "01-01"
    control.save_calendar(calendar)
    move_outdated_cursors(database_now("default"), Job.objects.all())
    return reread(job)


def test_job_is_disabled_if_its_calendar_excludes_every_occurrence() -> None:
    job = job_without_occurrences(make_calendar())
    assert (job.enabled, job.pause_reason) == (False, EXHAUSTED)


def test_finished_job_can_be_resumed_once_its_calendar_has_changed() -> None:
    calendar = make_calendar()
    job = job_without_occurrences(calendar)
    assert why_not_resumed(job)
    with pytest.raises(NotPossible):
        control.resume(job)
    calendar.dates = "01-02"
    control.save_calendar(calendar)
    assert why_not_resumed(reread(job)) is None
    assert (
        "The job is finished. These are its occurrences if it is resumed now."
        in call("next", str(job)).out
    )
    control.resume(reread(job))
    assert reread(job).enabled


def test_invalid_calendar_quarantines_its_jobs_until_it_is_fixed() -> None:
    calendar = make_calendar()
    job, other = make_job(calendar=calendar), make_job()
    Calendar.objects.filter(pk=calendar.pk).update(dates="XMAS")
    move_outdated_cursors(database_now("default"), Job.objects.all())
    assert cursor_of(job).problem.startswith("Line 1: ")
    assert "'XMAS'" in cursor_of(job).problem
    claim_ahead()
    assert count_future_runs(other) >= 5
    Calendar.objects.filter(pk=calendar.pk).update(dates="12-25")
    move_outdated_cursors(database_now("default"), Job.objects.all())
    assert cursor_of(job).problem == ""


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "dates", "field", "message"),
    [
        ({"schedule": "@every 1h"}, "12-25", "calendar", "elapsed time"),
        (
            {"schedule": "0 0 25 12 *"},
            "12-25",
            "calendar",
            "0 0 25 12 *",
        ),
        ({}, "1970-01-01..2199-12-31", "calendar", ""),
        ({"schedule": "61 * * * *"}, "12-25", "schedule", "61"),
        ({"calendar_policy": "later"}, "12-25", "calendar_policy", "later"),
    ],
)
def test_job_with_an_unsuitable_calendar_is_refused(
    fields: dict[str, Any], dates: str, field: str, message: str
) -> None:
    calendar = make_calendar(dates)
    with pytest.raises(ValidationError) as refused:
        make_job(**{"schedule": "@daily", "calendar": calendar} | fields)
    assert list(refused.value.message_dict) == [field]
    assert message in refused.value.message_dict[field][0]
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"dates": "SAT\n12-32"}, "dates", "'12-32'"),
        ({"dates": "MON-SUN"}, "dates", "every date"),
        ({"dates": ""}, "dates", "blank"),
        ({"name": "a/b"}, "name", "_ . - @ :"),
        ({"dates": "holidays XX"}, "dates", "XX"),
    ],
)
def test_invalid_calendar_is_refused(given: dict[str, str], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        control.save_calendar(Calendar(**{"name": "closed", "dates": "12-25"} | given))
    assert list(refused.value.message_dict) == [field]
    assert message in refused.value.message_dict[field][0]
    assert not Calendar.objects.exists()


def test_saving_a_stale_calendar_raises_conflict() -> None:
    make_calendar("12-25")
    stale, current = Calendar.objects.get(), Calendar.objects.get()
    current.dates = "12-24"
    control.save_calendar(current)
    stale.dates = "12-26"
    with pytest.raises(Conflict):
        control.save_calendar(stale)
    assert (stale.version, Calendar.objects.get().dates) == (1, "12-24")
    with pytest.raises(ValidationError) as taken:
        make_calendar("12-26")
    assert [error.code for error in taken.value.error_dict["name"]] == ["unique"]
    assert Calendar.objects.get().dates == "12-24"
    Calendar.objects.all().delete()
    with pytest.raises(Conflict):
        control.save_calendar(current)


def test_calendar_used_by_a_job_cannot_be_deleted() -> None:
    job = make_job(name="report", calendar=make_calendar())
    with pytest.raises(ProtectedError):
        Calendar.objects.get().delete()
    with refusal(NotPossible, "in_use", calendar="closed", job="report"):
        control.delete_calendar(Calendar.objects.get())
    control.delete(job)
    control.delete_calendar(Calendar.objects.get())
    assert not Calendar.objects.exists()


def test_deleting_a_stale_calendar_raises_conflict() -> None:
    make_calendar()
    stale, current = Calendar.objects.get(), Calendar.objects.get()
    control.save_calendar(current)
    with refusal(Conflict, "changed"):
        control.delete_calendar(stale, expected_version=stale.version)
    assert Calendar.objects.exists()
    control.delete_calendar(stale)
    with refusal(Conflict, "deleted"):
        control.delete_calendar(current)


@pytest.mark.django_db(transaction=True)
def test_using_a_calendar_while_it_is_deleted_is_atomic() -> None:
    outcomes: list[str] = []

    def do(action: Callable[[], object]) -> None:
        try:
            action()
            outcomes.append("done")
        except (NotPossible, ValidationError) as error:
            outcomes.append(type(error).__name__)

    calendar = make_calendar()
    in_threads(
        lambda: do(lambda: control.delete_calendar(calendar)),
        lambda: do(lambda: make_idle_job(calendar_id="closed")),
    )
    assert sorted(outcomes) in (["NotPossible", "done"], ["ValidationError", "done"])
    assert Calendar.objects.count() == Job.objects.count()


def test_line_endings_of_dates_are_normalized() -> None:
    assert make_calendar("  SAT \r\n12-25\r\n\r\n").dates == "SAT\n12-25"


# --- explanations and forecasts -----------------------------------------------------------------


def test_explanation_names_the_excluded_date() -> None:
    make_calendar("2026-05-01")
    for policy, code in (("skip", "excluded_skipped"), ("next_day", "excluded_moved")):
        job = make_job(schedule="0 9 * * *", calendar_id="closed", calendar_policy=policy)
        Job.objects.filter(pk=job.pk).update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
        answer = explain(reread(job), datetime(2026, 5, 1, 9, tzinfo=UTC))
        assert answer.verdict is WhyVerdict.EXCLUDED
        assert answer.sentences[0].code == code
        assert answer.sentences[0].params == {"calendar": "closed", "date": "2026-05-01"}
        elsewhere = explain(reread(job), datetime(2026, 5, 1, 10, tzinfo=UTC))
        assert elsewhere.verdict is WhyVerdict.NO_OCCURRENCE


def test_explanation_names_the_end_of_the_excluded_time() -> None:
    make_calendar("02:00-04:00")
    excluded, end = (datetime(2026, 5, 1, hour, 30 * (hour < 4), tzinfo=UTC) for hour in (2, 4))
    codes = {}
    for policy in ("skip", "window_end"):
        job = make_job(schedule="*/15 * * * *", calendar_id="closed", calendar_policy=policy)
        Job.objects.filter(pk=job.pk).update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
        answer = explain(reread(job), excluded)
        assert answer.verdict is WhyVerdict.EXCLUDED
        codes[policy] = answer.sentences[0].code
        notes = [each for each in explain(reread(job), end).sentences if each.code == "moved_here"]
        assert [note.params["count"] for note in notes] == ([8] if policy == "window_end" else [])
    assert codes == {"skip": "excluded_time_skipped", "window_end": "excluded_until_end"}


def test_explanation_names_no_first_time_if_too_many_occurrences_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_calendar("02:00-04:00")
    job = make_job(schedule="*/15 * * * *", calendar_id="closed", calendar_policy="window_end")
    for module in (nearby, explanation):
        monkeypatch.setattr(module, "MOVED_SHOWN", 5)
    answer = explain(reread(job), datetime(2026, 5, 1, 4, tzinfo=UTC))
    (note,) = (each for each in answer.sentences if each.code == "moved_here")
    assert note.params == {"count": 5, "calendar": "closed"}


def test_next_date_is_refused_for_a_calendar_with_times() -> None:
    make_calendar("MON-FRI 22:00-06:00")
    with pytest.raises(ValidationError) as caught:
        make_job(schedule="0 9 * * *", calendar_id="closed", calendar_policy="next_day")
    assert set(caught.value.message_dict) == {"calendar"}


def test_job_runs_once_after_the_excluded_time() -> None:
    make_calendar("only MON-FRI 08:00-18:00")
    job = make_job(schedule="0 * * * *", calendar_id="closed", calendar_policy="window_end")
    ahead = look_ahead(job, 3, after=datetime(2026, 5, 1, 16, 30, tzinfo=UTC))
    assert [f"{each.at:%a %H:%M}" for each in ahead.occurrences] == [
        "Fri 17:00",
        "Mon 08:00",
        "Mon 09:00",
    ]
    assert sum(planned_load(date(2026, 4, 27), UTC).hours) == 50


def test_look_ahead_and_planned_load_respect_the_calendar() -> None:
    make_calendar("2026-05-01..2026-05-03")
    job = make_job(schedule="0 9 * * *", calendar_id="closed")
    ahead = look_ahead(job, 2, after=datetime(2026, 4, 30, tzinfo=UTC))
    assert [each.at.day for each in ahead.occurrences] == [30, 4]
    assert ahead.words == "At 09:00, except on dates that the calendar excludes"
    assert sum(planned_load(date(2026, 4, 29), UTC).hours) == 4
    calendar = Calendar.objects.get()
    calendar.dates = "2026-05-01"
    control.save_calendar(calendar)
    move_outdated_cursors(database_now("default"), Job.objects.all())
    assert sum(planned_load(date(2026, 4, 29), UTC).hours) == 6


# --- public holidays ----------------------------------------------------------------------------


def test_holidays_of_a_country_and_a_subdivision_are_excluded() -> None:
    germany, bavaria = read_dates("holidays DE"), read_dates("holidays de-by")
    assert germany.excludes(date(2026, 10, 3))
    assert not germany.excludes(date(2026, 1, 6))
    assert bavaria.excludes(date(2026, 1, 6))  # Epiphany
    assert bavaria.excludes(date(2026, 6, 4))  # Corpus Christi
    # New Year's Day of 2022, observed on the day before.
    assert read_dates("holidays US").excludes(date(2021, 12, 31))
    # Holidays of that year are unknown. This isn't an error.
    assert not read_dates("holidays IN").excludes(date(2190, 6, 3))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("holidays XX", ["Line 1: ", "country XX", "ISO 3166"]),
        ("holidays DEX", ["country DEX", "did you mean DE"]),
        ("holidays DE-XX", ["DE-XX", "DE: BB, BE, BW, BY, "]),
        ("holidays EE-X", ["EE-X", "EE, "]),
    ],
)
def test_unknown_country_is_refused_with_suggestions(text: str, values: list[str]) -> None:
    with pytest.raises(InvalidCalendar) as refused:
        read_dates(text)
    assert refused.value.code == "unknown_holidays"
    assert [value for value in values if value not in str(refused.value)] == []


def test_missing_holidays_package_is_reported_with_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_job(calendar=make_calendar("holidays DE"))
    monkeypatch.setitem(sys.modules, "holidays", None)
    read_dates.cache_clear()
    public_holidays._known.cache_clear()
    for refused in (
        lambda: make_calendar("holidays FR", "other"),
        lambda: make_job(calendar_id="closed"),
    ):
        with pytest.raises(ValidationError, match=r"pip install django-dcron\[holidays\]"):
            refused()
    claim_ahead()
    assert cursor_of(job).problem.endswith("pip install django-dcron[holidays]")
    assert read_dates("SAT").excludes(date(2026, 1, 3))
    monkeypatch.undo()
    retry_quarantined(database_now("default"), Job.objects.all())
    claim_ahead()
    assert (cursor_of(job).problem, count_future_runs(job) >= 5) == ("", True)
