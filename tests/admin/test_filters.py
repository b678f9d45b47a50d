"""Test the filters of the lists: their results, their choices and the cost of their queries.

The number of choices is bounded. No query joins or counts a million rows.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_dcron import control
from django_dcron.admin.jobs.page import job_state_badges
from django_dcron.admin.lists import filters, time_filter
from django_dcron.admin.lists.time_filter import ATTEMPTS_SEARCHED
from django_dcron.db.now import database_now
from django_dcron.diagnosis.job_filters import tags
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.models import Attempt, Cursor, Job, Node, Run, Statistics
from tests.admin.conftest import NOON, list_url, make_attempt, make_job, make_run
from tests.factories import make_node

Find = Callable[[str, str], list[Any]]


@pytest.fixture
def find_rows(admin_client: Client) -> Find:
    """Return a function that lists the rows for a query string."""

    def found(model: str, query: str) -> list[Any]:
        response = admin_client.get(f"{list_url(model)}?{query}")
        assert response.status_code == 200, response.headers
        return list(response.context["cl"].result_list)

    return found


def _choices(client: Client, model: str, title: str, query: str = "") -> list[str]:
    changelist = client.get(f"{list_url(model)}?{query}").context["cl"]
    (spec,) = [spec for spec in changelist.filter_specs if str(spec.title) == title] or [None]
    return [str(choice["display"]) for choice in spec.choices(changelist)] if spec else []


# --- Tags -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tag", ["billing", "Zürich", "日本", 'with "quotes"', "back\\slash", "per%cent", "it's", "1"]
)
def test_tag_filter_finds_job_by_any_of_its_tags(find_rows: Find, tag: str) -> None:
    job = make_job("tagged", tags=["first", tag, "last"])
    make_job("other", tags=["other"])
    make_job("without")
    assert find_rows("job", f"tag={quote(tag)}") == [job]


@pytest.mark.parametrize(
    "tag", ["bill", "BILLING", "billing ", '"billing"', '["billing"]', "%", "b_lling", "{}", "null"]
)
def test_tag_filter_matches_whole_tags_only(find_rows: Find, tag: str) -> None:
    make_job(tags=["billing", "other"])
    assert find_rows("job", f"tag={quote(tag)}") == []


@pytest.mark.sqlite
@pytest.mark.postgresql
def test_tag_filter_finds_unescaped_tag_of_other_program(find_rows: Find) -> None:
    """Another program may store a tag unescaped.

    MariaDB isn't tested: it compares the stored text and wouldn't find the tag.
    """
    job = make_job()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_dcron_job SET tags = '[\"Zürich\", 7]'")

    assert find_rows("job", "tag=Z%C3%BCrich") == [job]


def test_tag_filter_offers_first_tags_and_chosen_tag(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _choices(admin_client, "job", "tag") == []
    make_job("a", tags=["x", "y"])
    make_job("b", tags=["y", "z"])
    monkeypatch.setattr(filters, "CHOICES_LISTED", 2)

    assert _choices(admin_client, "job", "tag") == ["All", "x (1)", "y (2)"]
    assert _choices(admin_client, "run", "tag") == ["All", "x", "y"]
    assert _choices(admin_client, "job", "tag", "tag=z") == ["All", "x (1)", "y (2)", "z (1)"]
    monkeypatch.setattr(tags, "LISTS_READ_LIMIT", 1)  # the database chooses the list to read
    choices = _choices(admin_client, "job", "tag", "tag=z")
    assert choices in (["All", "x", "y", "z"], ["All", "y", "z"])


# --- Jobs -----------------------------------------------------------------------------------------


@pytest.fixture
def jobs(db: None) -> None:
    make_job("fine")
    control.pause(make_job("paused"), "")
    make_job("broken")
    disable_exhausted([make_job("finished").pk], "default")
    running = make_job("running")
    make_run(running, state="running", started_at=NOON)
    make_run(running, NOON + timedelta(hours=1), state="running", started_at=NOON)
    Job.objects.filter(name="broken").update(target="command:check")
    Job.objects.filter(name="paused").update(target="shadow:old.task")
    Cursor.objects.filter(name="broken").update(problem="bad")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=enabled", {"fine", "running"}),
        ("state=paused", {"paused"}),
        ("state=finished", {"finished"}),
        ("state=quarantined", {"broken"}),
        ("state=running", {"running"}),
        ("state=nonsense", {"fine", "paused", "finished", "broken", "running"}),
        ("kind=command", {"broken"}),
        ("kind=shell", set()),
        ("kind=code", {"fine", "paused", "finished", "running"}),
        ("kind=code&state=running", {"running"}),
        ("kind=unknown", {"paused", "broken"}),
        ("kind=unknown&enabled__exact=1", {"broken"}),
    ],
)
def test_jobs_are_filtered_by_state_and_kind(
    find_rows: Find, jobs: None, query: str, expected: set[str]
) -> None:
    found = find_rows("job", query)

    assert {job.name for job in found} == expected
    assert len(found) == len(expected)  # each job once, even if several of its runs are running


@pytest.mark.parametrize(
    "query",
    [
        "",
        "state=running&namespace=shop",
        "state=enabled&last=failed",
        "state=failing&namespace=shop",
        "state=overdue",
        "state=nonsense&last=none",
        "last=nonsense",
        "q=shop",
        "kind=command",
    ],
)
def test_count_of_choice_is_number_of_jobs_that_its_link_lists(
    admin_client: Client, find_rows: Find, jobs: None, query: str
) -> None:
    make_job("one", namespace="shop", tags=["a", "b", "a"])
    make_run(make_job("two", namespace="shop", tags=["b"]), state="running", started_at=NOON)
    Statistics.objects.filter(job__name="one").update(last_state="failed")
    changelist = admin_client.get(f"{list_url('job')}?{query}").context["cl"]
    counted = 0
    for spec in changelist.filter_specs:
        for choice in spec.choices(changelist):
            if match := re.search(r"\((\d+)\)$", str(choice["display"])):
                counted += 1
                listed = find_rows("job", choice["query_string"][1:])
                assert int(match[1]) == len(listed), (spec.title, choice["display"])
    assert counted >= 12


def test_jobs_are_filtered_by_source(admin_client: Client, find_rows: Find) -> None:
    make_job("declared", declared={"schedule": "@daily"})
    make_job("here")
    make_job("imported", import_source="redbeat", import_key="1")
    found = {value: find_rows("job", f"source={value}") for value in ("code", "admin", "redbeat")}
    names = {value: [job.name for job in jobs] for value, jobs in found.items()}
    assert names == {"code": ["declared"], "admin": ["here"], "redbeat": ["imported"]}
    assert _choices(admin_client, "job", str(filters.SourceFilter.title))[-1] == "redbeat"


@pytest.mark.usefixtures("routes")
def test_jobs_are_filtered_by_queue_of_their_runs(admin_client: Client, find_rows: Find) -> None:
    make_job("named", queue="reports")
    make_job("routed", target="tests.app.tasks.echo")
    make_job("default")
    found = {value: find_rows("job", f"queue={value}") for value in ("reports", "celery", "none")}
    names = {value: sorted(job.name for job in jobs) for value, jobs in found.items()}
    assert names == {"reports": ["named", "routed"], "celery": ["default"], "none": []}
    title = str(filters.QueueFilter.title)
    assert _choices(admin_client, "job", title) == ["All", "celery", "reports"]


def test_failing_jobs_are_those_whose_status_says_so(
    admin_client: Client, find_rows: Find, jobs: None
) -> None:
    Statistics.objects.update(consecutive_failures=1)
    make_job("successful")

    failing = find_rows("job", "state=failing")

    assert {job.name for job in failing} == {"fine", "running"}
    shown = {job.name for job in find_rows("job", "") if ">Failing<" in job_state_badges(job)}
    assert shown == {job.name for job in failing}
    assert "Failing (2)" in _choices(admin_client, "job", str(filters.JobStateFilter.title))


def test_job_without_cursor_counts_as_enabled(find_rows: Find) -> None:
    job = make_job()
    job.cursor.delete()

    assert find_rows("job", "state=enabled") == [job]


def test_namespace_filter_is_offered_with_several_namespaces(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job("a")
    assert _choices(admin_client, "job", "namespace") == []
    make_job("a", namespace="shop")
    make_job("a", namespace="zoo")
    monkeypatch.setattr(filters, "CHOICES_LISTED", 2)

    assert _choices(admin_client, "job", "namespace") == ["All", "default (1)", "shop (1)"]
    assert _choices(admin_client, "run", "namespace", "namespace=zoo") == [
        "All",
        "default",
        "shop",
        "zoo",
    ]


def test_runs_of_deleted_jobs_are_found_by_namespace_and_tag(admin_client: Client) -> None:
    make_job("kept", tags=["a"])
    job = make_job("gone", namespace="shop", tags=["b"])
    make_run(job, state="succeeded")
    control.delete(job)

    assert _choices(admin_client, "run", "namespace") == ["All", "default", "shop"]
    assert _choices(admin_client, "run", "tag") == ["All", "a", "b"]
    assert _choices(admin_client, "job", "namespace") == []
    assert _choices(admin_client, "job", "tag") == ["All", "a (1)"]


def test_values_of_deleted_jobs_do_not_displace_those_of_live_jobs(admin_client: Client) -> None:
    for number in range(filters.CHOICES_LISTED + 1):
        job = make_job("a", namespace=f"branch-{number}", tags=[f"branch-{number}"])
        make_run(job, state="succeeded")
        control.delete(job)
    make_job("b", namespace="shop", tags=["shop"])

    for parameter in ("namespace", "tag"):
        choices = _choices(admin_client, "run", parameter)
        assert "shop" in choices
        assert "branch-0" in choices
        assert len(choices) == filters.CHOICES_LISTED + 1


# --- Runs -----------------------------------------------------------------------------------------


def test_runs_are_filtered_by_namespace_and_tag_of_job(find_rows: Find) -> None:
    plain = make_run(make_job("a"))
    shop = make_run(make_job("b", namespace="shop", tags=["billing"]))
    tagged = make_run(make_job("c", tags=["billing"]))

    assert find_rows("run", "namespace=shop") == [shop]
    assert set(find_rows("run", "tag=billing")) == {shop, tagged}
    assert find_rows("run", "tag=billing&namespace=default") == [tagged]
    assert find_rows("run", "tag=billing&namespace=default&q=shop") == []
    assert plain in find_rows("run", "namespace=default&q=default")
    assert find_rows("run", "namespace=nowhere") == []


@pytest.mark.parametrize("query", ["namespace=shop", "tag=billing", "q=shop"])
def test_run_filters_work_beyond_limit_of_inlined_jobs(
    find_rows: Find, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(filters, "MAX_JOB_IDS", 1)
    runs = {make_run(make_job(name, namespace="shop", tags=["billing"])) for name in "ab"}
    make_run(make_job("a"))

    assert set(find_rows("run", query)) == runs


@pytest.mark.parametrize(
    "query", ["namespace=shop", "tag=billing", "q=shop", "namespace=shop&tag=billing&when=24h"]
)
def test_run_list_queries_do_not_join_jobs(admin_client: Client, query: str) -> None:
    make_run(make_job(namespace="shop", tags=["billing"]))

    with CaptureQueriesContext(connection) as queries:
        admin_client.get(f"{list_url('run')}?{query}")

    about_runs = [query["sql"] for query in queries if "django_dcron_run" in query["sql"]]
    assert len(about_runs) >= 2  # the count and the rows
    assert [sql for sql in about_runs if "JOIN" in sql] == []
    assert not any("namespace" in sql for sql in about_runs)


# --- Time -----------------------------------------------------------------------------------------


@pytest.fixture
def runs_by_age(db: None) -> dict[str, Run]:
    """Runs by the age of their occurrence. The run ``ahead`` is claimed, but not due."""
    job, now = make_job(), database_now("default")
    spans = {"1m": 1, "2h": 120, "30h": 30 * 60, "9d": 9 * 24 * 60, "ahead": -1}
    return {
        name: make_run(job, now - timedelta(minutes=minutes)) for name, minutes in spans.items()
    }


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("1h", {"1m"}),
        ("24h", {"1m", "2h"}),
        ("7d", {"1m", "2h", "30h"}),
        ("nonsense", {"1m", "2h", "30h", "9d"}),
    ],
)
def test_when_filter_finds_runs_of_last_hours_or_days(
    find_rows: Find, runs_by_age: dict[str, Run], preset: str, expected: set[str]
) -> None:
    assert set(find_rows("run", f"when={preset}")) == {runs_by_age[name] for name in expected}


def test_upcoming_runs_are_hidden_unless_the_user_asks_for_them(
    find_rows: Find, runs_by_age: dict[str, Run]
) -> None:
    ahead = runs_by_age["ahead"]
    late = make_run(ahead.job, database_now("default") - timedelta(seconds=5))
    retry = make_run(ahead.job, database_now("default") + timedelta(hours=2), attempt=2)
    by_default = find_rows("run", "")
    assert {late, retry} <= set(by_default)
    assert ahead not in by_default
    for query in (
        "upcoming=shown",
        "state__exact=pending",
        "state__in=queued,pending",
        f"q={ahead.pk}",
        f"q={str(ahead.pk)[:23]}",
    ):
        assert ahead in find_rows("run", query), query
    assert ahead not in find_rows("run", "state__in=queued,running")
    assert ahead not in find_rows("run", f"q={ahead.job.name}")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_today_filter_covers_day_in_site_time_zone(
    find_rows: Find, zone: str, settings: Any
) -> None:
    settings.TIME_ZONE = zone
    midnight = timezone.localtime(database_now("default")).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    job, second = make_job(), timedelta(seconds=1)
    first, last = make_run(job, midnight), make_run(job, midnight + timedelta(days=1) - second)
    make_run(job, midnight - second)
    make_run(job, midnight + timedelta(days=1))

    found = find_rows("run", "when=today&upcoming=shown")

    assert (
        found == [last, first]
        or timezone.localtime(database_now("default")).date() != midnight.date()
    )


@pytest.mark.parametrize(
    ("query", "hours"),
    [
        ("scheduled_at__gte=2026-03-01T13:00", [14, 13]),
        ("scheduled_at__lt=2026-03-01T13:00", [12]),
        ("scheduled_at__gte=2026-03-01T13:00&scheduled_at__lt=2026-03-01T14:00", [13]),
        ("scheduled_at__gte=2026-03-01&scheduled_at__lt=2026-03-02", [14, 13, 12]),
        ("scheduled_at__gte=2026-03-01+14:00:00%2B01:00", [14, 13]),
        ("scheduled_at__gte=&scheduled_at__lt=", [14, 13, 12]),
        ("when=1h&scheduled_at__gte=2026-03-01", []),
    ],
)
def test_runs_are_filtered_by_exact_range(find_rows: Find, query: str, hours: list[int]) -> None:
    job = make_job()
    for hour in (12, 13, 14):
        make_run(job, NOON.replace(hour=hour))

    assert [run.scheduled_at.hour for run in find_rows("run", query)] == hours


def test_range_is_read_and_shown_in_site_time_zone(
    find_rows: Find, admin_client: Client, settings: Any
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    run = make_run(make_job(), NOON)

    assert find_rows(
        "run", "scheduled_at__gte=2026-03-01T21:00&scheduled_at__lt=2026-03-01T21:01"
    ) == [run]
    page = admin_client.get(
        f"{list_url('run')}?scheduled_at__gte=2026-03-01T12:00:00%2B00:00"
    ).content.decode()
    assert 'value="2026-03-01T21:00"' in page


@pytest.mark.parametrize(
    "text", ["yesterday", "2026-13-01", "0001-01-01T00:00%2B09:00", "9999-12-31T23:59-09:00"]
)
def test_invalid_time_redirects_to_unfiltered_list(admin_client: Client, text: str) -> None:
    response = admin_client.get(f"{list_url('run')}?scheduled_at__gte={text}")

    assert response.status_code == 302
    assert response["Location"].endswith("?e=1")


def test_range_form_keeps_other_filters_but_not_page(admin_client: Client) -> None:
    make_run(make_job())
    page = admin_client.get(
        f"{list_url('run')}?state__exact=failed&q=x&when=24h&p=1"
    ).content.decode()
    form = page[page.index("dcron-range") :]
    form = form[: form.index("</form>")]

    assert '<input type="hidden" name="state__exact" value="failed">' in form
    assert '<input type="hidden" name="q" value="x">' in form
    assert 'name="when"' not in form
    assert 'name="p"' not in form


def test_quick_links_filter_list(admin_client: Client, find_rows: Find) -> None:
    job, now = make_job(), database_now("default")
    failed = make_run(job, now - timedelta(hours=1), state="failed")
    make_run(job, now - timedelta(days=2), state="failed")
    missed = make_run(job, now - timedelta(hours=2), state="missed")
    running = make_run(job, now - timedelta(hours=3), state="running", started_at=now)
    waiting = make_run(job, now - timedelta(hours=4), state="waiting")

    links = admin_client.get(list_url("run")).context["quick_links"]

    assert [find_rows("run", query) for _label, query, _selected in links] == [
        [failed],
        [missed],
        [running],
        [waiting],
    ]
    page = admin_client.get(f"{list_url('run')}?{links[0][1]}").content.decode()
    assert page.count('aria-current="page">Failed in') == 1
    assert 'aria-current="page">Missed in' not in page


# --- Attempts -------------------------------------------------------------------------------------


@pytest.fixture
def attempts(db: None) -> list[Attempt]:
    """Eight attempts, one per hour from noon, with a gap in their primary keys."""
    job = make_job()
    made = []
    for hour in range(8):
        at = NOON + timedelta(hours=hour)
        made.append(make_attempt(make_run(job, at), started_at=at, worker=f"w{hour % 2}"))
        if hour == 3:
            make_attempt(made[0].run, 2).delete()
    return made


def test_attempts_are_filtered_by_outcome_worker_and_time(
    find_rows: Find, attempts: list[Attempt]
) -> None:
    Attempt.objects.filter(pk=attempts[2].pk).update(outcome="failed")

    assert find_rows("attempt", "outcome__exact=failed") == [attempts[2]]
    assert find_rows("attempt", "worker=w1") == [attempts[hour] for hour in (7, 5, 3, 1)]
    between = "started_at__gte=2026-03-01T14:00&started_at__lt=2026-03-01T17:00"
    assert find_rows("attempt", between) == [attempts[hour] for hour in (4, 3, 2)]
    assert find_rows("attempt", f"{between}&worker=w1") == [attempts[3]]
    assert find_rows("attempt", "when=24h") == []


def test_processes_of_a_worker_are_one_choice(find_rows: Find, admin_client: Client) -> None:
    job = make_job()
    names = ("celery@a/7", "celery@a/18", "celery@a1/7", "web/threads/9")
    by_name = {
        name: make_attempt(make_run(job, NOON + timedelta(hours=hour)), worker=name)
        for hour, name in enumerate(names)
    }

    def choices(query: str = "") -> list[str]:
        return _choices(admin_client, "attempt", "worker", query)

    assert choices() == ["All", "celery@a", "celery@a1", "web/threads"]
    found = find_rows("attempt", "worker=celery@a")
    assert {each.worker for each in found} == {"celery@a/7", "celery@a/18"}
    assert find_rows("attempt", "worker=celery@a/7") == [by_name["celery@a/7"]]
    assert "celery@a/7" in choices("worker=celery@a/7"), "the page of a run links to a process"
    assert find_rows("attempt", "worker=web/threads") == [by_name["web/threads/9"]]


@pytest.mark.parametrize("hour", range(-1, 10))
def test_attempts_before_time_are_found_by_primary_key(
    find_rows: Find, attempts: list[Attempt], hour: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_filter, "ATTEMPTS_SEARCHED", 3)
    at = (NOON + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M")

    found = find_rows("attempt", f"started_at__lt={at}")

    expected = attempts[: max(hour, 0)][::-1]
    # One of the three keys may be deleted. Another belongs to the next attempt, which may have
    # started earlier.
    assert found == expected[: len(found)]
    assert len(found) >= min(len(expected), 1)


def test_attempt_search_combines_words(find_rows: Find, attempts: list[Attempt]) -> None:
    shop = make_attempt(
        make_run(make_job("sale", namespace="shop")), exception_class="KeyError", worker="w9"
    )

    for query in ("sale", "shop", "keyerror", "w9", "shop+KeyError", "sale+w9", str(shop.run_id)):
        assert find_rows("attempt", f"q={query}") == [shop], query
    assert find_rows("attempt", "q=shop+w1") == find_rows("attempt", "q=nothing") == []
    assert set(find_rows("attempt", "q=report")) == set(attempts)


@pytest.mark.parametrize("name", ["a", "20261128-01", "d41d8cd98f00b204e9800998ecf8427e"])
def test_text_search_reads_latest_attempts_only_whatever_the_text_looks_like(
    find_rows: Find, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(time_filter, "ATTEMPTS_SEARCHED", 1)
    job = make_job(name, namespace="shop")
    old, latest = (
        make_attempt(make_run(job, scheduled_at=NOON + timedelta(hours=hour))) for hour in range(2)
    )

    assert find_rows("attempt", f"q={name}") == [latest]
    assert find_rows("attempt", f"q={old.run_id}") == [old]


def test_attempt_filters_count_latest_attempts_only(
    admin_client: Client, attempts: list[Attempt]
) -> None:
    for query in (
        "",
        "worker=w1",
        "outcome__exact=lost",
        "q=nothing",
        "started_at__lt=2026-03-01T14:00",
    ):
        with CaptureQueriesContext(connection) as queries:
            admin_client.get(f"{list_url('attempt')}?{query}")
        shown = [
            query["sql"]
            for query in queries
            if "COUNT(" in query["sql"] and "django_dcron_attempt" in query["sql"]
        ]
        assert shown
        assert all(" > " in sql and "LIMIT" in sql for sql in shown)


def test_attempt_search_finds_words_of_message(find_rows: Find) -> None:
    wanted, other = (make_attempt(make_run(make_job(name))) for name in ("one", "other"))
    Attempt.objects.filter(pk=wanted.pk).update(exception_class="E", message="no such Order: 4711")
    assert find_rows("attempt", "q=order+4711") == [wanted]
    assert find_rows("attempt", "q=other") == [other]


def test_attempt_list_states_search_limit(admin_client: Client) -> None:
    assert (
        f"{ATTEMPTS_SEARCHED:,} latest attempts"
        in admin_client.get(list_url("attempt")).content.decode()
    )


# --- Nodes ----------------------------------------------------------------------------------------


def test_nodes_are_filtered_by_state(find_rows: Find) -> None:
    for name, age in (("live", 0), ("expired", 3600)):
        make_node(name, age=timedelta(seconds=age))

    for state in ("live", "expired"):
        assert [node.name for node in find_rows("node", f"state={state}")] == [state]
    assert len(find_rows("node", "state=nonsense")) == 2


# --- All ------------------------------------------------------------------------------------------


def _make_hundred_of_each() -> None:
    now, numbers = database_now("default"), range(100)
    jobs = Job.objects.bulk_create(
        Job(
            name=f"job {n}",
            namespace="shop",
            tags=["billing", f"tag {n}"],
            target="t",
            schedule="@daily",
        )
        for n in numbers
    )
    times = {"due_at": now, "claimed_at": now, "started_at": now}
    ended = [Run(job=job, scheduled_at=now, state="succeeded", **times) for job in jobs]
    running = [
        Run(job=job, scheduled_at=now - timedelta(days=1), state="running", **times) for job in jobs
    ]
    runs = Run.objects.bulk_create(ended + running)
    Attempt.objects.bulk_create(
        Attempt(run=run, number=1, token=run.pk, worker="w", started_at=now, outcome="succeeded")
        for run in runs
    )
    seen = {"host": "h", "pid": 1, "version": "1", "started_at": now, "heartbeat_at": now}
    Node.objects.bulk_create(Node(id=f"n{n}", name="n", **seen) for n in numbers)


@pytest.mark.parametrize(
    ("model", "query", "max_queries"),
    [
        ("job", "", 15),
        ("job", "tag=billing", 15),
        ("job", "state=running&namespace=shop&tag=billing&kind=code&last=none&q=job", 17),
        ("run", "", 11),
        (
            "run",
            "state__exact=succeeded&namespace=shop&tag=billing&when=7d&trigger__exact=schedule&q=job",
            17,
        ),
        ("attempt", "", 9),
        ("attempt", "outcome__exact=succeeded&worker=w&when=7d&q=job", 11),
        ("node", "state=live", 11),
    ],
)
def test_list_of_hundred_rows_needs_few_queries(
    admin_client: Client, model: str, query: str, max_queries: int
) -> None:
    _make_hundred_of_each()
    admin_client.get(list_url(model))  # caches content types and the like

    with CaptureQueriesContext(connection) as queries:
        response = admin_client.get(f"{list_url(model)}?{query}")

    assert len(response.context["cl"].result_list) in (50, 100)
    assert len(queries) <= max_queries, [query["sql"][:200] for query in queries]


@pytest.mark.parametrize(
    ("model", "column"),
    [("job", "description"), ("run", "reason"), ("attempt", "exception_class"), ("node", "host")],
)
def test_empty_list_explains_where_rows_come_from(
    admin_client: Client, model: str, column: str
) -> None:
    response = admin_client.get(list_url(model))

    assert str(response.context["empty_text"]) in response.content.decode().replace("&#x27;", "'")
    assert response.context["empty_text"]
    for query in ("q=nothing", f"{column}=nothing"):
        empty = admin_client.get(f"{list_url(model)}?{query}").content.decode()
        assert '<p class="dcron-empty">' in empty
        assert '<a href="?">' in empty.partition("dcron-empty")[2].partition("</p>")[0]
        assert str(response.context["empty_text"]) not in empty.replace("&#x27;", "'")
