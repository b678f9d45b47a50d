"""Test that a project can narrow its admin: no URL shows or changes the rows of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC
from html import unescape
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.db import transaction
from django.db.models import F
from django.test import Client
from django.urls import clear_url_caches, reverse, set_urlconf

from django_dcron import control
from django_dcron.admin.jobs.job_actions import NOT_VISIBLE
from django_dcron.db.now import database_now
from django_dcron.diagnosis.failures import latest_failures
from django_dcron.diagnosis.figures import job_figures, run_figures
from django_dcron.diagnosis.load import planned_load
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.diagnosis.timeline import timeline
from django_dcron.models import (
    AuditEntry,
    Calendar,
    Cursor,
    Incident,
    Job,
    Link,
    Node,
    Run,
    Statistics,
)
from django_dcron.policies.health.facts import FAILURES_UNTIL_WARNING
from django_dcron.runs.chains import follower_key
from tests.admin import narrowed_sites
from tests.admin.conftest import (
    StaffWith,
    action_url,
    add_url,
    as_rendered,
    counted_writes,
    errors,
    fill_in,
    job_url,
    list_url,
    make_attempt,
    make_job,
    make_run,
    messages,
    run_url,
    section_url,
)
from tests.admin.test_permissions import ENDPOINTS, NEVER
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


class Crawler:
    """Sends requests, rolls back their changes and collects breaches."""

    def __init__(self, client: Client, world: World) -> None:
        self.client = client
        self.world = world
        self.before = rows_of_others()
        self.breaches: list[str] = []
        self.requests = 0

    def request(self, method: str, url: str, sent: Any = None, **headers: Any) -> Any:
        """Send a request and record a breach if the response reveals a marker."""
        self.requests += 1
        with transaction.atomic(), counted_writes() as writes:
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
        requested = f"{url} {sent}"
        shown = text.decode() + messages + "".join(map(str, response.headers.values()))
        for what, marker in self.world.markers.items():
            if marker in shown and marker not in requested:
                at = shown.index(marker)
                self.breaches.append(
                    f"{method} {url} {sent or ''} shows {what}: "
                    f"{shown[max(at - 80, 0) : at + 60]!r}"
                )
        if response.status_code >= 500:
            self.breaches.append(f"{method} {url} {sent or ''} returns {response.status_code}")
        return response

    def check_refused(self, response: Any, what: Any) -> None:
        """Record a breach unless the response refuses: a 403, a 404, a redirect or a reload."""
        to_index = response.status_code == 302 and response["Location"] == reverse("admin:index")
        is_reload = (
            response.status_code == 200
            and "HX-Refresh" in response.headers
            and not response.content
        )
        if not (to_index or is_reload or response.status_code in (403, 404)):
            self.breaches.append(f"{what} returns {response.status_code}")


def _list_actions() -> list[tuple[str, list[str]]]:
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
        ("limit", ["delete_selected"]),
        ("incident", ["acknowledge", "mute", "resolve", "reopen"]),
    ]


def _queries(rows: Rows) -> list[str]:
    """Return query strings that search a list for the rows of others."""
    return [
        f"q={rows.run.pk}",
        "q=hush",
        "namespace=hush",
        "tag=hush-tag",
        "log=hush",
        "ungrouped=1",
        "worker=hush-worker",
        "state=running",
        f"job__id__exact={rows.job.pk}",
        "job_name=hush",
        f"job_name={rows.job}",
        "when=24h",
        "trigger__exact=chain",
        f"id__exact={rows.job.pk}",
    ]


def _crawl_addresses(crawler: Crawler) -> None:
    for endpoint in ENDPOINTS:
        method, expected = endpoint.method, 403 if endpoint.needs in NEVER else endpoint.status
        if endpoint.name == "django_dcron_job_restore":
            expected = 404  # nothing shows who could see a job that is no longer stored
        response = crawler.request(method, endpoint.url(crawler.world.mine), endpoint.post)
        refused_here = {
            ("django_dcron_calendar_delete", "POST"),  # a job refers to the calendar
            ("django_dcron_calendar_delete", "GET"),
            ("django_dcron_limit_delete", "POST"),  # likewise
            ("django_dcron_limit_delete", "GET"),
            ("django_dcron_freeze_add", "POST"),  # it would affect hidden jobs
        }
        if response.status_code != expected and (endpoint.name, method) not in refused_here:
            crawler.breaches.append(f"{endpoint} returns {response.status_code} for one's own row")
        if endpoint.rows:
            crawler.check_refused(
                crawler.request(method, endpoint.url(crawler.world.theirs), endpoint.post), endpoint
            )


def _crawl_lists(crawler: Crawler) -> None:
    theirs = crawler.world.theirs
    for model in (
        "job",
        "run",
        "attempt",
        "node",
        "alert",
        "calendar",
        "limit",
        "freeze",
        "incident",
    ):
        for query in _queries(theirs):
            crawler.request("GET", f"{list_url(model)}?{query}")
    for query in ("q=hush", "namespace=hush"):
        for model in ("job", "run"):
            crawler.request(
                "GET", reverse(f"admin:django_dcron_{model}_export", args=["json"]) + f"?{query}"
            )


def _crawl_other_urls(crawler: Crawler) -> None:
    mine, theirs = crawler.world.mine, crawler.world.theirs
    _crawl_actions(crawler)
    for typed in ("hush", str(theirs.job)):
        url = reverse("admin:django_dcron_job_suggestions")
        crawler.request("GET", f"{url}?job_name={typed}")
    for query in ("namespace=hush", "q=hush", "q=job"):
        for name in ("health", "tiles", "timeline", "failures", "cluster", "load"):
            crawler.request("GET", section_url(name, query))
    for model, field in (
        ("run", "job"),
        ("run", "rerun_of"),
        ("job", "calendar"),
        ("job", "limit"),
    ):
        query = f"?app_label=django_dcron&model_name={model}&field_name={field}&term="
        crawler.request("GET", reverse("admin:autocomplete") + query)
    for run in (mine.ended, theirs.ended):
        for job in (mine.job, theirs.job):
            url = reverse("admin:django_dcron_job_why", args=[job.pk])
            crawler.request("GET", f"{url}?at={run.scheduled_at:%Y-%m-%dT%H:%M:%S}Z")


def _crawl_actions(crawler: Crawler) -> None:
    for model, actions in _list_actions():
        key = getattr(crawler.world.theirs, model).pk
        for action in actions:
            sent = {
                "action": action,
                "_selected_action": [str(key)],
                "confirmed": "1",
                "post": "yes",
            }
            crawler.request("POST", list_url(model), sent)
            crawler.request("POST", list_url(model), {**sent, "select_across": "1"})


@pytest.mark.parametrize("part", [_crawl_addresses, _crawl_lists, _crawl_other_urls])
def test_narrowed_job_admin_neither_shows_nor_changes_rows_of_others(
    part: Callable[[Crawler], None], world: World, on_site: Any
) -> None:
    crawler = Crawler(on_site(narrowed_sites.teams), world)

    part(crawler)

    assert not crawler.breaches, "\n".join(crawler.breaches)
    assert crawler.requests > 40


def test_hidden_job_with_the_typed_name_does_not_decide_which_runs_are_found(
    world: World, on_site: Any
) -> None:
    client = on_site(narrowed_sites.teams)

    def found(typed: str) -> set[int]:
        rows = client.get(list_url("run"), {"job_name": typed}).context["cl"].result_list
        return {run.job_id for run in rows}

    before = found("mine")
    make_job("mine", namespace="default")

    assert world.mine.job.pk in before
    assert found("mine") == before


@pytest.mark.parametrize("field", ["namespace", "calendar", "limit", "after"])
def test_revert_neither_hides_the_job_nor_refers_to_hidden_rows(
    field: str, world: World, on_site: Any
) -> None:
    job, theirs = world.mine.job, world.theirs.job
    own, hidden = getattr(job, field), getattr(theirs, field)
    if field == "after":
        hidden = {str(theirs): "ended"}
    for value in (hidden, own):
        setattr(job, field, value)
        control.save(job)
    url = reverse("admin:django_dcron_job_revert", args=[job.pk, job.version])

    shown = get_messages(on_site(narrowed_sites.teams).post(url).wsgi_request)

    assert [message.level_tag for message in shown] == ["error"]
    assert getattr(Job.objects.get(pk=job.pk), field) == own
    on_site(narrowed_sites.watched).post(url)
    assert getattr(Job.objects.get(pk=job.pk), field) == hidden


def test_dashboard_numbers_count_visible_rows_only(world: World, on_site: Any) -> None:
    def numbers(site: AdminSite) -> dict[str, str]:
        tiles = on_site(site).get(section_url("tiles")).context["tiles"]
        return {tile.name: tile.value for tile in tiles}

    everything, mine = numbers(narrowed_sites.watched), numbers(narrowed_sites.teams)
    assert (everything["jobs"], everything["failed"]) == ("5", "2")
    assert (mine["jobs"], mine["failed"]) == ("2", "1")


def test_health_lines_name_no_hidden_job(world: World, on_site: Any) -> None:
    Cursor.objects.filter(job=world.theirs.job).update(problem="unknown time zone")

    def summaries(site: AdminSite) -> str:
        lines = on_site(site).get(section_url("health")).context["health"]
        return " ".join(line.summary for line in lines)

    assert "hush-job" in summaries(narrowed_sites.watched)
    assert "hush-job" not in summaries(narrowed_sites.teams)


def test_health_line_links_to_the_last_failure_that_is_visible(world: World, on_site: Any) -> None:
    Statistics.objects.update(consecutive_failures=FAILURES_UNTIL_WARNING)
    Incident.objects.filter(job=world.theirs.job).update(last_seen_at=F("last_seen_at") + HOUR)

    def causes(site: AdminSite) -> list[str]:
        lines = on_site(site).get(section_url("health")).context["health"]
        return [line.cause.text for line in lines if line.cause]

    assert [cause.partition(":")[0] for cause in causes(narrowed_sites.watched)] == [
        str(world.theirs.job)
    ]
    assert [cause.partition(":")[0] for cause in causes(narrowed_sites.teams)] == [
        str(world.mine.job)
    ]


def test_months_of_a_job_do_not_name_entries_of_a_hidden_calendar(
    world: World, on_site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = world.theirs.calendar
    others = Calendar.objects.exclude(pk=theirs.pk)
    calendar_admin = type(narrowed_sites.teams._registry[Calendar])
    monkeypatch.setattr(calendar_admin, "get_queryset", lambda self, request: others.all())
    Calendar.objects.filter(pk=theirs.pk).update(dates="SAT # hush-comment")
    Job.objects.filter(pk=world.mine.job.pk).update(calendar=theirs, schedule="0 9 * * *")
    url = reverse("admin:django_dcron_job_change", args=[world.mine.job.pk])

    assert "hush-comment" not in on_site(narrowed_sites.teams).get(url).content.decode()


def test_calendar_pages_count_but_do_not_name_hidden_jobs(world: World, on_site: Any) -> None:
    mine, theirs = world.mine, world.theirs
    Job.objects.filter(pk=theirs.job.pk).update(calendar=mine.calendar)
    client = on_site(narrowed_sites.teams)

    url = reverse("admin:django_dcron_calendar_delete", args=[mine.calendar.pk])
    page = client.get(url).content.decode()
    assert "mine-job" in page
    assert "hush" not in page
    rows = client.get(list_url("calendar")).context["cl"].result_list
    assert [row.number_of_jobs for row in rows] == [2]


def test_delete_page_counts_hidden_followers_without_names(world: World, on_site: Any) -> None:
    url = reverse("admin:django_dcron_job_delete", args=[world.mine.job.pk])

    lines = on_site(narrowed_sites.teams).get(url).context["deleted_objects"]

    assert len(lines) == 2
    assert "1 job" in lines[1]


def test_delete_page_counts_a_hidden_follower_of_two_jobs_once(world: World, on_site: Any) -> None:
    follower = Link.objects.get(after=world.mine.job).job
    second = make_job("second", namespace="mine")
    Link.objects.create(job=follower, after=second, on="ended")
    chosen = {"action": "delete_selected", "_selected_action": [world.mine.job.pk, second.pk]}

    page = on_site(narrowed_sites.teams).post(list_url("job"), chosen)

    assert len(page.context["deletable_objects"][0]) == 3
    assert "1 job" in page.context["deletable_objects"][0][-1]


def test_runs_of_a_deleted_job_are_visible_to_those_who_could_see_the_job(
    world: World, on_site: Any
) -> None:
    mine, other = world.mine.job, world.theirs.job
    for job in (mine, other):
        make_run(job, state="succeeded")
        control.delete(job)
    page = on_site(narrowed_sites.teams).get(list_url("run")).content.decode()

    assert f"(deleted {mine.pk})" in page
    assert f"(deleted {other.pk})" not in page


@pytest.mark.parametrize("shows_jobs", [True, False])
def test_dashboard_shows_first_steps_if_no_job_is_visible(
    world: World, on_site: Any, shows_jobs: bool
) -> None:
    if not shows_jobs:
        Job.objects.update(namespace="hush")

    page = on_site(narrowed_sites.teams).get(reverse("admin:django_dcron_dashboard_changelist"))

    assert ('id="dcron-first_steps"' in page.content.decode()) is not shows_jobs


def test_planned_load_counts_visible_jobs_only(world: World, on_site: Any) -> None:
    def counted(site: AdminSite) -> int:
        number: int = on_site(site).get(section_url("load")).context["load"].jobs
        return number

    assert counted(narrowed_sites.watched) == 3
    assert counted(narrowed_sites.teams) == 1


def test_run_page_does_not_link_node_that_user_may_not_view(
    world: World, on_site: Any, staff_with: StaffWith
) -> None:
    Run.objects.filter(pk=world.mine.ended.pk).update(node=world.theirs.node.pk)
    url = reverse("admin:django_dcron_node_change", args=[world.theirs.node.pk])

    def links_node(client: Client) -> bool:
        return f'href="{url}"' in client.get(run_url(world.mine.ended)).content.decode()

    assert links_node(on_site(narrowed_sites.watched))
    assert not links_node(on_site(narrowed_sites.teams))
    on_site(narrowed_sites.watched)
    assert not links_node(staff_with("view_run"))


def test_pages_do_not_say_that_there_is_no_node_if_it_is_hidden(world: World, on_site: Any) -> None:
    Node.objects.exclude(pk=world.theirs.node.pk).delete()
    live = {"heartbeat_at": database_now("default") + HOUR}

    def names_scheduler(namespace: str) -> bool:
        Node.objects.update(namespace=namespace, **live)
        client = on_site(narrowed_sites.teams)
        page = client.get(job_url(world.mine.job)).content.decode()
        assert "data-dcron-no-scheduler" not in page
        section = client.get(section_url("cluster")).content.decode()
        assert "data-dcron-no-nodes" not in section
        assert ("data-dcron-hidden-nodes" in section) == (namespace != "mine")
        return "data-dcron-scheduler" in page

    assert names_scheduler("mine")
    assert not names_scheduler("")


@pytest.fixture
def hidden(world: World) -> Run:
    """A manual run between the two scheduled runs of a visible job."""
    at = world.mine.ended.scheduled_at + HOUR / 4
    return make_run(world.mine.job, at, trigger="manual", state="failed", finished_at=at)


def test_run_page_skips_hidden_neighbors(world: World, hidden: Run, on_site: Any) -> None:
    def neighbors(site: AdminSite) -> list[Any]:
        client = on_site(site)
        pages = [client.get(run_url(run)).context["page"] for run in (mine.ended, mine.run)]
        return [pages[0].next.pk, pages[1].previous.pk]

    mine = world.mine
    assert neighbors(narrowed_sites.watched) == [hidden.pk, hidden.pk]
    assert neighbors(narrowed_sites.planned) == [mine.run.pk, mine.ended.pk]


@pytest.mark.parametrize(
    "link",
    [
        lambda run, hidden: {"rerun_of": hidden},
        lambda run, hidden: {"trigger": "chain", "idempotency_key": follower_key(hidden.pk)},
    ],
    ids=["rerun", "follower"],
)
def test_run_page_does_not_name_hidden_origin(
    world: World,
    hidden: Run,
    on_site: Any,
    link: Callable[[Run, Run], dict[str, Any]],
) -> None:
    run = world.mine.ended
    for name, value in link(run, hidden).items():
        setattr(run, name, value)
    run.save()

    def names_origin(site: AdminSite) -> bool:
        return str(hidden.pk) in on_site(site).get(run_url(run)).content.decode()

    assert names_origin(narrowed_sites.watched)
    assert not names_origin(narrowed_sites.planned)


def test_run_page_does_not_name_pruned_origin_in_narrowed_admin(world: World, on_site: Any) -> None:
    """The page doesn't reveal whether a missing run was deleted or is hidden."""
    run, gone = world.mine.ended, uuid4()
    Run.objects.filter(pk=run.pk).update(trigger="chain", idempotency_key=follower_key(gone))

    assert str(gone) in on_site(narrowed_sites.watched).get(run_url(run)).content.decode()
    assert str(gone) not in on_site(narrowed_sites.planned).get(run_url(run)).content.decode()


def test_run_page_lists_visible_reruns_only(world: World, hidden: Run, on_site: Any) -> None:
    Run.objects.filter(pk=hidden.pk).update(rerun_of=world.mine.ended.pk)
    # Another job's run, so that the page doesn't link it as a neighbor.
    Run.objects.filter(pk=hidden.pk).update(job=world.mine.paused)

    def names_rerun(site: AdminSite) -> bool:
        page = on_site(site).get(run_url(world.mine.ended)).content.decode()
        return str(hidden.pk) in page

    assert names_rerun(narrowed_sites.watched)
    assert not names_rerun(narrowed_sites.planned)


def test_why_page_names_visible_runs_only(world: World, hidden: Run, on_site: Any) -> None:
    job, ended = world.mine.job, world.mine.ended
    noon = ended.scheduled_at.replace(minute=0, second=0, microsecond=0)
    skipped = {"scheduled_at": noon, "state": "skipped", "finished_at": noon + HOUR / 60}
    Run.objects.filter(pk=ended.pk).update(**skipped)
    running = {"state": "running", "started_at": noon, "finished_at": None}
    Run.objects.filter(pk=hidden.pk).update(**running)
    of_user: dict[str, Any] = {"trigger": "manual", "state": "failed"}
    manual = make_run(job, noon + HOUR / 7200, **of_user)
    rerun = make_run(job, noon + HOUR / 4, rerun_of=ended, **of_user)

    def named_on(site: AdminSite) -> set[Run]:
        url = reverse("admin:django_dcron_job_why", args=[job.pk])
        page = on_site(site).get(f"{url}?at={noon:%Y-%m-%dT%H:%M:%S}Z")
        text = page.content.decode()
        return {run for run in (ended, hidden, manual, rerun) if str(run.pk) in text}

    assert named_on(narrowed_sites.watched) == {ended, hidden, manual, rerun}
    assert named_on(narrowed_sites.planned) == {ended}


def test_run_page_shows_visible_attempts_only(world: World, on_site: Any) -> None:
    make_attempt(world.mine.ended, number=2, outcome="failed")

    def numbers(site: AdminSite) -> list[int]:
        page = on_site(site).get(run_url(world.mine.ended)).context["page"]
        return [attempt.number for attempt in page.attempts]

    assert numbers(narrowed_sites.watched) == [2, 1]
    assert numbers(narrowed_sites.planned) == [1]


def test_dashboard_shows_messages_of_visible_attempts_only(world: World, on_site: Any) -> None:
    now = database_now("default")
    run = make_run(world.mine.job, now, state="failed", attempt=2, reason="short", finished_at=now)
    make_attempt(run, number=2, outcome="failed", message="long")

    def messages_on(site: AdminSite) -> set[str]:
        rows = on_site(site).get(section_url("failures")).context["rows"]
        return {row.failure.message for row in rows if row.failure.run == run}

    assert messages_on(narrowed_sites.watched) == {"long"}
    assert messages_on(narrowed_sites.planned) == {"short"}


@pytest.mark.parametrize("site", ["planned", "locked"])
def test_action_does_not_link_run_that_its_user_may_not_view(
    world: World, on_site: Any, site: str
) -> None:
    client, job = on_site(getattr(narrowed_sites, site)), world.mine.job

    status = client.post(action_url(job, "run_now"))

    made = Run.objects.get(job=job, trigger="manual")
    assert status["Location"] == job_url(job)
    shown = " ".join(map(str, get_messages(status.wsgi_request)))
    assert str(made.pk) in shown
    assert "href=" not in shown


def test_resume_names_no_hidden_job_that_does_the_same(world: World, on_site: Any) -> None:
    client = on_site(narrowed_sites.teams)
    job = make_job("old", namespace="mine", import_source="redbeat", import_key="old")
    twin = make_job("hidden-twin", namespace="theirs", declared={})
    for namespace, is_named in (("theirs", False), ("mine", True)):
        Job.objects.filter(pk=twin.pk).update(namespace=namespace)
        job.refresh_from_db()
        control.pause(job)
        response = client.post(action_url(job, "resume"))
        shown = " ".join(map(str, get_messages(response.wsgi_request)))
        assert ("hidden-twin" in shown) == is_named
        client.cookies.pop("messages")


def test_action_links_run_that_its_user_may_view(world: World, on_site: Any) -> None:
    client, job = on_site(narrowed_sites.watched), world.mine.job

    status = client.post(action_url(job, "run_now"))

    made = Run.objects.get(job=job, trigger="manual")
    assert status["Location"] == run_url(made)
    assert str(made.pk) in " ".join(map(str, get_messages(status.wsgi_request)))


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


def test_narrowed_run_admin_shows_no_hidden_runs(world: World, on_site: Any) -> None:
    theirs = world.theirs
    run_markers = {each: marker for each, marker in world.markers.items() if each.startswith("run")}
    markers = run_markers | {each: f"hush-{each}" for each in RUN_TEXTS}
    crawler = Crawler(on_site(narrowed_sites.runs), World(world.mine, theirs, markers))
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET":
            response = crawler.request(
                "GET", endpoint.url(theirs) + f"?at={theirs.ended.scheduled_at:%Y-%m-%dT%H:%M:%SZ}"
            )
            if endpoint.rows.keys() & {"run_id", "attempt_id"} or {*endpoint.rows.values()} & {
                "run",
                "ended",
                "attempt",
            }:
                crawler.check_refused(response, endpoint)
    assert not crawler.breaches, "\n".join(crawler.breaches)


def test_object_permissions_of_jobs_apply_to_every_url(world: World, on_site: Any) -> None:
    """Only ``JobAdmin`` checks object permissions. Runs, attempts and alerts follow their job."""
    crawler = Crawler(on_site(narrowed_sites.guarded), World(world.mine, world.theirs, {}))
    for endpoint in ENDPOINTS:
        if {*endpoint.rows.values()} & {"job", "paused", "run", "ended", "attempt", "alert"}:
            crawler.check_refused(
                crawler.request(endpoint.method, endpoint.url(world.theirs), endpoint.post),
                endpoint,
            )
    _crawl_actions(crawler)
    assert not crawler.breaches, "\n".join(crawler.breaches)


def test_action_checks_its_own_object_permission(world: World, on_site: Any) -> None:
    client, (mine, theirs) = on_site(narrowed_sites.watched), (world.mine, world.theirs)
    before = rows_of_others()
    refused = ["run_now", "run_with"]
    pages = {rows.job.namespace: client.get(job_url(rows.job)) for rows in (mine, theirs)}
    buttons = {
        name: [button.url for button in page.context["buttons"]] for name, page in pages.items()
    }
    offered = {
        name: [action in " ".join(urls) for action in (*refused, "backfill", "pause")]
        for name, urls in buttons.items()
    }

    assert offered == {"mine": [True, True, True, True], "hush": [False, False, False, True]}
    assert [client.post(action_url(theirs.job, action)).status_code for action in refused] == [
        403,
        403,
    ]
    assert (
        client.get(reverse("admin:django_dcron_job_backfill", args=[theirs.job.pk])).status_code
        == 403
    )
    chosen = {"action": "run_now", "_selected_action": [mine.job.pk, theirs.job.pk]}
    confirmation = client.post(list_url("job"), chosen)
    assert confirmation.context["keys"] == [mine.job.pk]
    client.post(list_url("job"), {**chosen, "confirmed": "1"})
    assert rows_of_others() == before
    assert Run.objects.filter(job=mine.job, trigger="manual").count() == 1


def test_job_invisible_to_its_author_is_not_saved(world: World, on_site: Any) -> None:
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


def test_job_is_not_duplicated_if_the_copy_would_be_hidden(world: World, on_site: Any) -> None:
    url = action_url(world.mine.job, "duplicate")
    before = list(Job.objects.order_by("pk").values())
    entries = AuditEntry.objects.count()
    response = on_site(narrowed_sites.enabled).post(url, follow=True)
    assert response.status_code == 200
    assert list(Job.objects.order_by("pk").values()) == before
    assert AuditEntry.objects.count() == entries
    (message,) = messages(response)
    assert str(NOT_VISIBLE) in unescape(message)
    on_site(narrowed_sites.teams).post(url)
    assert Job.objects.count() == len(before) + 1


def test_form_rejects_hidden_calendar_and_predecessor(world: World, on_site: Any) -> None:
    client, job = on_site(narrowed_sites.teams), world.mine.paused
    nobody = errors(fill_in(client, job_url(job), after='{"mine/nobody": "ended"}'))["after"]
    hidden = errors(fill_in(client, job_url(job), after='{"hush/hush-job": "ended"}'))["after"]
    calendar = errors(fill_in(client, job_url(job), calendar="hush-calendar"))
    limit = errors(fill_in(client, job_url(job), limit="hush-limit"))

    assert hidden == [nobody[0].replace("mine/nobody", "hush/hush-job")]
    assert calendar.keys() == {"calendar"}
    assert limit.keys() == {"limit"}


def test_cycle_error_does_not_name_hidden_job(world: World, on_site: Any) -> None:
    client = on_site(narrowed_sites.teams)
    Job.objects.filter(pk=world.mine.job.pk).update(after={"hush/hush-follower": "failed"})

    shown = errors(
        fill_in(client, job_url(world.mine.job), after='{"hush/hush-follower": "ended"}')
    )["after"]

    assert "hush" not in " ".join(shown)


def test_saving_keeps_existing_references_to_hidden_rows(world: World, on_site: Any) -> None:
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


def test_rows_of_a_scope_are_unordered() -> None:
    narrowed = Scope(lambda model: model._default_manager.filter(pk__isnull=False))
    for scope in (EVERYTHING, narrowed):
        assert not any(rows.ordered for rows in (scope.jobs, scope.runs, scope.attempts))
    assert Run.objects.all().ordered, "by its model"


@pytest.mark.every_database
def test_figures_count_visible_rows_only(world: World) -> None:
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


def test_site_without_runs_shows_jobs_without_links_to_runs(world: World, on_site: Any) -> None:
    client = on_site(narrowed_sites.only_jobs)
    job = world.mine.job
    status_url = reverse("admin:django_dcron_job_status", args=[job.pk])
    for url in (list_url("job"), job_url(job), status_url):
        response = client.get(url)
        assert response.status_code == 200, url
        assert "/run/" not in response.content.decode(), url
