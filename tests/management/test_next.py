"""Test ``dcron next``: occurrences of a job or a schedule, with intervals and warnings."""

import re

import pytest
from django.utils import timezone
from pytest_django import Settings

from django_dcron import control
from tests.factories import make_idle_job, make_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db

MARCH = "2027-03-20"


def test_next_shows_schedule_in_two_zones_with_intervals_and_warning() -> None:
    code, out, err = call(
        "next", "30 2 * * SUN", "--timezone", "Europe/Berlin", "-n", "3", "--after", MARCH
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == ["30 2 * * SUN (Europe/Berlin)", "At 02:30, on Sunday (Europe/Berlin)", ""]
    assert lines[3:7] == [
        "Europe/Berlin                 UTC                          Interval",
        "Sun 2027-03-21 02:30:00 CET   Sun 2027-03-21 01:30:00 UTC         -",
        "Sun 2027-03-28 03:00:00 CEST  Sun 2027-03-28 01:00:00 UTC    6d 23h",
        "Sun 2027-04-04 02:30:00 CEST  Sun 2027-04-04 00:30:00 UTC    6d 23h",
    ]
    assert lines[7].startswith("! ")
    assert " 2027-03-28" in lines[7]


def test_next_of_schedule_in_zone_of_site_has_one_time_column() -> None:
    out = call("next", "@daily", "-n", "2", "--after", MARCH).out
    assert "Sat 2027-03-20 00:00:00" not in out, "strictly after"
    assert "Sun 2027-03-21 00:00:00 UTC         -" in out
    assert "Mon 2027-03-22 00:00:00 UTC     1d 0h" in out


def test_schedule_without_a_zone_is_in_the_zone_of_the_site(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    out = call("next", "@daily", "-n", "1", "--after", MARCH).out
    assert "Sun 2027-03-21 00:00:00 JST         -" in out


def test_next_shows_occurrences_of_job() -> None:
    make_job(name="nightly report", schedule="30 3 * * *", timezone="Asia/Tokyo")
    out = call("next", "nightly report", "-n", "1", "--after", MARCH).out
    assert out.startswith("nightly report: 30 3 * * * (Asia/Tokyo)\n")
    assert "Sat 2027-03-20 03:30:00 JST  Fri 2027-03-19 18:30:00 UTC" in out
    with timezone.override("Asia/Tokyo"):
        out = call("next", "nightly report", "-n", "1", "--after", MARCH).out
    assert re.search(r"^Sat 2027-03-20 03:30:00 JST +-$", out, re.MULTILINE)
    in_new_york = ("--timezone", "America/New_York", "-n", "1")
    out = call("next", "nightly report", *in_new_york, "--after", "2027-03-19T14:00").out
    assert out.startswith("nightly report: 30 3 * * * (Asia/Tokyo)\n")
    assert "Sat 2027-03-20 03:30:00 JST  Fri 2027-03-19 14:30:00 EDT" in out


def test_argument_is_schedule_if_valid_unless_namespace_is_given() -> None:
    make_job(name="@hourly", schedule="30 3 * * *")
    assert call("next", "@hourly", "--json").json["job"] is None
    assert call("next", "default/@hourly", "--json").json["job"]["name"] == "@hourly"


def test_argument_may_be_a_sentence_unless_a_job_has_the_name() -> None:
    document = call("next", "every weekday at 9:30", "--timezone", "Asia/Tokyo", "--json").json
    shown = (document["job"], document["schedule"], document["timezone"])
    assert shown == (None, "30 9 * * MON-FRI", "Asia/Tokyo")
    assert call("next", "every 2 weeks", "-n", "1").out.startswith("@rrule ")
    assert call("next", "daily").code == 2, "a single word is the name of a job"
    make_job(name="every hour", schedule="30 3 * * *")
    assert call("next", "every hour", "--json").json["job"]["name"] == "every hour"


def test_next_of_paused_job_shows_occurrences_and_notice() -> None:
    control.pause(make_idle_job(name="report"), "stocktaking")
    code, out, _err = call("next", "report")
    assert code == 0
    assert "The job is paused." in out


def test_json_contains_occurrences_and_warnings() -> None:
    document = call(
        "next", "CRON_TZ=Asia/Kolkata 0 9 * * *", "-n", "2", "--after", MARCH, "--json"
    ).json
    assert document == {
        "version": 1,
        "job": None,
        "schedule": "CRON_TZ=Asia/Kolkata 0 9 * * *",
        "timezone": "Asia/Kolkata",
        "words": "At 09:00 (Asia/Kolkata)",
        "enabled": True,
        "occurrences": [
            {
                "at": "2027-03-20T03:30:00Z",
                "local": "2027-03-20T09:00:00+05:30",
                "gap_seconds": None,
            },
            {
                "at": "2027-03-21T03:30:00Z",
                "local": "2027-03-21T09:00:00+05:30",
                "gap_seconds": 86400.0,
            },
        ],
        "cautions": [],
    }
    caution = call("next", "* * * * * *", "--json").json["cautions"][0]
    assert caution["code"] == "frequent"


def test_next_without_occurrences_exits_with_1() -> None:
    code, out, err = call("next", "@at 2020-01-01T00:00", "--json")
    assert (code, err) == (1, "There are no further occurrences.")
    assert '"occurrences": []' in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nightly"], "'nightly'.*nightly-report"),
        (["@dayly"], r"'@dayly'.*'@daily'\? Not a job: "),
        (["tomorrow at 14:30"], r"@at \d{4}-\d\d-\d\dT14:30\.$"),
        (["tomorrow"], r"'tomorrow'.*@at \d{4}-\d\d-\d\dTHH:MM\.$"),
        (["tonight"], r"@at YYYY-MM-DDTHH:MM\.$"),
        (["61 * * * *"], r"'?61.*0-59\)\. .*'61 \* \* \* \*'"),
        (["2w"], r"'2w'.*@rrule.*\. .*'2w'"),
        (
            ["@daily", "--timezone", "Europe/Berlim"],
            "'Europe/Berlim'.*'Europe/Berlin'",
        ),
        (["nightly-report", "--timezone", "Nowhere"], "'Nowhere'"),
        (["@daily", "--after", "noon"], "--after 'noon'"),
    ],
)
def test_next_rejects_invalid_arguments(arguments: list[str], message: str) -> None:
    make_idle_job(name="nightly-report")
    code, out, err = call("next", *arguments)
    assert (code, out) == (2, "")
    assert re.search(message, err), err
