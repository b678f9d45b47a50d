"""Test ``DCRON_REST_QUERYSET``: no operation shows or changes the rows of others."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.core.checks import run_checks
from django.db import connection, transaction
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.contrib.rest.runs import cancelling
from django_dcron.db.now import database_now
from django_dcron.models import AuditEntry, Calendar, Incident, Job, Limit, Node, Run
from tests.admin.conftest import counted_writes
from tests.contrib.rest.conftest import Api, problem
from tests.contrib.rest.test_permissions import REQUESTS
from tests.factories import make_idle_job, make_run
from tests.teams import Rows, World, make_world, rows_of_others

TARGET = {"target": "tests.app.tasks.ok", "schedule": "@daily"}


def narrow(request: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Limit even a superuser to the rows of one team."""
    assert request.user.is_authenticated
    if rows.model in (Job, Node):
        return rows.filter(namespace="mine")
    return rows.filter(name__startswith="mine") if rows.model in (Calendar, Limit) else rows


def narrow_runs(request: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    return rows.filter(job__namespace="mine") if rows.model is Run else rows


def narrow_calendars_and_limits(request: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    return rows.filter(name__startswith="mine") if rows.model in (Calendar, Limit) else rows


def narrow_to_pending(request: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    return rows.filter(state="pending") if rows.model is Run else rows


@pytest.fixture
def world(db: None, settings: Any) -> World:
    settings.DCRON_REST_QUERYSET = "tests.contrib.rest.test_narrowed.narrow"
    return make_world()


class Walk:
    def __init__(self, api: Api, world: World) -> None:
        self.api, self.world = api, world
        self.before = rows_of_others()
        self.breaches: list[str] = []

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        with transaction.atomic(), counted_writes() as writes:
            response = self.api.send(method, path, body, **headers)
            if writes.number and rows_of_others() != self.before:
                self.breaches.append(f"{method} {path} {body or ''} changes rows of the other team")
            transaction.set_rollback(True)
        shown = response.content.decode() + str(response.headers)
        for what, marker in self.world.markers.items():
            if marker in shown and marker not in f"{path} {body}":
                self.breaches.append(f"{method} {path} {body or ''} shows {what}: {shown}")
        return response


def _keys(rows: Rows) -> dict[str, Any]:
    return {
        "job": rows.job.pk,
        "freeze": rows.freeze.pk,
        "incident": rows.incident.pk,
        "echo": rows.job.pk,
        "paused": rows.paused.pk,
        "run": rows.run.pk,
        "ended": rows.ended.pk,
        "ended_with_arguments": rows.ended_with_arguments.pk,
        "deletion": rows.deletion.pk,
    }


def test_rows_outside_the_queryset_are_neither_shown_nor_changed(world: World, api: Api) -> None:
    walk = Walk(api, world)
    for name, request in REQUESTS.items():
        path = request.path.replace("closed", "{calendar}").replace("narrow", "{limit}")
        for rows in (world.mine, world.theirs):
            sent = path.format(calendar=rows.calendar.pk, limit=rows.limit.pk, **_keys(rows))
            response = walk.send(
                request.method, sent, request.body_for(_keys(rows)), **request.headers
            )
            if rows is world.theirs and "{" in path and response.status_code != 404:
                walk.breaches.append(f"{name} returns {response.status_code}")
            if name == "restore_job" and response.status_code != 400:
                walk.breaches.append("a job is restored, but nothing shows who could see it")
    theirs = world.theirs
    for query in (
        "namespace=hush",
        "search=hush",
        "tag=hush-tag",
        "calendar=hush-calendar",
        "state=paused",
        "limit=1",
    ):
        assert walk.send("GET", f"jobs/?{query}").status_code == 200
    for query in (
        f"job={theirs.job.pk}",
        "namespace=hush",
        "tag=hush-tag",
        "state=failed",
        "trigger=chain",
        "limit=1",
    ):
        assert walk.send("GET", f"runs/?{query}").status_code == 200
    for path in ("jobs/bulk/pause/", "jobs/bulk/resume/", "jobs/bulk/trigger/"):
        for selection in ({"all": True}, {"pattern": "h*/*"}, {"ids": [theirs.job.pk]}):
            assert walk.send("POST", path, selection).status_code == 200
    for selection in ({"jobs": {"all": True}}, {"ids": [str(theirs.run.pk)]}):
        assert walk.send("POST", "runs/bulk/cancel/", selection).status_code == 200
    walk.send("GET", "nodes/?namespace=hush")
    walk.send("GET", "calendars/?search=hush")
    walk.send("GET", "limits/?search=hush")
    assert not walk.breaches, "\n".join(walk.breaches)


def test_lists_and_statistics_include_only_own_rows(world: World, api: Api) -> None:
    stats = api.get("stats/").json()

    assert [row["name"] for row in api.get("jobs/").json()["results"]] == [
        "mine-job",
        "mine-paused",
    ]
    assert {row["job"]["name"] for row in api.get("runs/").json()["results"]} == {"mine-job"}
    assert [row["number_of_jobs"] for row in api.get("calendars/").json()["results"]] == [2]
    assert [row["name"] for row in api.get("nodes/").json()["results"]] == ["mine-node"]
    assert (stats["jobs"]["total"], stats["runs"]["failed"]["count"]) == (2, 1)


def test_pagination_covers_own_rows_only(world: World, api: Api) -> None:
    found, path = [], "runs/?limit=1"
    while path:
        page = api.get(path).json()
        found += [row["job"]["name"] for row in page["results"]]
        path = page["next"]

    assert found == ["mine-job"] * 3


def test_list_of_many_incidents_needs_no_more_queries(world: World, api: Api) -> None:
    now, counts = database_now("default"), []
    seen = {"job": world.mine.job, "first_seen_at": now, "last_seen_at": now}
    for number in range(3):
        run_id = uuid4() if number == 1 else world.mine.ended.pk  # the first one was deleted
        Incident.objects.create(fingerprint=f"new-{number}", last_run=run_id, **seen)
        with CaptureQueriesContext(connection) as queries:
            results = api.get("incidents/").json()["results"]
        counts.append(len(queries))
    assert len({*counts}) == 1
    shown = [row["last_run"] for row in results[:3]]
    assert shown == [str(world.mine.ended.pk), None, str(world.mine.ended.pk)]


def test_saving_a_row_outside_of_the_queryset_is_refused(world: World, api: Api) -> None:
    before = list(Job.objects.order_by("pk").values())
    mine = f"jobs/{world.mine.paused.pk}/"

    assert problem(api.post("jobs/", {"name": "new", "namespace": "hush", **TARGET}), 403)
    assert problem(api.patch(mine, {"namespace": "hush"}, if_match="*"), 403)
    assert problem(api.patch(mine, {"after": {"hush/hush-job": "ended"}}, if_match="*"), 400)
    assert problem(api.patch(mine, {"calendar": "hush-calendar"}, if_match="*"), 400)
    assert problem(api.patch(mine, {"limit": "hush-limit"}, if_match="*"), 400)
    assert problem(api.post("calendars/", {"name": "other", "dates": "12-25"}), 403)
    assert problem(api.post("limits/", {"name": "other", "max_running": 1}), 403)
    assert list(Job.objects.order_by("pk").values()) == before
    assert api.post("jobs/", {"name": "new", "namespace": "mine", **TARGET}).status_code == 201


@pytest.mark.parametrize("field", ["namespace", "calendar", "limit", "after"])
def test_revert_neither_hides_the_job_nor_refers_to_hidden_rows(
    field: str, world: World, api: Api
) -> None:
    job, theirs = world.mine.job, world.theirs.job
    own, hidden = getattr(job, field), getattr(theirs, field)
    if field == "after":
        hidden = {str(theirs): "ended"}
    for value in (hidden, own):
        setattr(job, field, value)
        control.save(job)

    response = api.post(f"jobs/{job.pk}/revert/", {"version": job.version})

    problem(response, 403 if field == "namespace" else 400)
    assert getattr(Job.objects.get(pk=job.pk), field) == own


@pytest.mark.parametrize(
    "reference", [{"calendar": "hush-calendar"}, {"limit": "hush-limit"}, {"limit": "mine-limit"}]
)
def test_restored_job_refers_to_no_hidden_row(
    reference: dict[str, str], world: World, api: Api, settings: Any
) -> None:
    settings.DCRON_REST_QUERYSET = "tests.contrib.rest.test_narrowed.narrow_calendars_and_limits"
    control.delete(make_idle_job(name="restored", **{f"{k}_id": v for k, v in reference.items()}))
    entry = AuditEntry.objects.filter(kind="job", action="delete").latest("pk")

    response = api.post("jobs/restore/", {"entry": entry.pk})

    assert response.status_code == (201 if reference == {"limit": "mine-limit"} else 400)
    assert Job.objects.filter(name="restored").exists() == (response.status_code == 201)


def test_queryset_can_limit_runs_alone(world: World, api: Api, settings: Any) -> None:
    settings.DCRON_REST_QUERYSET = "tests.contrib.rest.test_narrowed.narrow_runs"

    assert api.get(f"jobs/{world.theirs.job.pk}/").status_code == 200
    assert problem(api.get(f"runs/{world.theirs.ended.pk}/"), 404)
    assert problem(api.get(f"runs/{world.theirs.ended.pk}/log/"), 404)
    assert problem(api.post(f"runs/{world.theirs.ended.pk}/rerun/"), 404)
    assert api.get(f"jobs/{world.theirs.job.pk}/stats/").json()["running"] == []


def test_cancelling_continues_after_a_run_that_is_no_longer_visible(
    api: Api, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_REST_QUERYSET = "tests.contrib.rest.test_narrowed.narrow_to_pending"
    monkeypatch.setattr(cancelling, "MAX_RUNS", 1)
    job = make_idle_job(overlap_policy="allow")
    runs = [make_run(job) for _ in range(2)]
    body: dict[str, Any] = {"jobs": {"all": True}}
    first = api.post("runs/bulk/cancel/", body).json()
    api.post("runs/bulk/cancel/", body | {"after": first["next"]})
    assert {*Run.objects.values_list("pk", "state")} == {(run.pk, "cancelled") for run in runs}


def test_missing_queryset_function_is_reported_by_system_check(settings: Any) -> None:
    settings.DCRON_REST_QUERYSET = "tests.contrib.rest.test_narrowed.nobody"

    assert "django_dcron.E005" in {message.id for message in run_checks()}


def test_many_jobs_are_saved_within_the_scope_or_none(world: World, api: Api) -> None:
    def create(*items: dict[str, Any]) -> Any:
        return api.post("jobs/bulk/", {"jobs": [TARGET | item for item in items]})

    def change(*items: dict[str, Any]) -> Any:
        return api.patch("jobs/bulk/", {"jobs": [*items]})

    mine, theirs = world.mine.job, world.theirs.job
    number = Job.objects.count()
    new = {"name": "new", "namespace": "mine"}
    for after in (f"{theirs.namespace}/{theirs.name}", "hush/nobody"):
        refused = create(new, {**new, "name": "next", "after": {after: "ended"}})
        assert [*problem(refused, 400)["errors"]] == ["jobs.1.after"]
    problem(create(new, {"name": "new", "namespace": "elsewhere"}), 403)
    hidden = change({"id": theirs.pk, "version": theirs.version, "description": "x"})
    assert [*problem(hidden, 400)["errors"]] == ["jobs.0.id"]
    problem(change({"id": mine.pk, "version": mine.version, "namespace": "elsewhere"}), 403)
    assert Job.objects.count() == number
    follower = {**new, "name": "next", "after": {"mine/new": "ended"}}
    assert create(new, follower).status_code == 201
    first, second = Job.objects.filter(name__in=("new", "next")).order_by("pk")
    cyclic = change({"id": first.pk, "version": 1, "after": {"mine/next": "ended"}})
    assert "next" not in problem(cyclic, 400)["errors"]["jobs.0.after"][0]
    assert second.version == 1
