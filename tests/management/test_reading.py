"""What people write on the command line: jobs, runs, times, durations, numbers."""

from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.core.management.base import CommandError

from django_dcron.management.dcron import times
from django_dcron.management.dcron.finding import find_job, find_run
from django_dcron.management.dcron.numbers import whole
from django_dcron.models.run import new_run_id
from tests.factories import make_idle_job, make_run

NOW = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("90s", NOW - timedelta(seconds=90)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("+2d", NOW + timedelta(days=2)),
        ("2026-12-01T08:00", NOW - timedelta(hours=1)),
        ("2026-12-01 08:00", NOW - timedelta(hours=1)),
        ("2026-12-01T08:00:00+02:00", NOW - timedelta(hours=3)),
        ("2026-12-01T08:00Z", NOW - timedelta(hours=1)),
        ("2026-12-01", NOW - timedelta(hours=9)),
        ("36500d", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_times(text: str, expected: datetime) -> None:
    assert times.instant("--since", text, NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01", "99999999d", "9999-01-01", "-2h", "+", "1e5", "12:00"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(CommandError, match=r"--since '.*' is (neither|out of range)") as refused:
        times.instant("--since", text, NOW)
    assert refused.value.returncode == 2


def test_a_time_that_clocks_skip_is_kept_in_its_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    found = times.instant("TIME", "2027-03-28T02:30", NOW, berlin)
    assert found.tzinfo is berlin
    assert (found.hour, found.minute) == (2, 30)


def test_durations() -> None:
    assert times.duration("--timeout", "1h 30m") == timedelta(minutes=90)
    for text in ("", "soon", "40000d", "9" * 400 + "d"):
        with pytest.raises(CommandError, match="is not a duration"):
            times.duration("--timeout", text)


def test_whole_numbers() -> None:
    assert whole(1, 10)("10") == 10
    for text in ("0", "11", "-1", "1.5", "ten", "", "٣", "9" * 50):
        with pytest.raises(ArgumentTypeError, match="is not a whole number from 1 to 10"):
            whole(1, 10)(text)


# --- Jobs ---------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_job_by_name_full_name_or_number() -> None:
    job, shop = make_idle_job(name="nightly report"), make_idle_job(name="import", namespace="shop")
    assert find_job("nightly report") == find_job("default/nightly report") == find_job(str(job.pk)) == job
    assert find_job("import") == find_job("shop/import") == shop


@pytest.mark.django_db
def test_a_name_comes_before_a_number_and_default_before_other_namespaces() -> None:
    other = make_idle_job(name="other")
    numeric = make_idle_job(name=str(other.pk))
    assert find_job(str(other.pk)) == numeric
    for namespace in ("a", "b"):
        make_idle_job(name="twice", namespace=namespace)
    with pytest.raises(CommandError, match=r"Several jobs are called 'twice': a/twice, b/twice\."):
        find_job("twice")
    default = make_idle_job(name="twice")
    assert find_job("twice") == default


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nightly", "There is no job 'nightly'; did you mean nightly-report or shop/nightly-import?"),
        (
            "nihgtly-report",
            "There is no job 'nihgtly-report'; did you mean nightly-report or shop/nightly-import?",
        ),
        ("shop/nightly-report", "There is no job 'shop/nightly-report'; did you mean nightly-report?"),
        ("zzz", "There is no job 'zzz'. manage.py dcron list shows them all."),
        ("", "There is no job ''. manage.py dcron list shows them all."),
        ("9" * 40, f"There is no job '{'9' * 40}'. manage.py dcron list shows them all."),
    ],
)
def test_a_job_that_is_not_there(text: str, said: str) -> None:
    make_idle_job(name="nightly-report")
    make_idle_job(name="nightly-import", namespace="shop")
    with pytest.raises(CommandError) as refused:
        find_job(text)
    assert (str(refused.value), refused.value.returncode) == (said, 2)


# --- Runs ---------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_run_by_its_id_or_the_beginning_of_it() -> None:
    job = make_idle_job()
    run = make_run(job, id=UUID("019a9f3c-5b7e-7123-8abc-0123456789ab"))
    make_run(job, id=UUID("019a9f3c-5b7f-7123-8abc-0123456789ab"))
    make_run(job, id=new_run_id())
    for text in (str(run.pk), run.pk.hex, "019a9f3c-5b7e", "019A9F3C5B7E", "019a9f3c-5b7e-7123-8abc-0"):
        assert find_run(text) == run
    with pytest.raises(
        CommandError, match=r"Several runs' ids begin with '019a9f3c': 019a9f3c-5b7e.*Give more"
    ):
        find_run("019a9f3c")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("019a9f3", "too short"),
        ("nightly-report", "is no run's id"),
        ("0" * 33, "is no run's id"),
        ("019a9f3c-5b7e", "There is no run"),
        ("00000000-0000-0000-0000-000000000000", "There is no run"),
    ],
)
def test_a_run_that_is_not_there(text: str, said: str) -> None:
    make_run(make_idle_job())
    with pytest.raises(CommandError, match=said) as refused:
        find_run(text)
    assert refused.value.returncode == 2
