"""Test the import of django-crontab's setting: jobs are due when cron runs its lines."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_dcron import control
from django_dcron.contrib.importers import crontab, django_crontab
from django_dcron.contrib.importers.comparison import compare_entries
from django_dcron.contrib.importers.entry_plans import ComparisonOptions, ImportOutcome
from django_dcron.contrib.importers.names import with_distinct_names
from django_dcron.contrib.importers.other_schedulers import find_changes
from django_dcron.contrib.importers.source_contents import SourceEntry, SourceProblem
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Job
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.targets import commands
from tests import depth
from tests.contrib.importers import public, vixie
from tests.management.calling import call

pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
ECHO = "tests.app.tasks.echo"
COMMAND = "django.core.management.call_command"
JOBS = [
    ("*/5 * * * *", "tests.app.tasks.ok"),
    ("0   4 1 * *", ECHO, ["a", 1], {"verbose": 0}, ">> /tmp/log"),
    ("@daily", ECHO, ">> /tmp/other.log"),
    ("30 3 * * mon-fri", COMMAND, ["clearsessions"]),
    ("0 0 * * 0", COMMAND, ["dumpdata", "auth"], {"indent": 4}, "> /tmp/auth.json"),
]


def read(settings: Settings, *jobs: Any, timezone: str = "UTC") -> list[SourceEntry]:
    settings.CRONJOBS = list(jobs)
    return django_crontab.read(NOW, timezone).entries


def test_entries_with_all_options_are_converted(settings: Settings) -> None:
    ok, echo, other, sessions, dump = read(settings, *JOBS, timezone="Europe/Berlin")
    assert echo.values == {
        "target": ECHO,
        "args": ["a", 1],
        "kwargs": {"verbose": 0},
        "schedule": "0 4 1 * *",
        "timezone": "Europe/Berlin",
        "enabled": True,
        "pause_reason": "",
    }
    assert (other.values["schedule"], other.values["args"]) == ("@daily", [])
    assert (sessions.name, sessions.values["target"]) == ("clearsessions", "command:clearsessions")
    assert (dump.values["args"], dump.values["kwargs"]) == (["auth"], {"indent": 4})
    assert "/tmp/log" in echo.warnings[0]
    assert "/tmp/other.log" in other.warnings[0]
    assert "/tmp/auth.json" in dump.warnings[0]
    assert ok.warnings == ()


def test_schedules_and_suffixes_match_the_lines_of_the_package(
    settings: Settings, tmp_path: Path
) -> None:
    """The real package writes a line of the crontab for each entry, and runs its function."""
    manage = tmp_path / "manage.py"
    manage.touch()
    settings.CRONTAB_DJANGO_MANAGE_PATH = str(manage)
    settings.CRONTAB_DJANGO_PROJECT_NAME = "tests"
    from django_crontab.crontab import Crontab

    entries = read(settings, *JOBS)
    written = Crontab(verbosity=0)
    written.add_jobs()
    lines = crontab.read("".join(written.crontab_lines), "UTC").entries
    schedules = [each.values["schedule"] for each in lines]
    assert [each.values["schedule"] for each in entries] == schedules
    for entry, line in zip(entries, written.crontab_lines, strict=True):
        suffix = line.rpartition(" # ")[0].partition("crontab run ")[2].partition(" ")[2].strip()
        assert bool(suffix) == any(suffix in warning for warning in entry.warnings if suffix)


def test_entries_become_jobs(settings: Settings) -> None:
    settings.CRONJOBS = JOBS
    settings.DCRON_COMMANDS = {"clearsessions": [], "dumpdata": ["args", "--indent"]}
    done = call("import", "django-crontab", "--timezone", "Europe/Berlin", "--apply")
    assert done.code == 0, done.out
    assert set(Job.objects.values_list("target", "schedule", "timezone")) == {
        ("tests.app.tasks.ok", "*/5 * * * *", "Europe/Berlin"),
        (ECHO, "0 4 1 * *", "Europe/Berlin"),
        (ECHO, "@daily", "Europe/Berlin"),
        ("command:clearsessions", "30 3 * * mon-fri", "Europe/Berlin"),
        ("command:dumpdata", "0 0 * * 0", "Europe/Berlin"),
    }
    assert "5 same" in call("import", "django-crontab", "--timezone", "Europe/Berlin").out
    del settings.DCRON_COMMANDS
    assert "DCRON_COMMANDS doesn't list 'clearsessions'" in call("import", "django-crontab").out


def test_import_prints_the_code_and_settings_that_the_jobs_need(settings: Settings) -> None:
    settings.CRONJOBS = [
        ("0 1 * * *", "shop.reports.nightly"),
        ("0 2 * * *", "tests.app.tasks.ok"),
        ("0 3 * * *", COMMAND, ["clearsessions"]),
        ("0 4 * * *", COMMAND, ["dumpdata", "sites", "--all"], {"indent": 2}),
    ]
    done = call("import", "django-crontab", "--timezone", "UTC", "--json").json
    assert done["registrations"] == [
        "from celery import shared_task",
        "import shop.reports",
        'shared_task(name="shop.reports.nightly")(shop.reports.nightly)',
    ]
    assert done["commands"] == {"clearsessions": [], "dumpdata": ["--all", "args", "--indent"]}
    assert "import shop.reports" in call("import", "django-crontab", "--timezone", "UTC").out

    settings.DCRON_COMMANDS = done["commands"]
    done = call("import", "django-crontab", "--timezone", "UTC", "--json").json
    assert (done["commands"], len(done["registrations"])) == ({}, 3)
    assert (done["counts"]["refused"], done["counts"]["create"]) == (1, 3)


def test_command_that_cannot_be_loaded_does_not_stop_the_import(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "load_command", Mock(side_effect=ImportError("no module")))
    settings.CRONJOBS = [("0 4 * * *", COMMAND, ["dumpdata", "sites", "--all"])]
    done = call("import", "django-crontab", "--timezone", "UTC", "--json").json
    assert done["commands"] == {"dumpdata": ["--all"]}


def test_arguments_that_cannot_be_read_stop_neither_the_import_nor_the_doctor(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``add_arguments`` may use the database."""
    monkeypatch.setattr(commands, "argument_names", Mock(side_effect=RuntimeError("no table")))
    settings.CRONJOBS = [
        ("0 3 * * *", "tests.app.tasks.ok"),
        ("0 4 * * *", COMMAND, ["dumpdata", "sites", "--all"]),
    ]
    done = call("import", "django-crontab", "--timezone", "UTC", "--apply", "--json").json
    assert done["commands"] == {"dumpdata": ["--all"]}
    assert find_changes(Job.objects.all(), NOW)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((["dumpdata", "-pS3cr3t", "-a"],), ["-p", "-a"]),
        ((["dumpdata"], {"use_natural_foreign_keys": True}), ["--natural-foreign"]),
        ((["flush"], {"reset_sequences": False}), ["reset_sequences"]),  # a stealth option
    ],
)
def test_suggested_arguments_have_no_values_and_are_those_that_the_setting_needs(
    arguments: tuple[Any, ...], expected: list[str], settings: Settings
) -> None:
    settings.CRONJOBS = [("0 4 * * *", COMMAND, *arguments)]
    done = call("import", "django-crontab", "--timezone", "UTC", "--json").json
    assert done["commands"] == {arguments[0][0]: expected}


def test_function_that_no_code_can_name_is_not_registered(settings: Settings) -> None:
    settings.CRONJOBS = [("0 1 * * *", "shop.cron.import.run")]
    assert call("import", "django-crontab", "--json").json["registrations"] == []


def test_imported_zone_that_this_machine_does_not_know_is_a_problem_of_the_source(
    settings: Settings,
) -> None:
    settings.CRONJOBS = [("30 3 * * *", "tests.app.tasks.ok")]
    call("import", "django-crontab", "--timezone", "UTC", "--apply")
    job = Job.objects.get()
    assert job.imported
    job.imported["values"]["timezone"] = "US/Pacific-New"
    job.save()
    find_changes(Job.objects.all(), NOW)
    refused = call("import", "django-crontab")
    assert (refused.code, "Pass --timezone." in refused.err) == (2, True)


def test_handover_uses_the_given_time_zone(settings: Settings) -> None:
    settings.CRONJOBS = JOBS[:1]
    zone = ("--timezone", "Europe/Berlin")
    assert call("import", "django-crontab", *zone, "--apply", "--disabled").code == 0
    waiting = call("import", "django-crontab", *zone).out
    assert f"manage.py dcron handover django-crontab {'='.join(zone)} --apply" in waiting
    assert call("handover", "django-crontab", *zone, "--apply").code == 0
    job = Job.objects.get()
    assert (job.timezone, job.enabled) == ("Europe/Berlin", True)


def test_job_that_is_restored_after_the_others_were_paused_may_run_twice(
    settings: Settings,
) -> None:
    """The refused handover back recommends the pause and the start of the source."""
    source = "django-crontab"
    settings.CRONJOBS = [("0 3 * * *", "tests.app.tasks.ok"), ("0 4 * * *", ECHO)]
    assert call("import", source, "--timezone", "UTC", "--apply").code == 0
    job = Job.objects.get(target=ECHO)
    control.delete(job)
    assert call("revert", str(job), "--dry-run", "--json").json["cautions"] == []
    advice = call("handover", source, "--back").err
    assert f"pause --source {source} --yes" in advice
    assert call("pause", "--source", source, "--yes", "--reason", "back").code == 0

    (caution,) = call("revert", str(job), "--json").json["cautions"]

    assert source in caution["message"]
    assert Job.objects.get(target=ECHO).enabled


def test_later_import_and_the_doctor_use_the_zone_of_the_last_import(settings: Settings) -> None:
    """The zone is an option, so neither may read the times in the zone of this machine."""
    settings.CRONJOBS = [("30 3 * * *", "tests.app.tasks.ok")]
    assert "Asia/Tokyo" not in call("import", "django-crontab").out
    call("import", "django-crontab", "--timezone", "Asia/Tokyo", "--apply")
    (changes,) = find_changes(Job.objects.all(), NOW)
    assert (changes.source, changes.edited) == ("django-crontab", ())
    again = call("import", "django-crontab").out
    assert "1 same" in again
    assert "Times are read in Asia/Tokyo" in again
    moved = call("import", "django-crontab", "--timezone", "UTC").out
    assert "timezone: Asia/Tokyo -> UTC" in moved


def test_new_schedule_or_second_entry_keeps_the_first_job(settings: Settings) -> None:
    """The job follows its entry. Other entries of the function become other jobs."""
    settings.CRONJOBS = [("0 1 * * *", ECHO)]
    assert call("import", "django-crontab", "--apply").code == 0
    before = Job.objects.get()
    plans = compare_entries(
        read(settings, ("0 2 * * *", ECHO), ("0 3 * * *", ECHO, ["x"]), ("0 4 * * *", ECHO)),
        options=ComparisonOptions(source="django-crontab"),
    )
    assert [(plan.outcome, plan.existing) for plan in plans] == [
        (ImportOutcome.CHANGE, before),
        (ImportOutcome.CREATE, None),
        (ImportOutcome.CREATE, None),
    ]
    assert len({plan.name for plan in plans}) == 3


def test_names_do_not_depend_on_the_order(settings: Settings) -> None:
    jobs = [("0 1 * * *", ECHO, [1]), ("0 1 * * *", ECHO, [2]), ("0 1 * * *", ECHO)]
    names = {each.name: each.values["args"] for each in with_distinct_names(read(settings, *jobs))}
    again = {
        each.name: each.values["args"] for each in with_distinct_names(read(settings, *jobs[::-1]))
    }
    assert names == again
    assert len(names) == 3


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("* * * * *", "not a tuple"),
        (("* * * * *",), "not a tuple"),
        ((5, ECHO), "must be strings"),
        (("@every 5m", ECHO), "not a cron schedule"),
        (("0 0 4 * * *", ECHO), "6 fields"),
        (("61 * * * *", ECHO), "out of range"),
        (("* * * *", ECHO), "fields"),
        (("H * * * *", ECHO), "doesn't support H"),
        (("* * * * *", ECHO, [datetime(2027, 1, 1)]), "args"),  # noqa: DTZ001
        (("* * * * *", ECHO, 5), "args: 5 is not allowed (allowed: a list or tuple)"),
        (("* * * * *", ECHO, None), "args: None is not allowed"),
        (("* * * * *", ECHO, [], "x"), "kwargs: 'x' is not allowed (allowed: a dictionary)"),
        (("* * * * *", ECHO, [], None), "kwargs: None is not allowed"),
        (("* * * * *", COMMAND), "name of a command"),
        (("* * * * *", COMMAND, [5]), "name of a command"),
    ],
)
def test_unsupported_entries_are_refused(job: Any, message: str, settings: Settings) -> None:
    (found,) = read(settings, job)
    assert message in found.refused


def test_entry_for_the_start_of_a_machine_is_omitted(settings: Settings) -> None:
    (found,) = read(settings, ("@reboot", ECHO))
    assert found.omitted
    assert not found.refused


def test_settings_without_an_equivalent_are_noted(settings: Settings) -> None:
    settings.CRONJOBS = JOBS
    settings.CRONTAB_COMMAND_PREFIX = "STAGE=production"
    settings.CRONTAB_COMMAND_SUFFIX = "2>&1"
    settings.CRONTAB_DJANGO_SETTINGS_MODULE = "shop.cron_settings"
    notes = " ".join(django_crontab.read(NOW).notes)
    for text in ("STAGE=production", "2>&1", "shop.cron_settings", "--timezone"):
        assert text in notes


def test_missing_setting_or_wrong_option_is_a_usage_error(settings: Settings) -> None:
    assert call("import", "django-crontab").code == 2
    settings.CRONJOBS = JOBS
    assert call("import", "django-crontab", "--timezone", "Europe/Berlim").code == 2
    assert call("import", "django-q2", "--timezone", "UTC").code == 2
    with pytest.raises(SourceProblem):
        django_crontab.runs_since(NOW)


# --- The time zone of the machine -----------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(django_crontab, "LOCALTIME", tmp_path / "localtime")
    monkeypatch.setattr(django_crontab, "TIMEZONE", tmp_path / "timezone")
    for name in ("zoneinfo/Europe/Berlin", "zoneinfo/Mars/Base"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_time_zone_of_the_machine_wins_over_the_setting(files: Path, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    (files / "localtime").symlink_to(files / "zoneinfo" / "Europe" / "Berlin")
    (files / "timezone").write_text("Asia/Tokyo\n")
    assert django_crontab.machine_zone() == "Europe/Berlin"


def test_zone_of_a_copied_localtime_is_read_from_the_timezone_file(files: Path) -> None:
    (files / "localtime").write_bytes(next(django_crontab.zone_files("America/New_York")))
    with pytest.raises(SourceProblem):
        django_crontab.machine_zone()
    (files / "timezone").write_text("America/New_York\n")
    assert django_crontab.machine_zone() == "America/New_York"


def test_timezone_file_of_another_zone_than_a_copied_localtime_is_a_problem(files: Path) -> None:
    """A container may have the host's localtime and the image's timezone file."""
    (files / "localtime").write_bytes(next(django_crontab.zone_files("America/New_York")))
    (files / "timezone").write_text("Etc/UTC\n")
    with pytest.raises(SourceProblem) as caught:
        django_crontab.machine_zone()
    assert "Etc/UTC" in str(caught.value)
    assert "--timezone" in str(caught.value)


@pytest.mark.parametrize("dangling", [False, True])
def test_machine_without_localtime_uses_utc(files: Path, dangling: bool) -> None:
    """The C library reads only this file."""
    if dangling:
        (files / "localtime").symlink_to(files / "zoneinfo" / "Asia" / "Tokyo")
    (files / "timezone").write_text("America/New_York\n")
    assert django_crontab.machine_zone() == "UTC"


def test_unknown_zone_of_the_machine_is_a_source_problem(files: Path) -> None:
    (files / "localtime").symlink_to(files / "zoneinfo" / "Mars" / "Base")
    with pytest.raises(SourceProblem):
        django_crontab.machine_zone()


# --- The occurrences ------------------------------------------------------------------------------


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    every = st.integers(1, high).map(lambda step: f"*/{step}")
    stepped = st.tuples(span, st.integers(1, high).map(str)).map("/".join)
    part = number.map(str) | span | stepped | every
    return st.lists(part, min_size=1, max_size=2).map(",".join) | st.just("*")


@hypothesis_settings(max_examples=depth.examples(100), deadline=None)
@given(
    text=st.tuples(field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 7)).map(
        " ".join
    )
)
def test_occurrences_match_cron(text: str) -> None:
    horizon = NOW + timedelta(days=40_000)
    try:
        schedule = parse_schedule(text, "UTC")
    except InvalidSchedule:
        assume(False)
    occurrences = list(schedule.occurrences(NOW, horizon, 20))
    assert occurrences == vixie.minutes(text, NOW, len(occurrences))


@public.each_of("django-crontab")
def test_public_schedules_match_cron(given: str, settings: Settings) -> None:
    (found,) = read(settings, (given, ECHO))
    schedule = parse_schedule(found.values["schedule"], found.values["timezone"])
    occurrences = list(schedule.occurrences(NOW, datetime(2090, 1, 1, tzinfo=UTC), public.COUNT))
    assert occurrences == vixie.minutes(given, NOW, public.COUNT)
