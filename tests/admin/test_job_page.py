"""Test a job's page: status, automatic refresh, history chart and query counts."""

import re
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.core.signing import Signer
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation
from django.utils.html import strip_tags
from django.utils.timezone import now

from django_dcron import control, cron, targets
from django_dcron.admin.jobs.duration_chart import (
    HEIGHT,
    MIN_HEIGHT,
    MIN_SLOTS,
    WIDTH,
    Chart,
    Scale,
    draw_duration_chart,
)
from django_dcron.admin.jobs.page import StatusPanel
from django_dcron.diagnosis import job_status
from django_dcron.jobs import sync
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.targets.shadow import NOT_EXECUTED
from tests.admin.conftest import NOON, StaffWith, action_url, job_url, make_job, make_run, run_url
from tests.factories import forget_entries

SECOND = timedelta(seconds=1)


def status_url(job: Job) -> str:
    return reverse("admin:django_dcron_job_status", args=[job.pk])


def shown(client: Client, job: Job) -> StatusPanel:
    panel: StatusPanel = client.get(job_url(job)).context["page"].status
    return panel


def words_of(response: Any) -> str:
    return " ".join(strip_tags(response.content.decode()).split())


def status_text(client: Client, job: Job) -> str:
    return " ".join(strip_tags(client.get(status_url(job)).content.decode()).split())


def make_history(job: Job, *seconds: float, state: str = "succeeded") -> list[Run]:
    """Create one run a minute with these durations in seconds, oldest first."""
    runs = []
    for number, lasted in enumerate(seconds):
        at = NOON + number * timedelta(minutes=1)
        runs.append(make_run(job, at, state=state, started_at=at, finished_at=at + lasted * SECOND))
    return runs


@pytest.fixture
def job(db: None) -> Job:
    return make_job()


# --- code -----------------------------------------------------------------------------------------


def test_page_names_the_fields_that_differ_from_code(admin_client: Client, job: Job) -> None:
    declared = {"target": job.target, "schedule": "0 3 * * *", "max_attempts": 1}
    Job.objects.filter(pk=job.pk).update(declared=declared, schedule="0 4 * * *", max_attempts=1)
    with targets.isolated_registry():
        cron("0 3 * * *", name=job.name)(test_page_names_the_fields_that_differ_from_code)
        page = admin_client.get(job_url(job))
    assert [text for _label, text in page.context["page"].edited_fields] == ["0 3 * * *"]
    assert "with their declared values: schedule 0 3 * * *." in words_of(page)


def test_page_and_resume_say_that_code_no_longer_declares_the_job(
    admin_client: Client, job: Job
) -> None:
    Job.objects.filter(pk=job.pk).update(
        declared={"schedule": job.schedule}, enabled=False, pause_reason=sync.NO_LONGER_DECLARED
    )
    assert "Code no longer declares this job" in words_of(admin_client.get(job_url(job)))
    resumed = admin_client.post(action_url(job, "resume"), follow=True)
    assert "Resumed until the next sync" in words_of(resumed)
    assert Job.objects.get(pk=job.pk).enabled
    assert [change.kind for change in sync.plan()] == [sync.ChangeKind.DISABLE]


# --- status ---------------------------------------------------------------------------------------


def test_status_of_new_job_shows_next_run(admin_client: Client) -> None:
    job = make_job(schedule="0 12 * * *", timezone="Asia/Tokyo")

    response = admin_client.get(job_url(job))
    status, message = response.context["page"].status, words_of(response)

    for part in (
        "(Asia/Tokyo)",
        "03:00:00 UTC",
        strip_tags(status.until_next),
        "12:00:00 Asia/Tokyo",
    ):
        assert part in message
    page = response.content.decode()
    assert 'href="#dcron-why"' in page
    assert 'id="dcron-why"' in page
    assert "dcron-enabled" in status.state
    assert (status.running, status.overall_rate.percent, status.chart) == ([], None, None)


@pytest.mark.parametrize(
    ("ahead", "message"),
    [
        (-200, "overdue by 3m"),
        (-5, "now"),
        (30, "in less than a minute"),
        (90, "in 1m"),
        (2 * 3600 + 200, "in 2h 3m"),
        (86400 * 3 + 30, "in 3d"),
    ],
)
def test_status_shows_time_until_next_run(
    admin_client: Client, job: Job, ahead: int, message: str
) -> None:
    Cursor.objects.filter(pk=job.pk).update(next_at=now() + ahead * SECOND + SECOND / 2)
    Job.objects.filter(pk=job.pk).update(schedule="0 0 1 1 *")

    assert strip_tags(shown(admin_client, job).until_next) == message


@pytest.mark.parametrize(("failures", "kind"), [(0, "enabled"), (1, "failed")])
def test_status_of_a_failing_job_does_not_look_healthy(
    admin_client: Client, job: Job, failures: int, kind: str
) -> None:
    Statistics.objects.filter(pk=job.pk).update(consecutive_failures=failures)

    assert f"dcron-{kind}" in shown(admin_client, job).state


def test_status_shows_user_start_and_end_of_pause(admin_client: Client, job: Job) -> None:
    admin_client.post(action_url(job, "pause"), {"reason": "deploy", "until": "2h"})
    job.refresh_from_db()

    message = status_text(admin_client, job)

    pause = shown(admin_client, job).pause
    assert pause is not None
    assert pause.since is not None
    assert (pause.by, pause.until) == ("admin", job.paused_until)
    for value in (
        f"admin since {pause.since:%Y-%m-%d %H:%M:%S}",
        f"{job.paused_until:%Y-%m-%d %H:%M:%S} UTC.",
        "deploy",
    ):
        assert value in message


def test_page_of_a_shadow_counts_the_runs_that_executed_nothing(
    admin_client: Client, job: Job
) -> None:
    assert "No run has succeeded or failed yet" in status_text(admin_client, job)
    Statistics.objects.filter(pk=job.pk).update(succeeded=1200, shadow_runs=1200)
    text = "1,200 shadow runs, which execute nothing"
    assert text in status_text(admin_client, job)
    page = admin_client.get(job_url(job)).context["page"]
    counts = {str(label): number for label, number in page.counts}
    assert (counts["succeeded"], counts["runs of a shadow"]) == (0, 1200)
    Statistics.objects.filter(pk=job.pk).update(succeeded=1201)
    assert text not in status_text(admin_client, job)


def test_pause_without_an_entry_has_no_user(admin_client: Client, job: Job) -> None:
    control.pause(job, "by code")
    forget_entries()

    pause = shown(admin_client, job).pause

    cursor = Cursor.objects.get(pk=job.pk)
    assert pause == job_status.Pause("by code", "", cursor.placed_at, None)
    assert f"{cursor.placed_at:%Y-%m-%d %H:%M:%S}" in status_text(admin_client, job)
    assert "admin" not in status_text(admin_client, job)


def test_finished_job_is_not_shown_as_paused(admin_client: Client, job: Job) -> None:
    disable_exhausted([job.pk], "default")

    page = admin_client.get(job_url(job)).content.decode()

    assert shown(admin_client, job).pause is None
    assert "data-dcron-finished" in page
    assert "dcron-badge dcron-finished" in page
    assert "data-dcron-paused" not in page


def test_job_that_nothing_starts_says_so(admin_client: Client, job: Job) -> None:
    follower = make_job("follower", schedule="@never", after={job.name: "ended"})
    note = "data-dcron-started-by-nothing"
    pages = [admin_client.get(job_url(each)).content.decode() for each in (job, follower)]
    control.delete(job)

    assert [note in page for page in pages] == [False, False]
    assert note in admin_client.get(job_url(follower)).content.decode()


def test_status_shows_problem_escaped(admin_client: Client, job: Job) -> None:
    Cursor.objects.filter(pk=job.pk).update(problem="the <zone> is gone")

    page = admin_client.get(job_url(job)).content.decode()

    assert "the &lt;zone&gt; is gone" in page
    assert '<span class="dcron-badge dcron-failed">' in page
    assert '<p class="errornote">' in page


def test_status_links_first_running_runs(admin_client: Client, job: Job) -> None:
    make_run(make_job("other"), state="running", started_at=NOON)
    runs = [make_run(job, NOON + n * SECOND, state="running", started_at=NOON) for n in range(7)]

    page = admin_client.get(status_url(job)).content.decode()

    assert sum(run_url(run) in page for run in runs) == job_status.RUNNING_NAMED
    assert shown(admin_client, job).more_running
    assert "data-dcron-more" in page


def test_success_rate_is_shown_once_while_all_runs_are_recent(
    admin_client: Client, job: Job
) -> None:
    make_history(job, 1)
    for succeeded, rates in ((1, 1), (2, 2)):
        Statistics.objects.filter(pk=job.pk).update(succeeded=succeeded)
        assert status_text(admin_client, job).count("100%") == rates


def test_success_rate_counts_only_runs_that_started(admin_client: Client, job: Job) -> None:
    make_history(job, 1, 1)
    make_run(job, NOON - SECOND, state="failed", started_at=NOON, finished_at=NOON)
    make_run(job, NOON - 2 * SECOND, state="missed", finished_at=NOON)
    Statistics.objects.filter(pk=job.pk).update(
        succeeded=9_999,
        failed=1,
        missed=7,
        consecutive_failures=2,
        last_state="failed",
        last_finished_at=NOON,
    )
    Job.objects.filter(pk=job.pk).update(pause_after_failures=5)

    message = status_text(admin_client, job)

    assert re.search(r"66\.6%\D+3 \D+99\.9%\D+10,000 ", message)
    assert re.search(r" 2 [^0-9]+ 5 ", message)


def test_page_links_to_all_runs_of_job(admin_client: Client, job: Job) -> None:
    make_history(job, 1)

    page = admin_client.get(job_url(job)).content.decode()

    assert f"/admin/django_dcron/run/?job__id__exact={job.pk}" in page


# --- automatic refresh ----------------------------------------------------------------------------


def test_status_refresh_returns_204_unless_changed(admin_client: Client, job: Job) -> None:
    Cursor.objects.filter(pk=job.pk).update(next_at=now() + timedelta(hours=5, seconds=40))
    Job.objects.filter(pk=job.pk).update(schedule="0 0 1 1 *")
    page = admin_client.get(job_url(job)).content.decode()
    source = source_of(page)

    assert 'hx-trigger="every 5s"' in page
    assert source.startswith(status_url(job))
    assert admin_client.get(source).status_code == 204
    make_history(job, 1)
    changed = admin_client.get(source)
    assert changed.status_code == 200
    assert 'id="dcron-chart-title"' in changed.content.decode()


def source_of(html: str) -> str:
    return html.split('hx-get="', 1)[1].split('"', 1)[0].replace("&amp;", "&")


def test_audit_log_is_queried_once_per_version_of_paused_job(
    admin_client: Client, job: Job
) -> None:
    admin_client.post(action_url(job, "pause"), {"reason": "deploy"})
    source = source_of(admin_client.get(job_url(job)).content.decode())

    def refresh() -> tuple[str, bool]:
        """Return the response text and whether the request queried the audit log."""
        with CaptureQueriesContext(connection) as captured:
            response = admin_client.get(source)
        return response.content.decode(), any("_auditentry" in query["sql"] for query in captured)

    assert refresh() == ("", False)
    make_history(job, 1)
    changed, was_read = refresh()
    assert ("data-dcron-paused-by" in changed, was_read) == (True, False)
    control.pause(job, "by code")
    changed, was_read = refresh()
    assert ("data-dcron-paused-by" in changed, was_read) == (False, True)
    assert "data-dcron-paused" in changed
    source = source_of(changed)
    assert refresh() == ("", False)
    control.resume(job)
    changed, was_read = refresh()
    assert ("data-dcron-paused" in changed, was_read) == (False, False)


@pytest.mark.parametrize(("reason", "shown"), [("deploy", b"<q>deploy</q>"), ("", None)])
def test_pause_names_its_user_once(
    admin_client: Client, job: Job, reason: str, shown: bytes | None
) -> None:
    admin_client.post(action_url(job, "pause"), {"reason": reason})
    assert "admin" in Job.objects.get(pk=job.pk).pause_reason

    page = admin_client.get(status_url(job)).content

    assert b'data-dcron-paused-by="admin"' in page
    assert b"(admin)" not in page
    assert (shown in page) if shown else (b"<q>" not in page)


def test_signed_pause_of_other_job_or_key_is_ignored(admin_client: Client, job: Job) -> None:
    other = make_job("other")
    control.pause(other)
    forget_entries()
    admin_client.post(action_url(job, "pause"), {"reason": "deploy"})
    source = source_of(admin_client.get(job_url(job)).content.decode())
    query = source.split("?", 1)[1].split("&seen", 1)[0]

    answer = admin_client.get(f"{status_url(other)}?{query}").content
    assert b"data-dcron-paused" in answer
    assert b"data-dcron-paused-by" not in answer
    job.refresh_from_db()
    forged = Signer(salt="mine").sign_object([job.pk, job.version, "mallory", NOON.isoformat()])
    answer = admin_client.get(status_url(job), {"paused": forged}).content
    assert b'data-dcron-paused-by="admin"' in answer
    assert b"mallory" not in answer


def test_refreshed_part_contains_no_form_fields(admin_client: Client, job: Job) -> None:
    """The refreshed part is inside the job form, so its fields would be submitted with the form."""
    part = admin_client.get(status_url(job)).content.decode()

    assert "data-dcron-part" in part
    assert not re.search("<(input|select|textarea|button|form)", part)


def test_status_refresh_requires_permissions(
    staff_with: StaffWith, client: Client, job: Job
) -> None:
    (run,) = make_history(job, 1)

    assert staff_with("view_run").get(status_url(job)).status_code == 403
    assert "/login/" in client.get(status_url(job))["Location"]
    without_runs = staff_with("view_job").get(status_url(job)).content.decode()
    assert run_url(run) not in without_runs
    assert "data-dcron-running" not in without_runs
    with_runs = staff_with("view_job", "view_run").get(status_url(job)).content.decode()
    assert run_url(run) in with_runs
    assert "data-dcron-running" in with_runs


def test_status_of_deleted_job_returns_404(admin_client: Client, job: Job) -> None:
    url = status_url(job)
    job.delete()

    assert admin_client.get(url).status_code == 404
    assert admin_client.get(url.replace(str(job.pk), "x")).status_code == 404


# --- history chart --------------------------------------------------------------------------------


def chart_of(job: Job) -> Chart:
    chart = draw_duration_chart(job_status.latest_finished(job))
    assert chart is not None
    return chart


def test_chart_has_bar_per_run_oldest_first(job: Job) -> None:
    runs = make_history(job, 1, 2, 4)

    chart = chart_of(job)

    assert [bar.run for bar in chart.bars] == runs
    assert [bar.height for bar in chart.bars] == [HEIGHT / 4, HEIGHT / 2, HEIGHT]
    assert [bar.y + bar.height for bar in chart.bars] == [HEIGHT] * 3
    assert (chart.ticks, chart.logarithmic) == (("4s", "2s", "0"), False)
    assert (chart.median, chart.median_y) == ("2.0 s", HEIGHT / 2)
    assert [row.duration for row in chart.rows] == ["1.0 s", "2.0 s", "4.0 s"]


def test_chart_omits_the_runs_of_a_shadow(job: Job) -> None:
    *shadows, executed = make_history(job, 0.01, 0.01, 4)
    Run.objects.filter(pk__in=[run.pk for run in shadows]).update(reason=NOT_EXECUTED)

    assert [bar.run for bar in chart_of(job).bars] == [executed]
    executed.delete()
    assert draw_duration_chart(job_status.latest_finished(job)) is None


def test_bars_do_not_overlap_and_stay_within_chart(job: Job) -> None:
    make_history(job, *range(1, 60))

    bars = chart_of(job).bars

    assert all(bar.x + bar.width < after.x for bar, after in pairwise(bars))
    assert bars[0].x > 0
    assert bars[-1].x + bars[-1].width < WIDTH
    assert all(0 <= bar.y <= HEIGHT - MIN_HEIGHT for bar in bars)


def test_bar_of_single_run_is_narrow(job: Job) -> None:
    make_history(job, 1)

    assert chart_of(job).bars[0].width < WIDTH / MIN_SLOTS


def test_unsuccessful_run_is_marked_and_unstarted_run_has_no_bar(job: Job) -> None:
    make_history(job, 1)
    make_run(job, NOON + SECOND, state="failed", started_at=NOON, finished_at=NOON)
    make_run(job, NOON + 2 * SECOND, state="skipped", finished_at=NOON)

    succeeded, failed, skipped = chart_of(job).bars

    assert [bool(bar.mark) for bar in (succeeded, failed, skipped)] == [False, True, True]
    assert (failed.height, skipped.height) == (MIN_HEIGHT, 0)
    assert skipped.title.startswith("2026-03-01 12:00:02: ")
    assert succeeded.title.startswith("2026-03-01 12:00:00: ")
    for value in ("1.0 s", "0 ms"):
        assert value in succeeded.title
        assert value not in skipped.title


def test_run_cancelled_during_backoff_has_no_duration(job: Job) -> None:
    make_history(job, 4)
    times = {"started_at": NOON, "due_at": NOON + timedelta(hours=1)}
    ended = NOON + timedelta(minutes=50)
    make_run(job, NOON + SECOND, state="cancelled", attempt=2, finished_at=ended, **times)

    chart = chart_of(job)

    assert chart.ticks[0] == "4s"
    assert chart.median == "4.0 s"
    assert (chart.bars[1].height, bool(chart.bars[1].mark)) == (0, True)
    assert chart.bars[1].title == "2026-03-01 12:00:01: Cancelled before attempt 2 started"
    assert (chart.rows[1].duration, chart.rows[1].start_delay) == ("-", "-")


def test_outlier_makes_scale_logarithmic(job: Job) -> None:
    make_history(job, 0.02, 0.02, 0.02, 500)

    chart = chart_of(job)

    assert chart.logarithmic
    assert chart.ticks == ("16m 40s", "1s", "1 ms")
    heights = [bar.height for bar in chart.bars]
    assert heights[0] == heights[1] > 15
    assert heights[3] > 90


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        ([], ("1s", "500 ms", "0")),
        ([0.0], ("1 ms", "0.5 ms", "0")),
        ([0.003], ("4 ms", "2 ms", "0")),
        ([0.9], ("1s", "500 ms", "0")),
        ([9.0], ("10s", "5s", "0")),
        ([59.0], ("1m", "30s", "0")),
        ([3000.0], ("1h", "30m", "0")),
        ([86400.0 * 3], ("4d", "2d", "0")),
        ([0.004, 0.004, 90.0], ("1m 40s", "100 ms", "0.1 ms")),
        ([0.5, 0.5, 0.5, 7000.0], ("2h 46m 40s", "10s", "10 ms")),
        ([0.0, 0.0, 1.0], ("10s", "1s", "100 ms")),
    ],
)
def test_scale_has_round_ticks(seconds: list[float], ticks: tuple[str, str, str]) -> None:
    scale = Scale.for_durations(seconds)

    assert scale.ticks == ticks
    assert all(0 <= scale.share(lasted) <= 1 for lasted in seconds)


def test_chart_without_finished_run_is_none(job: Job) -> None:
    make_run(job, state="running", started_at=NOON)

    assert draw_duration_chart(job_status.latest_finished(job)) is None


def test_chart_shows_latest_hundred_runs(job: Job) -> None:
    make_history(job, *[1] * 105)

    bars = chart_of(job).bars

    assert len(bars) == 100
    assert bars[-1].run.scheduled_at == NOON + timedelta(minutes=104)


def test_chart_links_runs_and_has_table(admin_client: Client, job: Job) -> None:
    (run,) = make_history(job, 2, state="failed")

    with translation.override("de"):
        page = admin_client.get(status_url(job), headers={"accept-language": "de"}).content.decode()

    plot = page[page.index("dcron-plot") :]
    picture = plot[: plot.index("</svg>")]
    assert f'<a href="{run_url(run)}" tabindex="-1">' in picture
    assert "dcron-fill dcron-failed" in picture
    assert 'width="18.75"' in picture  # not the localized "18,75"
    table = page[page.index("<table") :]
    assert "2026-03-01 12:00:00" in table
    assert "<a " not in table
    assert "style=" not in page


# --- query counts ---------------------------------------------------------------------------------


def queries_of(client: Client, url: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return [query["sql"] for query in captured]


def test_number_of_queries_is_constant(admin_client: Client, job: Job) -> None:
    (run,) = make_history(job, 1)
    admin_client.get(job_url(job))  # caches content types and the like
    few, few_of_part = (
        len(queries_of(admin_client, url)) for url in (job_url(job), status_url(job))
    )
    make_history(make_job("other"), *[1] * 30)
    for number in range(1, 130):
        at = run.scheduled_at + number * SECOND
        make_run(job, at, state="succeeded", started_at=at, finished_at=at + SECOND)

    many, part = queries_of(admin_client, job_url(job)), queries_of(admin_client, status_url(job))

    assert len(many) == few
    assert len(part) == few_of_part == 8
    # session, user, job, freezes, running runs, latest runs, incident, nodes
    assert [sql for sql in many if "COUNT(" in sql and "dcron_run" in sql] == []


@pytest.mark.sqlite
@pytest.mark.django_db
def test_running_and_latest_runs_use_indexes(job: Job) -> None:
    with CaptureQueriesContext(connection) as captured:
        job_status.running_runs(job)
        job_status.latest_finished(job)
    with connection.cursor() as cursor:
        plans = []
        for query in captured.captured_queries:
            cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
            plans.append(str(cursor.fetchall()))

    assert "dcron_run_due (state=?)" in plans[0]
    assert "dcron_run_occurrence" in plans[1] or "(job_id=?)" in plans[1]
    assert "TEMP B-TREE" not in plans[1]


def test_page_of_paused_job_needs_few_queries(admin_client: Client, job: Job) -> None:
    control.pause(job, "deploy")
    admin_client.get(job_url(job))
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(job_url(job))
    assert len(queries) <= 15
