"""No URL of the admin, the REST API or the probes can cause a server error.

Each route is requested with hostile texts as each of its parameters. Each page is requested with
hostile query strings, built from the model's columns and from the page's own parameters. All tests
share a fixed budget of requests.
"""

import random
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from django_dcron import control
from django_dcron.exceptions import InvalidValue
from django_dcron.models import Calendar, Node
from tests.factories import make_idle_job, make_run
from tests.refusals import refusal

BUDGET = 240
"""Number of requests. The same routes always get the same requests."""
LOOKUPS = ("", "__exact", "__lt", "__gte", "__in", "__range", "__year", "__isnull", "__contains")
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
TEXTS = (
    "\0",
    "a\0b",
    "x" * 5_000,
    "é" * 300,
    "\u202e%0d%0a",
    "_00",
    "'\"<>",
    "..",
    "%",
    b"\xff",
    b"\xed\xa0\x80",
)
NUMBERS = ("9" * 30, "9" * 5_000, "-1", str(2**63), str(2**31), "1e999", "NaN", "²", "٣", "0x1", "")
TIMES = (
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31",
    "0001-01-01",
    "2026-11-22T18:00+23:59",
    "2026-11-22T18:00:00.123456789-23:59",
    "18:00+23:59",
    "2026-02-30",
    "9" * 40 + "d",
    "1" * 5_000 + "h",
)
HOSTILE = (*TEXTS, *NUMBERS, *TIMES)
OWN = (
    "q",
    "o",
    "p",
    "all",
    "e",
    "at",
    "when",
    "namespace",
    "tag",
    "job",
    "since",
    "until",
    "from",
    "to",
    "cursor",
    "limit",
)
OWN += (
    "page_size",
    "state",
    "target",
    "count",
    "after",
    "before",
    "name",
    "format",
    "kind",
    "hours",
    "label",
    "shown",
    "top",
    "job_name",
    "_list",
    "seen",
    "calendar",
)


def routes(patterns: Any, prefix: str = "") -> Iterator[str]:
    """Yield the package's routes as Django writes them.

    An example is ``admin/django_dcron/job/<path:object_id>/change/``.
    """
    for each in patterns:
        route = prefix + str(each.pattern).removeprefix("^").removesuffix(r"\Z").removesuffix("$")
        if isinstance(each, URLResolver):
            yield from routes(each.url_patterns, route)
        elif isinstance(each, URLPattern) and re.match("admin/django_dcron/|dcron/|probes/", route):
            yield route


def quoted(value: "str | bytes") -> str:
    return quote(value, safe="")


NAMES = {"kind": "csv"}
NAME_BELOW = {
    "dashboard": "tiles",
    "run": "attempts",
    "attempt": "log",
    "job": "pause",
    "freeze": "unfreeze",
}
"""For each page, an existing name below it."""


class World:
    """A row of each model, and the values that route parameters need to find it."""

    def __init__(self) -> None:
        self.calendar = control.save_calendar(Calendar(name="closed", dates="12-25"))
        self.job = make_idle_job(args=[1], target="tests.app.tasks.echo", calendar=self.calendar)
        self.run = make_run(self.job, "running")
        now = self.run.due_at
        node = Node.objects.create(
            id="a-1", name="a", host="h", pid=1, version="1", started_at=now, heartbeat_at=now
        )
        attempt = self.run.attempts.get()
        self.rows = {
            "calendar": self.calendar,
            "attempt": attempt,
            "run": self.run,
            "node": node,
            "freeze": control.freeze("deploy", namespace=self.job.namespace),
        }

    def value(self, route: str, name: str) -> str:
        if name in NAMES:
            return NAMES[name]
        if name == "name":
            return next(value for part, value in NAME_BELOW.items() if f"/{part}/" in route)
        return str(
            next((row.pk for word, row in self.rows.items() if f"/{word}" in route), self.job.pk)
        )

    def url(self, route: str, hostile: str = "", value: "str | bytes" = "") -> str:
        """Return the URL of ``route`` with ``value`` as its parameter ``hostile``."""
        return "/" + PARAMETER.sub(
            lambda found: quoted(value if found[1] == hostile else self.value(route, found[1])),
            route,
        )


Candidate = tuple[str, str, "str | bytes"]
"""A route or a URL, one of its parameters, and the value of that parameter."""


def by_parameter(all_routes: list[str]) -> Iterator[Candidate]:
    for route in all_routes:
        for name in PARAMETER.findall(route):
            yield from ((route, name, value) for value in HOSTILE)


def by_query(all_routes: list[str]) -> Iterator[Candidate]:
    for route in all_routes:
        if route != "dcron/schema/":  # takes no parameter, and is slow
            for name in OWN:
                yield from ((route, name, value) for value in HOSTILE)


def by_column() -> Iterator[Candidate]:
    for model in admin.site._registry:
        if model._meta.app_label == "django_dcron":
            url = f"admin/django_dcron/{model._meta.model_name}/"
            for field in model._meta.concrete_fields:
                for lookup in LOOKUPS:
                    yield from ((url, f"{field.attname}{lookup}", value) for value in HOSTILE)


ALWAYS = (
    "/admin/django_dcron/job/_00/change/",
    "/admin/django_dcron/calendar/%00/change/",
    "/admin/django_dcron/calendar/%00/delete/",
    "/admin/django_dcron/calendar/%00/history/",
    "/admin/django_dcron/run/%00/change/",
    "/admin/django_dcron/attempt/?started_at__lt=9999-12-31T23:59:59-23:59",
    "/admin/django_dcron/run/?scheduled_at__gte=2026-11-22T18:00%2B23:59",
    "/admin/django_dcron/run/?due_at__gte=2026-11-22T18:00%2B23:59",
    "/admin/django_dcron/job/?jitter__lt=1h",
    "/admin/django_dcron/job/?created_at__range=1,2,3",
    "/dcron/%00/",
    "/dcron/calendars/%00/",
)
"""Requests that once caused a server error."""


@pytest.fixture
def client(admin_user: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(admin_user)
    return client


def errors(client: Client, urls: "list[str]") -> dict[str, str]:
    """Return the URLs that caused a server error, each with its error."""
    found = {}
    for url in urls:
        with transaction.atomic():
            response: Any = client.get(url)
            if response.status_code >= 500 and not url.startswith("/probes/"):
                error = getattr(response, "exc_info", None) or (None, response.status_code, None)
                found[url[:150]] = repr(error[1])[:200]
            if response.streaming:
                response.getvalue()
            transaction.set_rollback(True)
    return found


@pytest.mark.fuzz
@pytest.mark.timeout(600)  # many requests, possibly on a slow machine
@pytest.mark.django_db
def test_hostile_urls_cause_no_server_error(client: Client) -> None:
    world, chance = World(), random.Random(0)
    all_routes = list(routes(get_resolver().url_patterns))
    assert len(all_routes) > 60
    urls = list(ALWAYS)
    for route, name, value in chance.sample(list(by_parameter(all_routes)), BUDGET // 3):
        urls.append(world.url(route, name, value))
    for candidates in (by_query(all_routes), by_column()):
        for route, name, value in chance.sample(list(candidates), BUDGET // 3):
            urls.append(f"{world.url(route)}?{name}={quoted(value)}")
    assert errors(client, urls) == {}


@pytest.mark.django_db
@pytest.mark.parametrize(
    "until", ["18:00+23:59", "00:00-23:59", "2026-11-22T18:00+23:59", "2199-12-31T23:59-23:59"]
)
def test_admin_accepts_or_refuses_pause_end_at_any_utc_offset(client: Client, until: str) -> None:
    """PostgreSQL accepts no UTC offset of 16 hours or more."""
    job = World().job
    sent = client.post(f"/admin/django_dcron/job/{job.pk}/do/pause/", {"until": until})
    assert sent.status_code in (200, 302)
    job.refresh_from_db()
    assert job.enabled == (sent.status_code == 200)


@pytest.mark.django_db
def test_control_pauses_until_a_time_at_any_utc_offset() -> None:
    job = World().job
    ahead = timezone(timedelta(hours=23, minutes=59))
    until = (datetime.now(ahead) + timedelta(days=1)).replace(microsecond=0)
    control.pause(job, until=until)
    job.refresh_from_db()
    assert job.paused_until == until
    with refusal(InvalidValue, "too_late", field="until"):
        control.pause(
            job, until=datetime(9999, 12, 31, 23, 59, tzinfo=timezone(-timedelta(hours=23)))
        )
