"""Test the permissions of every URL of the admin.

Each URL is requested by an anonymous user and by staff with no permission, each permission and all
permissions. ``ENDPOINTS`` lists every URL with its required permissions. The first tests fail if a
URL or an action isn't listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.test import Client
from django.urls import get_resolver, resolve, reverse

from django_dcron import control
from django_dcron.admin.freeze import FreezeAdmin
from django_dcron.admin.incidents.admin import IncidentAdmin
from django_dcron.admin.jobs.admin import JobAdmin
from django_dcron.admin.runs.admin import RunAdmin
from django_dcron.models import (
    Alert,
    Attempt,
    AuditEntry,
    Calendar,
    Freeze,
    Incident,
    Job,
    Limit,
    Node,
    Run,
    SavedFilter,
)
from tests.admin.conftest import (
    NOON,
    StaffWith,
    action_url,
    counted_writes,
    job_url,
    list_url,
    log_in_as,
    make_attempt,
    make_job,
    make_run,
    run_url,
)
from tests.teams import Rows, make_incidents

VIEWS = (
    "view_job",
    "view_run",
    "view_attempt",
    "view_incident",
    "view_node",
    "view_alert",
    "view_calendar",
    "view_limit",
    "view_auditentry",
)
OWN = (
    "add_job",
    "change_job",
    "delete_job",
    "trigger_job",
    "run_job_with_arguments",
    "pause_job",
    "cancel_run",
    "rerun_run",
    "view_dashboard",
    "add_calendar",
    "change_calendar",
    "delete_calendar",
    "add_limit",
    "change_limit",
    "delete_limit",
    "freeze_jobs",
    "acknowledge_incident",
)


ACTIONS: dict[str, Any] = {
    "job": JobAdmin.object_actions,
    "run": RunAdmin.object_actions,
    "freeze": FreezeAdmin.object_actions,
    "incident": IncidentAdmin.object_actions,
}


# --- endpoints ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Endpoint:
    name: str
    needs: str = ""
    """The required codenames, separated by spaces. ``or`` separates alternative sets."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """The URL arguments that are primary keys, each with its attribute of ``Rows``."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    post: Mapping[str, Any] | None = None
    """The POST data, or None for a GET request."""
    status: int = 200
    """The status for a user with the permissions.

    A 302 to a POST means that the action was performed.
    """

    @property
    def method(self) -> str:
        return "GET" if self.post is None else "POST"

    def url(self, rows: Rows) -> str:
        arguments = {name: getattr(rows, value).pk for name, value in self.rows.items()}
        return reverse(f"admin:{self.name}", kwargs={**arguments, **self.arguments})

    def is_open_to(self, permissions: Iterable[str]) -> bool:
        granted = {*permissions}
        granted |= {
            each.replace("change_", "view_") for each in granted if each.startswith("change_")
        }  # Django's rule
        return any(granted >= {*all_of.split()} for all_of in self.needs.split(" or "))

    @property
    def is_for_viewers(self) -> bool:
        return {*self.needs.split()} <= {*VIEWS}


def _of_model(model: str) -> list[Endpoint]:
    """Return the endpoints that Django's admin has for each model."""
    prefix, row = f"django_dcron_{model}", {"object_id": model}
    return [
        Endpoint(f"{prefix}_changelist", f"view_{model}"),
        Endpoint(f"{prefix}_add", f"add_{model}"),
        Endpoint(f"{prefix}_change", f"view_{model}", row),
        Endpoint(f"{prefix}_history", f"view_{model}", row),
        Endpoint(f"{prefix}_delete", f"delete_{model}", row),
        Endpoint(f"{prefix}_delete", f"delete_{model}", row, post={"post": "yes"}, status=302),
    ]


def _action(model: str, name: str, needs: str, **options: Any) -> Endpoint:
    """Return the endpoint of an action: its POST request, or its form with ``post=None``."""
    given = {"post": {}, "rows": {"object_id": model}} | options
    status = 200 if given["post"] is None else 302
    return Endpoint(
        f"django_dcron_{model}_action", needs, arguments={"name": name}, status=status, **given
    )


def _export(model: str) -> list[Endpoint]:
    name = f"django_dcron_{model}_export"
    return [Endpoint(name, f"view_{model}", arguments={"kind": kind}) for kind in ("csv", "json")]


JOB = {"object_id": "job"}
FREEZE = {"object_id": "freeze"}
RANGE = {"start": "2026-03-01T00:00:00", "end": "2026-03-04T00:00:00", "limit": "10"}

ENDPOINTS = [
    *_of_model("job"),
    *_of_model("run"),
    *_of_model("attempt"),
    *_of_model("incident"),
    *_of_model("node"),
    *_of_model("alert"),
    *_of_model("calendar"),
    *_of_model("limit"),
    *_of_model("auditentry"),
    Endpoint("django_dcron_freeze_changelist", "view_job"),
    Endpoint("django_dcron_freeze_add", "view_job freeze_jobs"),
    Endpoint(
        "django_dcron_freeze_add", "view_job freeze_jobs", post={"reason": "deploy"}, status=302
    ),
    Endpoint("django_dcron_freeze_change", "view_job", FREEZE),
    Endpoint("django_dcron_freeze_history", "view_job", FREEZE),
    Endpoint("django_dcron_freeze_delete", "delete_freeze", FREEZE),
    Endpoint("django_dcron_freeze_delete", "delete_freeze", FREEZE, post={"post": "yes"}),
    _action("freeze", "unfreeze", "view_job freeze_jobs"),
    Endpoint("django_dcron_job_change", "view_job change_job", JOB, post={"name": ""}),
    Endpoint("django_dcron_job_add", "add_job", post={"name": ""}),
    Endpoint("django_dcron_job_backfill", "view_job trigger_job", JOB),
    Endpoint("django_dcron_job_backfill", "view_job trigger_job", JOB, post=RANGE),
    Endpoint(
        "django_dcron_job_backfill",
        "view_job trigger_job",
        JOB,
        post={**RANGE, "version": "1", "create": "1"},
        status=302,
    ),
    *(
        Endpoint(
            "django_dcron_job_revert",
            "change_job",
            {"object_id": "paused"},
            {"version": 2},
            post=post,
            status=status,
        )
        for post, status in ((None, 200), ({}, 302))
    ),
    *(
        Endpoint(
            "django_dcron_job_restore",
            "view_job add_job",
            {"entry_id": "deletion"},
            post=post,
            status=status,
        )
        for post, status in ((None, 200), ({}, 302))
    ),
    _action("job", "run_now", "view_job trigger_job"),
    _action("job", "run_with", "view_job trigger_job run_job_with_arguments", post=None),
    _action(
        "job",
        "run_with",
        "view_job trigger_job run_job_with_arguments",
        post={"args": "[]", "kwargs": "{}"},
    ),
    _action("job", "pause", "view_job pause_job", post=None),
    _action("job", "pause", "view_job pause_job", post={"reason": "deploy", "until": "2h"}),
    _action("job", "change_pause", "view_job pause_job", rows={"object_id": "paused"}, post=None),
    _action(
        "job",
        "change_pause",
        "view_job pause_job",
        rows={"object_id": "paused"},
        post={"until": "2h"},
    ),
    _action("job", "resume", "view_job pause_job", rows={"object_id": "paused"}),
    _action("job", "duplicate", "view_job add_job"),
    _action("run", "cancel", "view_run cancel_run", post=None),
    _action("run", "cancel", "view_run cancel_run"),
    _action("run", "rerun", "view_run rerun_run", rows={"object_id": "ended"}),
    _action(
        "run",
        "rerun",
        "view_run rerun_run run_job_with_arguments",
        rows={"object_id": "ended_with_arguments"},
    ),
    *(
        _action("incident", name, "view_incident acknowledge_incident", rows=row, post=post)
        for name, row in (
            ("acknowledge", {"object_id": "incident"}),
            ("mute", {"object_id": "incident"}),
            ("resolve", {"object_id": "incident"}),
            ("reopen", {"object_id": "muted"}),
        )
        for post in (None, {"reason": "known"})
    ),
    Endpoint(
        "django_dcron_incident_rerun", "view_incident view_run rerun_run", {"object_id": "incident"}
    ),
    Endpoint(
        "django_dcron_incident_rerun",
        "view_incident view_run rerun_run",
        {"object_id": "incident"},
        post={"until": "99999999999"},
        status=302,
    ),
    Endpoint("django_dcron_job_status", "view_job", JOB),
    *(
        Endpoint(
            f"django_dcron_{model}_filters",
            f"view_{model}",
            post={"name": "mine", "query": "q=a"},
            status=302,
        )
        for model in ("job", "run")
    ),
    Endpoint("django_dcron_job_suggestions", "view_job view_run"),
    Endpoint("django_dcron_palette", "view_job"),
    Endpoint("django_dcron_node_list_part", "view_node"),
    Endpoint("django_dcron_node_part", "view_node", {"object_id": "node"}),
    Endpoint(
        "django_dcron_calendar_preview",
        "add_calendar or change_calendar",
        post={"dates": "12-25"},
    ),
    Endpoint("django_dcron_job_why", "view_job view_run", JOB),
    Endpoint("django_dcron_job_preview", "add_job or change_job", post={"schedule": "@daily"}),
    Endpoint("django_dcron_status_line", "view_dashboard"),
    Endpoint("django_dcron_run_part", "view_run", {"run_id": "run"}, {"name": "status"}),
    Endpoint(
        "django_dcron_run_part", "view_run view_attempt", {"run_id": "run"}, {"name": "attempts"}
    ),
    Endpoint(
        "django_dcron_attempt_text", "view_attempt", {"attempt_id": "attempt"}, {"name": "log"}
    ),
    Endpoint("django_dcron_dashboard_changelist", "view_dashboard"),
    Endpoint("django_dcron_dashboard_live", "view_dashboard", status=204),
    *_export("job"),
    *_export("run"),
    Endpoint("django_dcron_auditentry_export", "view_auditentry", arguments={"kind": "csv"}),
    Endpoint("django_dcron_auditentry_export", "view_auditentry", arguments={"kind": "jsonl"}),
]

NEVER = {
    f"{action}_{model}"
    for action in ("add", "delete")
    for model in ("run", "attempt", "incident", "node", "alert")
} | {"delete_freeze", "add_auditentry", "delete_auditentry"}
"""Permissions that even a superuser doesn't have, because the scheduler owns these rows."""


def _patterns(patterns: Iterable[Any], before: str = "") -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        route = f"{before}{pattern.pattern}"
        if hasattr(pattern, "url_patterns"):
            yield from _patterns(pattern.url_patterns, route)
        else:
            yield route, pattern.name


def test_every_admin_url_is_listed() -> None:
    named = {
        name
        for route, name in _patterns(get_resolver().url_patterns)
        # The pattern without a name is Django's old URL of a row. It redirects without a check.
        if name and (route.startswith("admin/django_dcron/") or name.startswith("django_dcron_"))
    }
    assert named == {endpoint.name for endpoint in ENDPOINTS}


def test_every_user_is_in_exactly_one_group() -> None:
    assert all(sum(who.startswith(group) for group in GROUPS) == 1 for who in PERMISSIONS_BY_USER)


def test_every_action_url_is_listed() -> None:
    listed = {
        (endpoint.name, endpoint.arguments.get("name"), endpoint.method) for endpoint in ENDPOINTS
    }
    for model, object_actions in ACTIONS.items():
        for action in object_actions:
            methods = ["GET", "POST"] if action.form else ["POST"]
            assert listed >= {
                (f"django_dcron_{model}_action", action.name, method) for method in methods
            }


# --- access ---------------------------------------------------------------------------------------

PERMISSIONS_BY_USER = {
    "no permission": (),
    "all views": VIEWS,
    **{f"only {each}": (each,) for each in (*VIEWS, *OWN)},
    **{f"views and {own}": (*VIEWS, own) for own in OWN},
    "all": (*VIEWS, *OWN),
}


@pytest.fixture
def rows(db: None) -> Rows:
    job = make_job(schedule="0 3 * * *")
    run, ended = (
        make_run(job),
        make_run(job, NOON + timedelta(days=1), state="failed", finished_at=NOON),
    )
    make_run(job, NOON + timedelta(days=2), state="failed", rerun_of=ended)
    times = {"started_at": NOON, "heartbeat_at": NOON}
    node = Node.objects.create(
        id="n-1", name="n", host="h", pid=1, version="1", shard_count=64, **times
    )
    alert = Alert.objects.create(
        channel="ops", kind="failed", key="1", subject="failed", created_at=NOON, job=job
    )
    calendar = Calendar.objects.create(name="closed", dates="12-25")
    other = make_run(
        job, NOON + timedelta(days=9), state="failed", finished_at=NOON, kwargs={"a": 1}
    )
    retried = make_run(job, NOON + timedelta(days=12), state="failed", finished_at=NOON)
    make_attempt(retried)
    control.delete(make_job("deleted"))
    paused = make_job("paused", enabled=False)
    paused.max_attempts = 2
    return Rows(
        job,
        control.save(paused),
        run,
        ended,
        other,
        make_attempt(run),
        node,
        alert,
        calendar,
        Limit.objects.create(name="api", max_running=1),
        control.freeze("deploy"),
        *make_incidents(job, "", retried),
        AuditEntry.objects.get(kind="job", action="delete"),
    )


def _all_rows() -> list[Any]:
    kept = (Job, Run, Attempt, Incident, Node, Calendar, Limit, Freeze, SavedFilter)
    return [
        *(list(model._default_manager.order_by("pk").values()) for model in kept),
        AuditEntry.objects.count(),
    ]


class Crawler:
    """Requests every URL as one user after another and collects wrong responses."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.before = _all_rows()
        self.wrong_responses: list[str] = []
        self.requests = 0

    def request(self, client: Client, endpoint: Endpoint) -> tuple[Any, bool]:
        """Return the response and whether the request changed a row. Changes are rolled back."""
        return self.send(client, endpoint.url(self.rows), endpoint.post)

    def send(self, client: Client, url: str, sent: Mapping[str, Any] | None) -> tuple[Any, bool]:
        self.requests += 1
        with transaction.atomic(), counted_writes() as writes:
            response = client.get(url) if sent is None else client.post(url, sent)
            changed = bool(writes.number) and _all_rows() != self.before
            transaction.set_rollback(True)
        return response, changed

    def expect(self, found: Any, expected: Any, *about: Any) -> None:
        if found != expected:
            self.wrong_responses.append(f"{found} and not {expected}: {', '.join(map(str, about))}")

    def finish(self, *, at_least: int) -> None:
        assert not self.wrong_responses, "\n".join(self.wrong_responses)
        assert self.requests >= at_least


def _performs_change(endpoint: Endpoint) -> bool:
    """Return whether a request to the endpoint performs a change."""
    return endpoint.post is not None and endpoint.status == 302


GROUPS = ("no", "all", "only", "views")
"""Prefixes of the keys of ``PERMISSIONS_BY_USER``. Each group is one test, to keep tests short."""


@pytest.mark.parametrize("group", GROUPS)
def test_staff_can_access_and_sees_links_to_permitted_urls_only(
    group: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each set of permissions, check every endpoint, link and action."""
    crawler, of_url, client = Crawler(rows), lru_cache(maxsize=None)(_endpoint_of), Client()
    crawled = {
        who: permissions
        for who, permissions in PERMISSIONS_BY_USER.items()
        if who.startswith(group)
    }
    for who, permissions in crawled.items():
        log_in_as(permissions, monkeypatch)
        pages = {}
        for endpoint in ENDPOINTS:
            if (
                who.startswith("views and")
                and endpoint.is_for_viewers
                and not _looks_different(endpoint)
            ):
                continue  # same as for users with all view permissions or all permissions
            response, changed = crawler.request(client, endpoint)
            if endpoint.is_open_to(permissions):
                expected = (endpoint.status, _performs_change(endpoint))
            else:
                expected = (403, False)
            crawler.expect((response.status_code, changed), expected, who, endpoint)
            # Django's delete page links to the list without a permission check.
            leads_back = who.startswith("only delete_") and endpoint.name.endswith("_delete")
            if (
                response.status_code == 200
                and not response.streaming
                and not leads_back
                and endpoint.post is None
            ):
                pages[endpoint.name, endpoint.url(rows)] = Targets(response)
        pages["index", ""] = Targets(client.get(reverse("admin:index")))
        for page, targets in pages.items():
            for method, url in targets.found:
                found = of_url(method, url)
                crawler.expect(
                    found is None or found.is_open_to(permissions), True, who, page, method, url
                )
        _check_actions(crawler, client, who, pages)
    crawler.finish(at_least=40 * len(crawled))


def _check_actions(
    crawler: Crawler, client: Client, who: str, pages: Mapping[tuple[str, str], Targets]
) -> None:
    """Check that the lists offer exactly the actions that the user may perform."""
    for model, object_actions in ACTIONS.items():
        url = list_url(model)
        if f"view_{model}" not in PERMISSIONS_BY_USER[who]:
            continue
        offered = pages[f"django_dcron_{model}_changelist", url].actions
        for action in object_actions:
            endpoint = _action(model, action.name, _needs(model, action.name))
            expected = endpoint.is_open_to(PERMISSIONS_BY_USER[who]) and not action.has_page
            crawler.expect(action.name in offered, expected, who, "offers", action.name)
            if action.name not in offered:
                chosen = [getattr(crawler.rows, model).pk]
                sent = {"action": action.name, "_selected_action": chosen, "confirmed": "1"}
                crawler.expect(crawler.send(client, url, sent)[1], False, who, "does", action.name)


def test_superuser_can_access_all_permitted_urls_and_get_changes_nothing(
    rows: Rows, admin_client: Client
) -> None:
    crawler = Crawler(rows)
    for endpoint in ENDPOINTS:
        response, changed = crawler.request(admin_client, endpoint)
        crawler.expect(
            response.status_code, 403 if endpoint.needs in NEVER else endpoint.status, endpoint
        )
        if endpoint.post is None:
            crawler.expect(changed, False, endpoint)
    crawler.finish(at_least=len(ENDPOINTS))


def test_anonymous_and_non_staff_users_are_redirected_to_login(rows: Rows) -> None:
    customer = User.objects.create_user("customer")
    customer.user_permissions.set(Permission.objects.all())
    anonymous, no_staff = Client(), Client()
    no_staff.force_login(customer)
    crawler = Crawler(rows)
    for endpoint in ENDPOINTS:
        for client in (anonymous, no_staff):
            response, changed = crawler.request(client, endpoint)
            crawler.expect((response.status_code, changed), (302, False), endpoint)
            crawler.expect("/login/" in response.headers.get("Location", ""), True, endpoint)
    crawler.finish(at_least=2 * len(ENDPOINTS))


def test_post_without_csrf_token_is_forbidden(rows: Rows, admin_user: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    crawler = Crawler(rows)
    for endpoint in ENDPOINTS:
        if endpoint.post is not None:
            response, changed = crawler.request(client, endpoint)
            crawler.expect((response.status_code, changed), (403, False), endpoint)
    crawler.finish(at_least=19)


# --- page contents --------------------------------------------------------------------------------


class Targets(HTMLParser):
    """Collects the links, refresh URLs, forms and list actions of a page."""

    def __init__(self, response: Any):
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.actions: set[str] = set()
        self._in_actions = False
        self.feed(response.content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._add(given.get("method", "get").upper(), given.get("action", ""))
        elif tag == "a":
            self._add("GET", given.get("href", ""))
        elif tag == "select":
            self._in_actions = given.get("name") == "action"
        elif tag == "option" and self._in_actions:
            self.actions.add(given["value"])
        for method in ("get", "post"):
            self._add(method.upper(), given.get(f"hx-{method}", ""))

    def _add(self, method: str, url: str) -> None:
        if url.startswith("/admin/"):
            self.found.add((method, urlsplit(url).path))


def _endpoint_of(method: str, url: str) -> Endpoint | None:
    """Return the listed endpoint of a URL, or None for Django's own URLs."""
    match = resolve(url)
    for endpoint in ENDPOINTS:
        same = (endpoint.name, endpoint.method) == (match.url_name, method)
        if same and all(
            str(match.kwargs[name]) == str(value) for name, value in endpoint.arguments.items()
        ):
            return endpoint
    assert "dcron" not in str(match.url_name), f"{method} {url} is not listed"
    return None


LOOK_DIFFERENT = (
    "job_change",
    "run_change",
    "incident_change",
    "job_changelist",
    "run_changelist",
    "incident_changelist",
)
"""Pages that differ for users who have all view permissions and one more permission."""


def _looks_different(endpoint: Endpoint) -> bool:
    return endpoint.post is None and endpoint.name.endswith(LOOK_DIFFERENT)


def _needs(model: str, action: str) -> str:
    name = f"django_dcron_{model}_action"
    return next(
        each.needs for each in ENDPOINTS if each.name == name and each.arguments["name"] == action
    )


def test_only_models_with_pages_have_permissions() -> None:
    """Other permissions would grant nothing, and only lengthen the list in the form of a user."""
    granting = {
        model
        for model in apps.get_app_config("django_dcron").get_models()
        if model._meta.default_permissions
    }
    assert Job in granting
    assert [model for model in granting if not admin.site.is_registered(model)] == []


def test_user_with_view_permissions_sees_no_buttons(staff_with: StaffWith, rows: Rows) -> None:
    client = staff_with(*VIEWS)
    for url in (job_url(rows.job), run_url(rows.run)):
        response = client.get(url)
        assert response.context["buttons"] == []
        assert "/do/" not in response.content.decode()


def test_run_now_without_view_run_permission_redirects_to_job(
    staff_with: StaffWith, rows: Rows
) -> None:
    client = staff_with("view_job", "trigger_job")

    response = client.post(action_url(rows.job, "run_now"), follow=True)

    assert response.redirect_chain[-1][0] == job_url(rows.job)
    assert "/run/" not in response.content.decode()
