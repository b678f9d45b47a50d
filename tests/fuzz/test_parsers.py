"""Test that each parser of external text handles 1,000 characters within 50 ms of CPU time.

The parser reads or refuses the text. Texts come from forms, the REST API, URLs, imports, settings
and command lines. A slow parser holds the GIL and so blocks all threads of its process.

The limit doesn't depend on the machine. ``PER_CHARACTER`` iterations of a plain loop stand for the
50 ms and are measured beside each parser. A text ten times as long may take ten times as long, so a
quadratic parser fails.

YAML isn't measured, because PyYAML takes longer. A child process with its own limits reads it
(``tests/untrusted``).
"""

import json
import logging
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.admin.options import IncorrectLookupParameters
from django.http import QueryDict
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_dcron import targets
from django_dcron.admin.action_forms import InstantField, UntilField
from django_dcron.admin.durations import DurationFormField
from django_dcron.admin.json_input import JsonFormField
from django_dcron.admin.lists import time_filter
from django_dcron.admin.lists.lookups import check_lookups
from django_dcron.contrib.alerts.channels import SCHEME
from django_dcron.contrib.ics import read_ics
from django_dcron.contrib.importers import celery_entry, crontab, django_q, names
from django_dcron.contrib.importers.croniter_text import from_croniter
from django_dcron.contrib.rest.fields import UtcTimeField
from django_dcron.contrib.rest.jobs.listing import JobQuery
from django_dcron.contrib.rest.pagination import PageOrder, read_cursor
from django_dcron.contrib.rest.runs.listing import RunQuery
from django_dcron.jobs.portable import quoted_json, read_document
from django_dcron.jobs.representation import ValueFormat, from_json
from django_dcron.management.dcron import option_values
from django_dcron.management.dcron.option_values import parse_whole_number
from django_dcron.models import Job, Run
from django_dcron.models.calendar import NAME as CALENDAR_NAME
from django_dcron.models.calendar import read_dates
from django_dcron.models.job_fields import NAME, QUEUE
from django_dcron.monitoring.http.server import Address, _path
from django_dcron.policies.alerting import read_rules
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.zones import check_zone
from django_dcron.targets import check_queue, get
from django_dcron.targets.redaction import redact_secrets
from django_dcron.utils.control_characters import escape_control_characters
from django_dcron.utils.durations import parse_duration_text
from django_dcron.utils.log_lines import escape_log_text
from django_dcron.utils.untrusted import pickles
from django_dcron.utils.url_credentials import without_credentials, without_urls
from tests import depth
from tests.contrib.test_ics import file_of

pytestmark = [pytest.mark.fuzz, pytest.mark.django_db]

NOW = datetime(2026, 11, 22, tzinfo=UTC)
MAX_VALUES = 20_000
"""The limit that ``Limits.of`` sets for a pickle of 1,000 characters."""


def job_field(name: str) -> Callable[[str], object]:
    """Return a parser that validates a job's field of this name.

    The admin, the REST API, imports and code share this validation.
    """
    values = {"name": "report", "target": "tests.app.tasks.echo", "schedule": "@never"}
    return lambda text: Job(**values | {name: text}).clean_fields()


def item_of_job_field(name: str) -> Callable[[str], object]:
    """Return a parser that validates an item of the list in a job's field."""
    return lambda text: Job(
        name="report", target="x", schedule="@never", **{name: [text]}
    ).clean_fields()


def query(serializer: Any, name: str) -> Callable[[str], object]:
    return lambda text: serializer(data={name: text}).is_valid()


def read_events(text: str) -> object:
    content = file_of(f"DTSTART;VALUE=DATE:20261124 {text}")
    return read_ics(content, zone=UTC, first=NOW.date(), last=NOW.date())


def looked_up(model: Any, name: str) -> Callable[[str], object]:
    def look_up(text: str) -> None:
        with suppress(IncorrectLookupParameters):
            check_lookups(model, QueryDict(f"{name}=x").lists())
            check_lookups(model, [(name, [text])])

    return look_up


def crontab_of_beat(text: str) -> object:
    from celery.schedules import crontab as celery_crontab

    fields = (text.split() + ["*"] * 5)[:5]
    return celery_entry.crontab_text(celery_crontab(*fields))


PARSERS: dict[str, Callable[[str], object]] = {
    "duration": parse_duration_text,
    "duration of a form": DurationFormField().clean,
    "duration of a document": partial(from_json, ValueFormat.DURATION),
    "duration of a command line": lambda text: option_values.parse_duration_option(
        "--timeout", text
    ),
    "jitter": job_field("jitter"),
    "instant of a form": InstantField().clean,
    "instant of a document": partial(from_json, ValueFormat.TIME),
    "instant of the REST API": UtcTimeField().to_internal_value,
    "instant of a command line": lambda text: option_values.parse_time_option(
        "--since", text, NOW, UTC
    ),
    "instant of a URL": time_filter._parse_time,
    "end of a pause": UntilField().clean,
    "number of a command line": parse_whole_number(1, 500),
    "schedule": parse_schedule,
    "schedule of a job": job_field("schedule"),
    "interval": lambda text: parse_schedule(f"@every {text}"[:255]),
    "moment": lambda text: parse_schedule(f"@at {text}"[:255]),
    "zone of a schedule": lambda text: parse_schedule(f"CRON_TZ={text} * * * * *"[:255]),
    "recurrence rule": lambda text: parse_schedule(f"@rrule 2026-01-01 {text}"[:255]),
    "part of a recurrence rule": lambda text: parse_schedule(
        f"@rrule 2026-01-01 FREQ=MONTHLY;BYDAY={text}"[:255]
    ),
    "hashed schedule": lambda text: parse_schedule(text[:255], hash_key="default/report"),
    "croniter's schedule": from_croniter,
    "Celery's schedule": crontab_of_beat,
    "time zone": check_zone,
    "time zone of a job": job_field("timezone"),
    "calendar": read_dates,
    "icalendar": read_events,
    "holidays": lambda text: read_dates(f"holidays DE-{text}"),
    "name of a job": NAME,
    "name of a queue": QUEUE,
    "queue of a job": check_queue,
    "name of a calendar": CALENDAR_NAME,
    "name of an import": names.clean_name,
    "target": get,
    "target of a job": job_field("target"),
    "arguments of a command": lambda text: targets.check_arguments(
        "command:dcron_stock", [text], {}
    ),
    "retry on": item_of_job_field("retry_on"),
    "tags": item_of_job_field("tags"),
    "after": lambda text: Job(
        name="a", target="x", schedule="@never", after={text: "ended"}
    ).clean_fields(),
    "alert rule": lambda text: read_rules(
        [{"on": "late", "by": text, "to": "ops"}], ["ops"], of_job=True
    ),
    "alert rules of the settings": lambda text: read_rules(
        [{"on": text, "to": [text]}], [text], of_job=False
    ),
    "URL of a channel": SCHEME.match,
    "address of the probes": Address.parse,
    "path of a probe": _path,
    "JSON of a form": JsonFormField().clean,
    "secrets in arguments": lambda text: redact_secrets([text, {text: text}]),
    "cursor of a page": lambda text: read_cursor(text, PageOrder("id", ("pk",)), Job),
    "query of jobs": query(JobQuery, "search"),
    "tag of a query": query(JobQuery, "tag"),
    "time of a query": query(RunQuery, "since"),
    "lookup of a time": looked_up(Run, "scheduled_at__gte"),
    "lookup of numbers": looked_up(Run, "attempt__in"),
    "lookup of a job": looked_up(Job, "name__contains"),
    "crontab": lambda text: crontab.read(text, "UTC"),
    "command of a crontab": lambda text: crontab.read(f"* * * * * {text}", "UTC"),
    "JSON document": read_document,
    "job of a document": lambda text: read_document(
        json.dumps({"version": 1, "jobs": [{text: text}]})
    ),
    "value of a document, in an error": quoted_json,
    "pickle": lambda text: pickles.read_pickle(text.encode(), MAX_VALUES),
    "text in a pickle": lambda text: pickles.read_pickle(pickle.dumps([text]), MAX_VALUES),
    "arguments of django-q2": lambda text: django_q._args(SimpleNamespace(args=text)),
    "keyword arguments of django-q2": lambda text: django_q._kwargs(SimpleNamespace(kwargs=text)),
    "log record": escape_log_text,
    "text of a terminal": escape_control_characters,
    "credentials of an error": without_credentials,
    "URLs of an error": without_urls,
}
PIECES = (
    " ",
    "\t",
    "\u3000",
    "\n",
    "9",
    "1d",
    "1 ",
    "1.",
    "0:",
    "-",
    "+",
    ",",
    "*/",
    "1,",
    "1-2,",
    "H",
    "H(",
    "H(0-9)/",
    "L",
    "#",
    "@",
    "a",
    "a ",
    "a=",
    "a=1 ",
    'A="',
    "A='",
    "-x ",
    "cd x;",
    "cd x ",
    "sudo ",
    "(",
    "[",
    "[[], ",
    '{"a":',
    "{a: ",
    "\\%",
    "%",
    "'",
    ":",
    "..",
    "//",
    "://",
    "a://",
    "'a:/",
    "SAT-",
    "12-25,",
    "-1MO,",
    "BYMONTHDAY=",
    ";",
    "holidays DE\n",
    "shadow:",
    "command:",
    "shell:",
    "é",
    "&a ",
    "*a ",
    "- ",
    "? ",
    "!!",
    "<<: ",
    "\x1b",
    "\r",
    "K\x01",
    "(l",
    "]\x94",
)
BEGINNINGS = ("1", "1d", "* * * * * ", "2026-11-22 ", "a=")
LENGTHS = {
    1_000: (("", ""), ("", "!"), *((text, "x") for text in BEGINNINGS)),
    10_000: (("", "!"),),
}
"""The texts before and after the repeated piece, by length."""
PER_CHARACTER = 1_000
"""Iterations of the loop per character: 50 ms per 1,000 characters at 20 million per second."""
LONGEST_RANDOM = 1_000
RANDOM_TEXTS = depth.examples(90)


def seconds_of(work: Callable[[], object], tries: int = 3) -> float:
    """Return the least CPU time of some tries in seconds.

    It measures this thread only, so other processes don't count.
    """
    return min(_seconds_once(work) for _ in range(tries))


def _seconds_once(work: Callable[[], object]) -> float:
    started = time.thread_time()
    with suppress(Exception):  # a refusal is as valid as a result
        work()
    return time.thread_time() - started


def seconds_allowed(length: int) -> float:
    text = "x" * length
    return PER_CHARACTER * seconds_of(lambda: sum(ord(char) for char in text))


def too_long(parser: Callable[[str], object], text: str, allowed: float) -> str:
    """Return the loop iterations per character if the parser takes too long, otherwise "".

    A measurement above ``allowed`` is repeated once.
    """
    if _seconds_once(lambda: parser(text)) <= allowed:
        return ""
    allowed = seconds_allowed(len(text))
    taken = seconds_of(lambda: parser(text))
    return (
        f"{taken / allowed * PER_CHARACTER:.0f} iterations per character" if taken > allowed else ""
    )


@pytest.fixture(params=PARSERS.values(), ids=PARSERS)
def parser(request: pytest.FixtureRequest) -> Iterator[Callable[[str], object]]:
    with suppress(Exception):  # the first use imports modules and fills caches
        request.param("1")
    logging.disable(logging.CRITICAL)
    yield request.param
    logging.disable(logging.NOTSET)


def test_parser_handles_repeated_text_in_linear_time(parser: Callable[[str], object]) -> None:
    slow = {}
    for length, wrappers in LENGTHS.items():
        allowed = seconds_allowed(length)
        for piece in PIECES:
            for before, after in wrappers:
                text = f"{before}{(piece * length)[:length]}{after}"
                if shown := too_long(parser, text, allowed):
                    slow[f"{length}: {text[:20]!r}"] = shown
    assert slow == {}


def test_parser_handles_random_text_in_linear_time(parser: Callable[[str], object]) -> None:
    pieces = st.sampled_from(PIECES) | st.text(max_size=3)
    texts = st.lists(st.tuples(pieces, st.integers(1, 60)), min_size=1, max_size=30)

    allowed = seconds_allowed(LONGEST_RANDOM)

    @hypothesis_settings(
        max_examples=RANDOM_TEXTS,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(texts.map(lambda parts: "".join(piece * times for piece, times in parts)))
    def parse(text: str) -> None:
        assert too_long(parser, text.ljust(LONGEST_RANDOM)[:LONGEST_RANDOM], allowed) == ""

    parse()
