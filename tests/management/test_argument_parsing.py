"""Test the parsing of command-line arguments: jobs, runs, times, durations, numbers."""

from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.core.management.base import CommandError

from django_dcron.management.dcron import option_values
from django_dcron.management.dcron.exits import HOW_TO_CREATE_A_JOB
from django_dcron.management.dcron.lookup import ID_SHOWN, find_job, find_run
from django_dcron.management.dcron.option_values import parse_whole_number
from django_dcron.models.run import new_run_id
from django_dcron.targets import cron, isolated_registry
from tests.factories import make_idle_job, make_run
from tests.management.calling import call

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
def test_time_option_accepts_relative_and_absolute_times(text: str, expected: datetime) -> None:
    assert option_values.parse_time_option("--since", text, NOW, UTC) == expected


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01", "99999999d", "9999-01-01", "-2h", "+", "1e5", "12:00"]
)
def test_time_option_rejects_invalid_time(text: str) -> None:
    with pytest.raises(
        CommandError, match=r"--since '.*' (\(allowed: a time|is out of range)"
    ) as refused:
        option_values.parse_time_option("--since", text, NOW, UTC)
    assert refused.value.returncode == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", NOW + timedelta(hours=2)),
        ("+2h", NOW + timedelta(hours=2)),
        ("1w", NOW + timedelta(days=7)),
        ("18:00", datetime(2026, 12, 1, 17, tzinfo=UTC)),
        ("9:00", datetime(2026, 12, 2, 8, tzinfo=UTC)),
        ("10:00", datetime(2026, 12, 2, 9, tzinfo=UTC)),
        ("18:00Z", datetime(2026, 12, 1, 18, tzinfo=UTC)),
        ("2026-12-24T18:00", datetime(2026, 12, 24, 17, tzinfo=UTC)),
    ],
)
def test_until_accepts_durations_and_times_ahead(text: str, expected: datetime) -> None:
    """In Berlin, it is 10:00."""
    assert option_values.parse_until_option(text, NOW, ZoneInfo("Europe/Berlin")) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2027-10-31T00:15Z", "2027-10-31T00:30Z"),
        ("2027-10-31T00:45Z", "2027-10-31T01:30Z"),  # the clocks show 2:30 again
        ("2027-10-31T01:30Z", "2027-11-01T01:30Z"),
        ("2027-03-28T00:45Z", "2027-03-28T01:30Z"),  # the clocks skip 2:30
        ("2027-03-28T01:45Z", "2027-03-29T00:30Z"),
    ],
)
def test_until_is_the_next_time_at_a_clock_change(now: str, expected: str) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    found = option_values.parse_until_option("2:30", datetime.fromisoformat(now), berlin)
    assert found.astimezone(UTC) == datetime.fromisoformat(expected)


@pytest.mark.parametrize("text", ["now", "0s", "2026-11-30", "24:00", "18", "18:60", "soon"])
def test_until_rejects_other_times(text: str) -> None:
    with pytest.raises(CommandError, match="--until") as refused:
        option_values.parse_until_option(text, NOW, UTC)
    assert refused.value.returncode == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Sun 2027-10-31 02:30:00 CEST", datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
        ("2027-10-31 02:30:00 CET", datetime(2027, 10, 31, 1, 30, tzinfo=UTC)),
        ("2027-10-31 02:30 UTC", datetime(2027, 10, 31, 2, 30, tzinfo=UTC)),
        ("2027-10-31 02:30:00+02:00", datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
    ],
)
def test_time_option_accepts_printed_times(text: str, expected: datetime) -> None:
    found = option_values.parse_time_option("--since", text, NOW, ZoneInfo("Europe/Berlin"))
    assert found.astimezone(UTC) == expected


@pytest.mark.parametrize("text", ["2026-12-01 09:00:00 EST", "2026-12-01 09:00:00 CEST"])
def test_abbreviation_that_the_zone_does_not_have_then_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match=r"--since .*(EST|CEST).*Europe/Berlin") as refused:
        option_values.parse_time_option("--since", text, NOW, ZoneInfo("Europe/Berlin"))
    assert refused.value.returncode == 2


def test_skipped_local_time_is_kept() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    found = option_values.parse_time_option("TIME", "2027-03-28T02:30", NOW, berlin)
    assert found.tzinfo is berlin
    assert (found.hour, found.minute) == (2, 30)


def test_duration_accepts_units_and_rejects_invalid_text() -> None:
    assert option_values.parse_duration_option("--timeout", "1h 30m") == timedelta(minutes=90)
    for text in ("", "soon", "40000d", "9" * 400 + "d"):
        with pytest.raises(CommandError, match="--timeout"):
            option_values.parse_duration_option("--timeout", text)


def test_whole_number_accepts_only_integers_in_range() -> None:
    assert parse_whole_number(1, 10)("10") == 10
    for text in ("0", "11", "-1", "1.5", "ten", "", "٣", "9" * 50):
        with pytest.raises(ArgumentTypeError, match=r" 1 .* 10"):
            parse_whole_number(1, 10)(text)


# --- Jobs ---------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_job_is_found_by_name_full_name_or_id() -> None:
    job, shop = make_idle_job(name="nightly report"), make_idle_job(name="import", namespace="shop")
    assert (
        find_job("nightly report")
        == find_job("default/nightly report")
        == find_job(str(job.pk))
        == job
    )
    assert find_job("import") == find_job("shop/import") == shop


@pytest.mark.django_db
def test_job_name_precedes_id_and_default_namespace_precedes_others() -> None:
    other = make_idle_job(name="other")
    numeric = make_idle_job(name=str(other.pk))
    assert find_job(str(other.pk)) == numeric
    for namespace in ("a", "b"):
        make_idle_job(name="twice", namespace=namespace)
    with pytest.raises(CommandError, match=r"'twice': a/twice, b/twice\."):
        find_job("twice")
    default = make_idle_job(name="twice")
    assert find_job("twice") == default


@pytest.mark.django_db
def test_error_for_declared_job_without_row_names_sync() -> None:
    with isolated_registry():
        cron("@daily", name="fresh")(find_job)
        with pytest.raises(CommandError, match="dcron sync"):
            find_job("fresh")
        cron("@daily", name="unfit", kwargs={"unknown": 1})(find_job)
        with pytest.raises(CommandError, match=r"sync refuses it: .*'unknown'"):
            find_job("unfit")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "nightly",
            "Unknown job 'nightly'. Did you mean nightly-report or shop/nightly-import?",
        ),
        (
            "nihgtly-report",
            "Unknown job 'nihgtly-report'. Did you mean nightly-report?",
        ),
        (
            "shop/nightly-report",
            "Unknown job 'shop/nightly-report'. Did you mean nightly-report?",
        ),
        ("zzz", "Unknown job 'zzz'. To list all jobs: manage.py dcron list"),
        (
            "days=30",
            "Unknown job 'days=30'. To pass arguments to a run: --kwargs '{\"days\": 30}'",
        ),
        ("", "Unknown job ''. To list all jobs: manage.py dcron list"),
        ("9" * 40, f"Unknown job '{'9' * 40}'. To list all jobs: manage.py dcron list"),
    ],
)
def test_unknown_job_error_suggests_names(text: str, message: str) -> None:
    make_idle_job(name="nightly-report")
    make_idle_job(name="nightly-import", namespace="shop")
    with pytest.raises(CommandError) as refused:
        find_job(text)
    assert (str(refused.value), refused.value.returncode) == (message, 2)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["rerun", "nightly"], "dcron history nightly"),
        (["rerun", "cafe"], "dcron history shop/cafe"),
        (["history", "01a2"], "at least 8 characters"),
        (["add", "nightly"], HOW_TO_CREATE_A_JOB),
        (["set", "weekly", "schedule=@weekly"], f"dcron list\n{HOW_TO_CREATE_A_JOB}"),
    ],
)
def test_wrong_kind_of_argument_has_a_remedy(arguments: list[str], remedy: str) -> None:
    make_idle_job(name="nightly")
    make_idle_job(name="cafe", namespace="shop")
    code, _out, error = call(*arguments)
    assert code == 2
    assert remedy in error


# --- Runs ---------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_run_is_found_by_id_or_unique_prefix() -> None:
    job = make_idle_job()
    run = make_run(job, id=UUID("019a9f3c-5b7e-7123-8abc-0123456789ab"))
    make_run(job, id=UUID("019a9f3c-5b7f-7123-8abc-0123456789ab"))
    make_run(job, id=new_run_id())
    for text in (
        str(run.pk),
        run.pk.hex,
        "019a9f3c-5b7e",
        "019A9F3C5B7E",
        "019a9f3c-5b7e-7123-8abc-0",
    ):
        assert find_run(text) == run


@pytest.mark.django_db
@pytest.mark.parametrize(("number", "shown"), [(2, 2), (5, 5), (6, 5)])
def test_ambiguous_run_id_names_the_runs_that_it_may_mean(number: int, shown: int) -> None:
    """Runs that are created in the same millisecond have the same first 13 characters."""
    job = make_idle_job(name="report")
    runs = [
        make_run(job, id=UUID(f"019a9f3c-5b7e-712{last}-8abc-0123456789ab"))
        for last in range(number)
    ]
    with pytest.raises(CommandError, match="'019a9f3c-5b7e'") as refused:
        find_run("019a9f3c-5b7e")
    lines = [line.split(None, 1) for line in str(refused.value).splitlines()[1:-1]]
    assert lines[:shown] == [[str(run.pk), str(run)] for run in runs[:shown]]
    assert len(lines) - shown == (number > shown)
    for run in runs:
        assert find_run(str(run.pk)[:ID_SHOWN]) == run


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("019a9f3", "too short"),
        ("nightly-report", "isn't a run id"),
        ("0" * 33, "isn't a run id"),
        ("019a9f3c-5b7e", "Unknown run"),
        ("00000000-0000-0000-0000-000000000000", "Unknown run"),
    ],
)
def test_unknown_or_invalid_run_id_is_refused(text: str, message: str) -> None:
    make_run(make_idle_job())
    with pytest.raises(CommandError, match=message) as refused:
        find_run(text)
    assert refused.value.returncode == 2


@pytest.mark.django_db
@pytest.mark.parametrize("option", ["--rea", "--unt", "--js"])
def test_abbreviated_options_are_refused(option: str) -> None:
    make_idle_job(name="a")
    result = call("pause", "a", option, "2h")
    assert (result.code, option in result.err) == (2, True)


@pytest.mark.django_db
@pytest.mark.parametrize("command", ["pause", "freeze"])
def test_end_is_a_time_or_a_duration(command: str) -> None:
    job = make_idle_job(name="a")
    what = ["pause", "a"] if command == "pause" else ["freeze"]
    for options in (["--for", "30m"], ["--until", "30m"]):
        assert call(*what, "--reason", "deploy", *options).code == 0
    assert call(*what, "--reason", "deploy", "--for", "30m", "--until", "30m").code == 2
    if command == "pause":
        job.refresh_from_db()
        assert job.paused_until is not None


@pytest.mark.django_db
@pytest.mark.parametrize("command", ["history", "audit"])
def test_period_ends_after_its_start(command: str) -> None:
    given = ("--since", "2026-03-01T10:00", "--until", "2026-03-01T09:00")
    result = call(command, *given)
    assert (result.code, "must be before" in result.err) == (2, True)


@pytest.mark.django_db
@pytest.mark.parametrize("option", ["--for", "--until"])
def test_empty_end_is_refused(option: str) -> None:
    make_idle_job(name="a")
    assert call("pause", "a", option, "").code == 2
