"""Test that the pages of runs, attempts and nodes are read-only, escaped and bounded."""

import re
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

from django_dcron.admin import RunAdmin
from django_dcron.admin.lists import bounded, job_filter
from django_dcron.admin.lists.job_filter import JobListFilter
from django_dcron.diagnosis.bounded_count import count_up_to
from django_dcron.diagnosis.run_durations import run_duration, total_duration
from django_dcron.models import Attempt, Job, Node, Run
from tests.admin.conftest import (
    NOON,
    StaffWith,
    job_url,
    list_url,
    make_attempt,
    make_job,
    make_run,
    run_url,
)
from tests.factories import make_node

EVIL = "<script>alert(1)</script>"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"


def _attempt_url(attempt: Attempt) -> str:
    return reverse("admin:django_dcron_attempt_change", args=[attempt.pk])


@pytest.fixture
def job(db: None) -> Job:
    return make_job()


@pytest.fixture
def failed(job: Job) -> Run:
    started = NOON + timedelta(milliseconds=250)
    return make_run(
        job,
        state="failed",
        attempt=2,
        queued_at=NOON,
        started_at=started,
        finished_at=started + timedelta(seconds=90),
        reason=f"ValueError: {EVIL}",
    )


def test_run_list_shows_state_attempts_delay_and_duration(
    admin_client: Client, failed: Run
) -> None:
    page = admin_client.get(list_url("run")).content.decode()

    for text in (
        "2026-03-01 12:00:00",
        "report",
        "dcron-badge dcron-failed",
        "2 of 2",
        "250 ms",
        "1m 30s",
        "12:01:30",
        ESCAPED,
    ):
        assert text in page


def test_retried_run_has_the_same_figures_in_the_list_on_its_job_and_on_the_command_line(
    admin_client: Client, job: Job
) -> None:
    first, last = NOON + timedelta(milliseconds=120), NOON + timedelta(seconds=16)
    run = make_run(
        job,
        state="succeeded",
        attempt=3,
        due_at=last,
        started_at=last,
        finished_at=last + timedelta(seconds=1),
    )
    make_attempt(run, number=1, due_at=NOON, started_at=first, finished_at=first)

    pages = [admin_client.get(url).content.decode() for url in (list_url("run"), job_url(job))]
    out = StringIO()
    call_command("dcron", "history", str(job), stdout=out)

    for shown in (*pages, out.getvalue()):
        assert "120 ms" in shown
        assert "16.9 s" in shown


def test_run_cancelled_during_backoff_has_the_duration_of_its_only_attempt(
    admin_client: Client, job: Job
) -> None:
    started = NOON + timedelta(milliseconds=120)
    run = make_run(
        job,
        state="cancelled",
        attempt=2,
        due_at=NOON + timedelta(hours=1),
        started_at=started,
        finished_at=started + timedelta(minutes=50),
    )
    ended = started + timedelta(seconds=5)
    make_attempt(run, number=1, due_at=NOON, started_at=started, finished_at=ended)

    assert run_duration(run) is None
    pages = [admin_client.get(url).content.decode() for url in (list_url("run"), job_url(job))]
    out = StringIO()
    call_command("dcron", "history", str(job), stdout=out)
    for shown in (*pages, out.getvalue()):
        assert "120 ms" in shown
        assert "5.0 s" in shown
        assert "50m 00s" not in shown
    Run.objects.filter(pk=run.pk).update(attempt=3)
    run.refresh_from_db()
    assert total_duration(run, run.attempts.get()) is None


def test_run_list_is_ordered_by_occurrence_not_by_claim(admin_client: Client, job: Job) -> None:
    later = make_run(job, NOON + timedelta(hours=1))
    earlier = make_run(make_job("claimed last"), NOON)

    assert list(admin_client.get(list_url("run")).context["cl"].result_list) == [later, earlier]


@pytest.mark.sqlite
@pytest.mark.django_db
def test_run_list_order_uses_index() -> None:
    assert "dcron_run_latest" in Run.objects.order_by(*RunAdmin.ordering)[:50].explain()
    assert "TEMP B-TREE" not in Run.objects.order_by(*RunAdmin.ordering)[:50].explain()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state__exact=failed", 1),
        ("state__exact=running", 0),
        ("trigger__exact=schedule", 1),
        ("q=report", 1),
        ("q=other", 0),
        (
            "scheduled_at__gte=2026-03-01+00:00:00%2B00:00&scheduled_at__lt=2026-03-02+00:00:00%2B00:00",
            1,
        ),
    ],
)
def test_run_list_is_filtered_and_searched(
    admin_client: Client, failed: Run, query: str, found: int
) -> None:
    assert admin_client.get(f"{list_url('run')}?{query}").context["cl"].result_count == found


def test_run_search_finds_run_by_id(admin_client: Client, failed: Run, job: Job) -> None:
    make_run(job, NOON + timedelta(days=1))

    def found(term: object) -> list[Run]:
        return list(admin_client.get(f"{list_url('run')}?q={term}").context["cl"].result_list)

    assert found(failed.pk) == [failed]
    assert found(str(failed.pk)[:23]) == [failed]
    assert found(uuid4()) == []


def test_run_search_works_beyond_limit_of_inlined_jobs(
    admin_client: Client, failed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.admin.lists.filters.MAX_JOB_IDS", 1)
    make_run(make_job("report 2", namespace="shop"))

    assert admin_client.get(f"{list_url('run')}?q=report").context["cl"].result_count == 2
    assert admin_client.get(f"{list_url('run')}?q=shop+report").context["cl"].result_count == 1


def test_run_list_is_filtered_by_job(admin_client: Client, failed: Run) -> None:
    other = make_job("other")
    make_run(other)

    response = admin_client.get(f"{list_url('run')}?job__id__exact={other.pk}")

    assert [run.job for run in response.context["cl"].result_list] == [other]


def test_job_filter_lists_few_jobs_or_selected_one(
    admin_client: Client, failed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = make_job("zzz")
    make_run(last)

    def listed(query: str = "") -> list[str]:
        changelist = admin_client.get(f"{list_url('run')}?{query}").context["cl"]
        (spec,) = [each for each in changelist.filter_specs if isinstance(each, JobListFilter)]
        return [choice["display"] for choice in spec.choices(changelist)][1:]

    assert listed() == [str(failed.job), "zzz"]
    monkeypatch.setattr(job_filter, "JOBS_LISTED", 1)
    assert listed() == []
    assert listed(f"job__id__exact={last.pk}") == ["zzz"]
    first = make_job("aaa")
    assert listed(f"job__id__exact={last.pk}&job__id__exact={first.pk}") == ["aaa", "zzz"]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("report", {"default"}),  # the exact name
        ("shop/report", {"shop"}),
        ("repor", {"default", "shop", "shop 2"}),
        ("shop+rep", {"shop", "shop 2"}),
        ("shop/rep", {"shop", "shop 2"}),
        ("nothing", set()),
        ("++", {"default", "shop", "shop 2"}),
    ],
)
def test_run_list_is_filtered_by_typed_job_name(
    admin_client: Client, typed: str, found: set[str]
) -> None:
    for namespace in ("default", "shop", "shop 2"):
        make_run(make_job("report", namespace=namespace))

    response = admin_client.get(f"{list_url('run')}?job_name={typed}&state__exact=pending")

    assert {run.job.namespace for run in response.context["cl"].result_list} == found
    assert 'type="hidden" name="state__exact" value="pending"' in response.content.decode()


def test_job_suggestions_match_typed_text_within_visible_jobs(
    admin_client: Client, staff_with: StaffWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job("report", namespace="shop")
    make_job("report")
    make_job("other")
    url = reverse("admin:django_dcron_job_suggestions")

    def suggested(typed: str) -> list[str]:
        html = admin_client.get(url, {"job_name": typed}).content.decode()
        return re.findall('value="([^"]*)"', html)

    assert suggested("repo") == ["report", "shop/report"]
    assert suggested("shop/rep") == ["shop/report"]
    assert len(suggested("")) == 3
    assert suggested("a\0b") == []
    assert staff_with("view_run").get(url).status_code == 403
    assert admin_client.post(url).status_code == 405
    monkeypatch.setattr(job_filter, "JOBS_SUGGESTED", 2)
    assert len(suggested("")) == 2


@pytest.mark.parametrize("model", ["run", "attempt"])
def test_list_count_stops_at_limit(
    admin_client: Client, job: Job, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "MAX_COUNTED", 3)
    monkeypatch.setattr(count_up_to, "__defaults__", (3,))
    for day in range(5):
        make_attempt(make_run(job, NOON + timedelta(days=day)))

    with CaptureQueriesContext(connection) as queries:
        response = admin_client.get(list_url(model))

    assert response.context["cl"].paginator.is_truncated
    (note,) = re.findall(r'<p class="dcron-quiet">([^<]*)</p>', response.content.decode())
    assert re.findall(r"\d+", note) == ["3"]
    counts = [query["sql"] for query in queries if "COUNT(" in query["sql"]]
    assert counts
    assert all("LIMIT 4" in sql for sql in counts)


@pytest.mark.parametrize("model", ["run", "attempt"])
def test_lists_need_a_constant_number_of_queries(
    admin_client: Client, job: Job, model: str
) -> None:
    make_attempt(make_run(job))
    admin_client.get(list_url(model))
    with CaptureQueriesContext(connection) as one:
        admin_client.get(list_url(model))
    for day in range(1, 40):
        make_attempt(make_run(job, NOON + timedelta(days=day)))
    with CaptureQueriesContext(connection) as many:
        admin_client.get(list_url(model))
    assert len(many) == len(one)
    assert not any('"log"' in query["sql"] for query in many)


def test_run_list_links_jobs_for_users_who_may_view_jobs(staff_with: StaffWith, job: Job) -> None:
    make_run(job)
    href = f'href="{job_url(job)}"'
    assert href in staff_with("view_run", "view_job").get(list_url("run")).content.decode()
    page = staff_with("view_run").get(list_url("run")).content.decode()
    assert href not in page
    assert str(job) in page


def test_run_page_shows_all_attempts_escaped(admin_client: Client, failed: Run) -> None:
    make_attempt(failed, 1, outcome="lost", late_outcome="succeeded")
    make_attempt(
        failed,
        2,
        outcome="failed",
        exception_class="ValueError",
        message=f"bad {EVIL}",
        traceback=f"Traceback {EVIL}",
        log=f"log {EVIL}",
        result=f'"{EVIL}"',
        progress_done=3,
        progress_total=4,
        progress_note=EVIL,
    )

    page = admin_client.get(run_url(failed)).content.decode()

    assert EVIL not in page
    for text in ("bad", "Traceback", "log", "&quot;"):
        assert f"{text} {ESCAPED}" in page or f"{text}{ESCAPED}" in page
    for text in (
        "dcron-badge dcron-lost",
        "dcron-badge dcron-succeeded",
        "3 of 4 (75 %)",
        "ValueError",
        "celery@web-1",
        "250 ms",
    ):
        assert text in page
    assert page.index('id="dcron-latest"') < page.index('id="dcron-earlier"')


def test_run_page_shows_duration_of_attempt_only(admin_client: Client, failed: Run) -> None:
    """The row of the run and the row of its attempt are written at slightly different times."""
    started = NOON + timedelta(milliseconds=248)
    finished = started + timedelta(milliseconds=77)
    failed.started_at, failed.finished_at = (
        NOON + timedelta(milliseconds=250),
        NOON + timedelta(seconds=2),
    )
    failed.save()
    make_attempt(failed, 2, outcome="failed", started_at=started, finished_at=finished)

    page = admin_client.get(run_url(failed)).content.decode()

    for text in ("<dd>77 ms</dd>", " · 77 ms</text>", ">12:00:00.248<", ">12:00:00.325<"):
        assert text in page
    assert ">12:00:00.250<" not in page
    assert "1.8 s" not in page


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        ({"progress_done": 2, "progress_note": "step 2"}, "Progress 2 step 2"),
        (
            {"progress_done": 2, "progress_total": 5, "progress_note": "step 2"},
            "Progress 2 of 5 (40 %) step 2",
        ),
        ({"progress_note": "step 2"}, "Progress step 2"),
        ({"progress_done": 0}, "Progress 0"),
    ],
)
def test_progress_is_labeled_on_run_and_attempt_pages(
    admin_client: Client, failed: Run, progress: dict[str, Any], text: str
) -> None:
    attempt = make_attempt(failed, 2, **progress)

    page = admin_client.get(run_url(failed)).content.decode()

    assert text in " ".join(strip_tags(page).split())
    assert admin_client.get(_attempt_url(attempt)).content.decode().count("rogress") > 1


def test_run_page_shows_attempts_only_with_view_attempt_permission(
    staff_with: StaffWith, failed: Run
) -> None:
    make_attempt(failed, outcome="failed", log="secret")

    assert "secret" not in staff_with("view_run").get(run_url(failed)).content.decode()
    assert "secret" in staff_with("view_run", "view_attempt").get(run_url(failed)).content.decode()


@pytest.mark.parametrize(
    "state", ["pending", "queued", "running", "waiting", "skipped", "cancelled", "succeeded"]
)
def test_every_state_has_list_row_and_page(admin_client: Client, job: Job, state: str) -> None:
    run = make_run(job, state=state, started_at=NOON if state == "running" else None)

    assert admin_client.get(list_url("run")).status_code == 200
    assert admin_client.get(run_url(run)).status_code == 200


def test_attempt_list_and_page_escape_texts(admin_client: Client, failed: Run) -> None:
    attempt = make_attempt(
        failed,
        outcome="failed",
        exception_class="ValueError",
        message=EVIL,
        log=EVIL,
        traceback=EVIL,
    )
    make_attempt(failed, 2, worker="celery@web-2")

    listed = admin_client.get(list_url("attempt")).content.decode()
    page = admin_client.get(_attempt_url(attempt)).content.decode()

    assert EVIL not in listed + page
    assert ESCAPED in listed
    assert page.count(f"{ESCAPED}</pre>") == 3
    by_worker = admin_client.get(f"{list_url('attempt')}?worker=celery@web-2").context["cl"]
    assert [found.number for found in by_worker.result_list] == [2]
    assert (
        admin_client.get(f"{list_url('attempt')}?outcome__exact=failed").context["cl"].result_count
        == 1
    )


def test_node_list_shows_state_and_hides_shards_of_dead_nodes(admin_client: Client) -> None:
    make_node("alive", agenda=1234)
    make_node("limping", shards=0, degraded=True, skew=timedelta(seconds=-90))
    dead = make_node("dead", age=timedelta(hours=1), shards=63, agenda=4321)

    page = admin_client.get(list_url("node")).content.decode()

    for text in (
        "dcron-badge dcron-live",
        "dcron-badge dcron-degraded",
        "dcron-badge dcron-cancelled",
        "1 h ago",
        "-1m 30s",
    ):
        assert text in page
    for led, stale in ((">64<", ">63<"), (">1234<", ">4321<")):
        assert led in page
        assert stale not in page
    page_url = reverse("admin:django_dcron_node_change", args=[dead.pk])
    assert admin_client.get(page_url).status_code == 200


@pytest.mark.parametrize("model", [Run, Attempt, Node])
def test_history_cannot_be_added_changed_or_deleted(
    admin_client: Client, failed: Run, model: type
) -> None:
    make_attempt(failed)
    seen = {"started_at": NOON, "heartbeat_at": NOON}
    Node.objects.create(id="n", name="n", host="h", pid=1, version="1", **seen)
    name, row = model._meta.model_name, model.objects.get()  # type: ignore[attr-defined]

    assert admin_client.get(f"/admin/django_dcron/{name}/add/").status_code == 403
    assert admin_client.post(f"/admin/django_dcron/{name}/{row.pk}/change/", {}).status_code == 403
    assert (
        admin_client.post(
            f"/admin/django_dcron/{name}/{row.pk}/delete/", {"post": "yes"}
        ).status_code
        == 403
    )
    assert "delete_selected" not in admin_client.get(list_url(name)).content.decode()
