"""Test that a project can narrow its admin: no URL shows or changes the rows of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.db import transaction
from django.test import Client
from django.urls import clear_url_caches, reverse, set_urlconf

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis.failures import latest_failures
from django_dcron.diagnosis.figures import job_figures, run_figures
from django_dcron.diagnosis.load import planned_load
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.diagnosis.timeline import timeline
from django_dcron.models import Job, Run
from tests.admin import narrowed_sites
from tests.admin.conftest import (
    add_url,
    as_rendered,
    errors,
    fill_in,
    job_url,
    list_url,
    noticed_writes,
    verb_url,
)
from tests.admin.test_permissions import ADDRESSES, NEVER
from tests.teams import HOUR, Rows, World, make_world, rows_of_others


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def on_site(settings: Any, admin_user: User) -> Iterator[Any]:
    """Return a function that activates a site and logs a superuser in."""

    def enter(site: AdminSite) -> Client:
        settings.ROOT_URLCONF = narrowed_sites.Urls(site)
        clear_url_caches()
        set_urlconf(None)
        client = Client(raise_request_exception=False)
        client.force_login(admin_user)
        return client

    yield enter
    clear_url_caches()


class Walk:
    """Sends requests, rolls back their changes and collects breaches."""

    def __init__(self, client: Client, world: World) -> None:
        self.client = client
        self.world = world
        self.before = rows_of_others()
        self.breaches: list[str] = []
        self.requests = 0

    def ask(self, method: str, url: str, sent: Any = None, **headers: Any) -> Any:
        """Send a request and record a breach if the response reveals a marker."""
        self.requests += 1
        with transaction.atomic(), noticed_writes() as writes:
            response = (
                self.client.generic(method, url, **headers)
                if sent is None
                else self.client.post(url, sent)
            )
            text = b"".join(response.streaming_content) if response.streaming else response.content
            messages = " ".join(map(str, get_messages(response.wsgi_request)))
            self.client.cookies.pop("messages", None)  # otherwise the next page would show them
            if writes.number and (after := rows_of_others()) != self.before:
                changed = [name for name in after if after[name] != self.before[name]]
                self.breaches.append(f"{method} {url} {sent or ''} changes {changed}")
            transaction.set_rollback(True)
        asked = f"{url} {sent}"
        shown = text.decode() + messages + "".join(map(str, response.headers.values()))
        for what, marker in self.world.markers.items():
            if marker in shown and marker not in asked:
                at = shown.index(marker)
                self.breaches.append(
                    f"{method} {url} {sent or ''} shows {what}: "
                    f"{shown[max(at - 80, 0) : at + 60]!r}"
                )
        if response.status_code >= 500:
            self.breaches.append(f"{method} {url} {sent or ''} is answered {response.status_code}")
        return response

    def refused(self, response: Any, what: Any) -> None:
        """Record a breach unless the response refuses: a 403, a 404, a redirect or a reload."""
        to_index = response.status_code == 302 and response["Location"] == reverse("admin:index")
        anew = (
            response.status_code == 200
            and "HX-Refresh" in response.headers
            and not response.content
        )
        if not (to_index or anew or response.status_code in (403, 404)):
            self.breaches.append(f"{what} is answered {response.status_code}")


def _kinds() -> list[tuple[str, list[str]]]:
    """Return the models whose lists have actions, with these actions."""
    return [
        (
            "job",
            [
                "run_now",
                "pause",
                "resume",
                "duplicate",
                "export_csv",
                "export_json",
                "delete_selected",
            ],
        ),
        ("run", ["cancel", "rerun", "export_csv", "export_json"]),
        ("calendar", ["delete_selected"]),
    ]


def _queries(rows: Rows) -> list[str]:
    """Return query strings that search a list for the rows of others."""
    return [
        f"q={rows.run.pk}",
        "q=hush",
        "namespace=hush",
        "tag=hush-tag",
        "worker=hush-worker",
        "state=running",
        f"job__id__exact={rows.job.pk}",
        "when=24h",
        "trigger__exact=chain",
        f"id__exact={rows.job.pk}",
    ]


def _walk_addresses(walk: Walk) -> None:
    for address in ADDRESSES:
        method, reached = address.method, 403 if address.needs in NEVER else address.answer
        response = walk.ask(method, address.url(walk.world.mine), address.post)
        if (
            response.status_code != reached and address.name != "django_dcron_calendar_delete"
        ):  # a job refers to the calendar
            walk.breaches.append(f"{address} is answered {response.status_code} for one's own row")
        if address.rows:
            walk.refused(walk.ask(method, address.url(walk.world.theirs), address.post), address)


def _walk_lists(walk: Walk) -> None:
    theirs = walk.world.theirs
    for model in ("job", "run", "attempt", "node", "alert", "calendar"):
        for query in _queries(theirs):
            walk.ask("GET", f"{list_url(model)}?{query}")
    for query in ("q=hush", "namespace=hush"):
        for model in ("job", "run"):
            walk.ask(
                "GET", reverse(f"admin:django_dcron_{model}_export", args=["json"]) + f"?{query}"
            )


def _walk_others(walk: Walk) -> None:
    mine, theirs = walk.world.mine, walk.world.theirs
    _walk_actions(walk)
    for query in ("namespace=hush", "q=hush", "q=job"):
        for name in ("tiles", "timeline", "failures", "cluster", "load"):
            walk.ask("GET", reverse("admin:django_dcron_dashboard_part", args=[name]) + f"?{query}")
    for model, field in (("run", "job"), ("run", "rerun_of"), ("job", "calendar")):
        asked = f"?app_label=django_dcron&model_name={model}&field_name={field}&term="
        walk.ask("GET", reverse("admin:autocomplete") + asked)
    for run in (mine.ended, theirs.ended):
        for job in (mine.job, theirs.job):
            url = reverse("admin:django_dcron_job_why", args=[job.pk])
            walk.ask("GET", f"{url}?at={run.scheduled_at:%Y-%m-%dT%H:%M:%S}Z")


def _walk_actions(walk: Walk) -> None:
    for model, actions in _kinds():
        key = getattr(walk.world.theirs, model).pk
        for action in actions:
            sent = {
                "action": action,
                "_selected_action": [str(key)],
                "confirmed": "1",
                "post": "yes",
            }
            walk.ask("POST", list_url(model), sent)
            walk.ask("POST", list_url(model), {**sent, "select_across": "1"})


@pytest.mark.parametrize("part", [_walk_addresses, _walk_lists, _walk_others])
def test_nothing_of_others_is_shown_or_touched_where_jobs_are_narrowed(
    part: Callable[[Walk], None], world: World, on_site: Any
) -> None:
    walk = Walk(on_site(narrowed_sites.teams), world)

    part(walk)

    assert not walk.breaches, "\n".join(walk.breaches)
    assert walk.requests > 40


def test_the_deletion_of_a_job_only_counts_the_hidden_ones_that_come_after_it(
    world: World, on_site: Any
) -> None:
    url = reverse("admin:django_dcron_job_delete", args=[world.mine.job.pk])

    lines = on_site(narrowed_sites.teams).get(url).context["deleted_objects"]

    assert len(lines) == 3
    assert "1 job" in lines[2]


RUN_TEXTS = (
    "log",
    "traceback",
    "result",
    "message",
    "exception_class",
    "reason",
    "missed",
    "worker",
)


def test_no_page_shows_hidden_runs_where_runs_alone_are_narrowed(
    world: World, on_site: Any
) -> None:
    theirs = world.theirs
    of_runs = {each: marker for each, marker in world.markers.items() if each.startswith("run")}
    markers = of_runs | {each: f"hush-{each}" for each in RUN_TEXTS}
    walk = Walk(on_site(narrowed_sites.runs), World(world.mine, theirs, markers))
    for address in ADDRESSES:
        if address.method == "GET":
            response = walk.ask(
                "GET", address.url(theirs) + f"?at={theirs.ended.scheduled_at:%Y-%m-%dT%H:%M:%SZ}"
            )
            if address.rows.keys() & {"run_id", "attempt_id"} or {*address.rows.values()} & {
                "run",
                "ended",
                "attempt",
            }:
                walk.refused(response, address)
    assert not walk.breaches, "\n".join(walk.breaches)


def test_what_object_permissions_refuse_is_refused_at_each_address(
    world: World, on_site: Any
) -> None:
    """``JobAdmin`` alone checks object permissions; runs, attempts and alerts follow their job."""
    walk = Walk(on_site(narrowed_sites.guarded), World(world.mine, world.theirs, {}))
    for address in ADDRESSES:
        if {*address.rows.values()} & {"job", "paused", "run", "ended", "attempt", "alert"}:
            walk.refused(walk.ask(address.method, address.url(world.theirs), address.post), address)
    _walk_actions(walk)
    assert not walk.breaches, "\n".join(walk.breaches)


def test_a_verb_asks_its_own_object_permission(world: World, on_site: Any) -> None:
    client, (mine, theirs) = on_site(narrowed_sites.watched), (world.mine, world.theirs)
    before = rows_of_others()
    refused = ["run_now", "run_with"]
    pages = {rows.job.namespace: client.get(job_url(rows.job)) for rows in (mine, theirs)}
    buttons = {
        name: [button.url for button in page.context["buttons"]] for name, page in pages.items()
    }
    offered = {
        name: [verb in " ".join(urls) for verb in (*refused, "backfill", "pause")]
        for name, urls in buttons.items()
    }

    assert offered == {"mine": [True, True, True, True], "hush": [False, False, False, True]}
    assert [client.post(verb_url(theirs.job, verb)).status_code for verb in refused] == [403, 403]
    assert (
        client.get(reverse("admin:django_dcron_job_backfill", args=[theirs.job.pk])).status_code
        == 403
    )
    chosen = {"action": "run_now", "_selected_action": [mine.job.pk, theirs.job.pk]}
    asked = client.post(list_url("job"), chosen)
    assert asked.context["keys"] == [mine.job.pk]
    client.post(list_url("job"), {**chosen, "confirmed": "1"})
    assert rows_of_others() == before
    assert Run.objects.filter(job=mine.job, trigger="manual").count() == 1


def test_a_job_that_its_author_could_not_see_is_not_saved(world: World, on_site: Any) -> None:
    client = on_site(narrowed_sites.teams)
    before = list(Job.objects.order_by("pk").values())
    new = {
        **as_rendered(client.get(add_url())),
        "name": "new",
        "target": "tests.app.tasks.echo",
        "schedule": "@daily",
    }

    made = client.post(add_url(), {**new, "namespace": "hush"})
    moved = fill_in(client, job_url(world.mine.paused), namespace="hush")

    assert (made.status_code, moved.status_code) == (302, 302)
    assert list(Job.objects.order_by("pk").values()) == before
    assert client.post(add_url(), {**new, "namespace": "mine"}).status_code == 302
    assert Job.objects.filter(namespace="mine", name="new").exists()


def test_a_job_names_no_hidden_calendar_and_comes_after_no_hidden_job(
    world: World, on_site: Any
) -> None:
    client, job = on_site(narrowed_sites.teams), world.mine.paused
    nobody = errors(fill_in(client, job_url(job), after='{"mine/nobody": "ended"}'))["after"]
    hidden = errors(fill_in(client, job_url(job), after='{"hush/hush-job": "ended"}'))["after"]
    calendar = errors(fill_in(client, job_url(job), calendar="hush-calendar"))

    assert hidden == [nobody[0].replace("mine/nobody", "hush/hush-job")]
    assert calendar.keys() == {"calendar"}


def test_a_circle_through_a_hidden_job_does_not_name_it(world: World, on_site: Any) -> None:
    client = on_site(narrowed_sites.teams)
    Job.objects.filter(pk=world.mine.job.pk).update(after={"hush/hush-follower": "failed"})

    shown = errors(
        fill_in(client, job_url(world.mine.job), after='{"hush/hush-follower": "ended"}')
    )["after"]

    assert "hush" not in " ".join(shown)


def test_a_job_keeps_the_hidden_rows_that_it_names_already(world: World, on_site: Any) -> None:
    client, job = on_site(narrowed_sites.teams), world.mine.paused
    job.refresh_from_db()
    job.calendar, job.after = world.theirs.calendar, {"hush/hush-job": "ended"}
    control.save(job)

    response = fill_in(client, job_url(job), description="changed")

    job.refresh_from_db()
    assert response.status_code == 302
    assert (job.description, job.calendar_id, job.after) == (
        "changed",
        "hush-calendar",
        {"hush/hush-job": "ended"},
    )


@pytest.mark.every_database
def test_figures_count_what_is_visible_alone(world: World) -> None:
    now = database_now("default")
    mine = Scope(
        {
            Job: Job.objects.filter(namespace="mine"),
            Run: Run.objects.filter(job__namespace="mine"),
        }.get
    )
    nothing = Scope({Job: Job.objects.none(), Run: Run.objects.none()}.get)

    def counted(scope: Scope) -> list[int]:
        jobs, runs = job_figures(now, scope), run_figures(now, scope)
        lanes = timeline(now, scope=scope).lanes
        load = planned_load(now.date(), UTC, scope=scope)
        numbers = [
            jobs.total,
            jobs.paused,
            runs.running.number,
            runs.failed.number,
            runs.missed.number,
        ]
        return [
            *numbers,
            runs.starts.number,
            len(latest_failures(now - 24 * HOUR, 10, scope)),
            len(lanes),
            load.jobs,
        ]

    assert counted(mine) == [2, 1, 1, 1, 1, 2, 1, 2, 1]
    assert counted(EVERYTHING) == [5, 2, 2, 2, 2, 4, 2, 5, 3]
    assert counted(nothing) == [0] * 9
