"""Test Django's probe endpoints: livez, readyz and health."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import Settings

from django_dcron import control
from django_dcron.db import session_limits
from django_dcron.db.error_remedies import END_LOCK
from django_dcron.db.now import UtcNow, database_now
from django_dcron.jobs.representation import to_json
from django_dcron.models import Job, Node
from django_dcron.monitoring import migration_check, urls, views
from tests.factories import make_idle_job
from tests.lock_holder import has_usual_lock_limit, keeping_open, lock_runs

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
ZERO_COUNTS = {"dead": 0, "stalled": 0, "degraded": 0, "skewed": 0, "unserved": 0}
NUMBERS = ("live", *ZERO_COUNTS)


@pytest.fixture(autouse=True)
def long_lease(settings: Settings) -> None:
    """Keep the nodes of a test alive on a slow machine."""
    settings.DCRON_LEASE = timedelta(minutes=5)


def make_node(
    name: str = "a", *, beat_ago: timedelta = SECOND, ticked_ago: timedelta = SECOND, **values: Any
) -> Node:
    return Node.objects.create(
        **{
            "id": f"{name}-1",
            "name": name,
            "host": "h",
            "pid": 7,
            "version": "0.1.0",
            "started_at": UtcNow() - timedelta(days=1),
            "heartbeat_at": UtcNow() - beat_ago,
            "ticked_at": UtcNow() - ticked_ago,
            "shards": 64,
            "shard_count": 64,
        }
        | values
    )


def url(name: str) -> str:
    return reverse(f"dcron_monitoring:{name}")


def health(client: Client) -> tuple[int, Any]:
    response = client.get(url("health"))
    assert response.headers["Content-Type"] == "application/json"
    return response.status_code, json.loads(response.content)


# --- health ---------------------------------------------------------------------------------------


def test_health_of_working_system_is_ok(client: Client) -> None:
    make_idle_job(namespace="billing")
    make_node()
    code, content = health(client)
    assert (code, content["status"], content["reasons"], content["problems"]) == (200, "ok", [], [])
    assert {name: content[name] for name in NUMBERS} == {"live": 1} | ZERO_COUNTS
    assert (content["workers"], content["queued"], content["last_start"]) == (None, 0, None)


def test_times_are_in_utc_with_a_z(client: Client) -> None:
    freeze = control.freeze("deploy", until=database_now("default") + timedelta(hours=1))
    (shown,) = health(client)[1]["freezes"]
    assert (shown["since"], shown["until"]) == (to_json(freeze.since), to_json(freeze.until))
    assert shown["since"].endswith("Z")


@pytest.mark.parametrize(
    ("nodes", "status", "problems", "numbers"),
    [
        ([], "unfit", ["no_live_node"], {"live": 0, "unserved": 2}),
        (
            [{"beat_ago": timedelta(hours=1)}],
            "unfit",
            ["no_live_node"],
            {"live": 0, "dead": 1, "unserved": 2},
        ),
        ([{}, {"beat_ago": timedelta(hours=1)}], "ok", [], {"live": 1, "dead": 1}),
        ([{"namespace": "billing"}], "unfit", ["namespace_unserved"], {"live": 1, "unserved": 1}),
        (
            [{"ticked_ago": timedelta(hours=1)}],
            "unfit",
            ["node_stalled"],
            {"live": 1, "stalled": 1},
        ),
        (
            [{}, {"ticked_ago": timedelta(hours=1)}],
            "degraded",
            ["node_stalled"],
            {"live": 2, "stalled": 1},
        ),
        (
            [{"degraded": True}, {"degraded": True}],
            "degraded",
            ["node_degraded"],
            {"live": 2, "degraded": 2},
        ),
        ([{"skew": -2 * SECOND}], "degraded", ["node_skewed"], {"live": 1, "skewed": 1}),
    ],
)
def test_health_reports_problems_of_nodes(
    client: Client,
    nodes: list[dict[str, Any]],
    status: str,
    problems: list[str],
    numbers: dict[str, int],
) -> None:
    make_idle_job(namespace="billing")
    make_idle_job(namespace="sales")
    make_idle_job(namespace="old", enabled=False)
    for number, values in enumerate(nodes):
        make_node(f"node-{number}", **values)
    code, content = health(client)
    assert (code, content["status"]) == (503 if status == "unfit" else 200, status)
    assert [problem["code"] for problem in content["problems"]] == problems
    assert content["reasons"] == [problem["summary"] for problem in content["problems"]]
    assert {name: content[name] for name in NUMBERS} == ZERO_COUNTS | numbers


def test_health_without_jobs_and_nodes_is_ok(client: Client) -> None:
    code, content = health(client)
    assert (code, content["status"], content["live"]) == (200, "ok", 0)


@pytest.fixture
def staff() -> User:
    user = User.objects.create_user("ann", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_node"))
    return user


def test_names_require_staff_with_view_node_permission(client: Client, staff: User) -> None:
    make_idle_job(namespace="secret-project")
    make_node("secret-host", namespace="sales")
    bodies = {}
    for who in ("anonymous", "no permission", "no staff", "staff"):
        if who != "anonymous":
            client.force_login(staff)
        User.objects.update(is_staff=who != "no staff")
        if who == "no permission":
            staff.user_permissions.clear()
        else:
            staff.user_permissions.add(Permission.objects.get(codename="view_node"))
        bodies[who] = client.get(url("health")).content.decode()
    assert {who for who, text in bodies.items() if "secret" in text} == {"staff"}
    shown = json.loads(bodies["staff"])
    assert [(node["name"], node["namespace"], node["stalled"]) for node in shown["nodes"]] == [
        ("secret-host", "sales", False)
    ]
    assert "secret-project" in shown["reasons"][0]


def test_number_of_queries_is_constant(client: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            health(client)
        return len(captured)

    make_node(namespace="elsewhere")
    make_idle_job()
    few = queries()
    for number in range(20):
        make_node(f"node-{number}", namespace="elsewhere")
        make_idle_job()
    assert queries() == few <= 16


# --- livez and readyz -----------------------------------------------------------------------------


def test_livez_needs_no_query(client: Client) -> None:
    with CaptureQueriesContext(connection) as queries:
        response = client.get(url("livez"))
    assert (response.status_code, response.content, len(queries)) == (200, b"ok\n", 0)


def test_readyz_requires_latest_migration(client: Client) -> None:
    with CaptureQueriesContext(connection) as queries:
        response = client.get(url("readyz"))
    assert (response.status_code, response.content) == (200, b"ok\n")
    assert len(queries) <= 2
    latest = migration_check._latest()
    MigrationRecorder(connection).migration_qs.filter(app="django_dcron", name=latest).delete()
    response = client.get(url("readyz"))
    assert (response.status_code, response.content) == (
        503,
        f"migration missing: {latest}; run manage.py migrate\n".encode(),
    )


def test_readyz_accepts_disabled_migrations(client: Client, settings: Settings) -> None:
    migration_check._latest.cache_clear()
    settings.MIGRATION_MODULES = {"django_dcron": None}
    try:
        assert client.get(url("readyz")).status_code == 200
    finally:
        migration_check._latest.cache_clear()


@pytest.fixture
def without_tables() -> Iterator[None]:
    """Hide the tables of nodes, jobs and migrations, as if nothing had been migrated."""

    def refuse(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if "django_migrations" in sql or Node._meta.db_table in sql or Job._meta.db_table in sql:
            raise OperationalError("no such table: at db.internal:5432")
        return execute(sql, *rest)

    with connection.execute_wrapper(refuse):
        yield


@pytest.mark.usefixtures("without_tables")
def test_missing_tables_are_reported_without_details(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    message = views.DATABASE_UNUSABLE
    response = client.get(url("readyz"))
    assert (response.status_code, response.content.decode()) == (503, f"{message}\n")
    remedy = "Run manage.py migrate."
    assert health(client) == (503, unfit("database_unusable", message, remedy))
    assert "db.internal" in caplog.text


def test_exhausted_connections_are_reported_without_details(client: Client) -> None:
    def refuse(*arguments: Any) -> Any:
        raise OperationalError("db.internal: FATAL: sorry, too many clients already")

    with connection.execute_wrapper(refuse):
        assert client.get(url("readyz")).content.decode() == f"{views.DATABASE_FULL}\n"
        status, shown = health(client)
    assert (status, shown["summary"]) == (503, views.DATABASE_FULL)
    assert "connection limit" in shown["problems"][0]["remedy"]
    assert "db.internal" not in str(shown)


def unfit(code: str, message: str, remedy: str) -> dict[str, Any]:
    problem = {
        "code": code,
        "severity": "error",
        "summary": message,
        "remedy": remedy,
        "since": None,
        "figures": {},
    }
    return {"status": "unfit", "summary": message, "reasons": [message], "problems": [problem]}


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_health_reports_a_locked_table(
    client: Client, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_limits, "READ_LOCK_TIMEOUT", timedelta(milliseconds=100))
    with keeping_open(lock_runs):
        assert health(client) == (
            503,
            unfit("database_locked", views.DATABASE_LOCKED, END_LOCK),
        )
        page = admin_client.get(reverse("admin:index")).content.decode()
        assert "Another session has locked tables of django-dcron" in page
    assert health(client)[1]["problems"][:1] != unfit("database_locked", "", "")["problems"]
    assert has_usual_lock_limit()


@pytest.mark.parametrize(
    "name", [pattern.name for pattern in urls.urlpatterns if pattern.name != "metrics"]
)
def test_probes_are_read_only_and_never_cached(client: Client, name: str) -> None:
    response = client.get(url(name))
    assert "no-store" in response.headers["Cache-Control"]
    assert client.head(url(name)).content == b""
    assert client.post(url(name)).status_code == 405


@pytest.mark.parametrize("name", ["livez", "readyz", "health"])
def test_probes_require_no_login_and_no_transaction(
    client: Client, settings: Settings, name: str
) -> None:
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]
    assert client.get(url(name)).status_code in (200, 503)
    assert "default" in view_of(name)._non_atomic_requests


def view_of(name: str) -> Any:
    return next(pattern.callback for pattern in urls.urlpatterns if pattern.name == name)


def test_probes_are_documented() -> None:
    document = (
        Path(__file__).resolve().parents[2] / "docs" / "reference" / "observability.md"
    ).read_text()
    assert 'path("dcron/", include("django_dcron.monitoring.urls"))' in document
    assert all(f"`dcron/{name}`" in document for name in ("livez", "readyz", "health"))
