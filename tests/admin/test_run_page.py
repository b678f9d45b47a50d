"""Test a run's page: its explanation, its automatic refresh and its bounded size."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import escape, strip_tags
from django.utils.timezone import now
from pytest_django import Settings

from django_dcron import control
from django_dcron.admin.runs import page, state_sentences
from django_dcron.admin.runs.admin import JOB_ARGUMENTS_NOTE
from django_dcron.admin.runs.attempt_texts import CHARACTERS_SHOWN, indented_json
from django_dcron.admin.runs.attempt_timeline import CLAIMED_EARLY, CLAIMED_LATE, PHASE_LABELS
from django_dcron.admin.runs.page import ATTEMPTS_SHOWN
from django_dcron.admin.runs.state_sentences import WITHOUT_TIMEOUT
from django_dcron.diagnosis.phases import PhaseKind
from django_dcron.jobs.definitions import definition_id, record_definition
from django_dcron.models import Attempt, Job, Node, Run
from django_dcron.models.attempt import OUTCOME_LABELS
from django_dcron.policies.lifecycle import State
from django_dcron.policies.misfire import REPLACED_BY_NEWER_RUN
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.testing import set_clock
from tests.admin.conftest import (
    NOON,
    StaffWith,
    list_url,
    make_attempt,
    make_job,
    make_run,
    run_url,
)

FAILED = dict(OUTCOME_LABELS)["failed"]
EVIL = "</pre><script>alert(1)</script>"
ESCAPED = "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;"
SECOND = timedelta(seconds=1)
MAX_QUERIES = 13
MAX_QUERIES_OF_PART = 8
"""Two of them query the session and the user."""


def part_url(run: Run, name: str) -> str:
    return reverse("admin:django_dcron_run_part", args=[run.pk, name])


def text_url(attempt: Attempt, name: str) -> str:
    return reverse("admin:django_dcron_attempt_text", args=[attempt.pk, name])


def text_of(html: str) -> str:
    return " ".join(strip_tags(html).split())


def page_of(client: Client, run: Run) -> str:
    response = client.get(run_url(run))
    assert response.status_code == 200
    html: str = response.content.decode()
    return html


def figures(text: str) -> list[str]:
    """Return the exact times and the durations in the text, in order."""
    return re.findall(r"\d\d:\d\d:\d\d\.\d{3}|[\d.]+ m?s\b", text)


def source_of(html: str, name: str) -> str:
    """Return the URL from which the part of the page refreshes itself."""
    start = html.index(f'id="dcron-{name}"')
    return html[html.index('hx-get="', start) + 8 :].partition('"')[0].replace("&amp;", "&")


@pytest.fixture
def job(db: None) -> Job:
    return make_job(max_attempts=3)


@pytest.fixture
def running(job: Job) -> Run:
    started = now() - 30 * SECOND
    run = make_run(
        job, started.replace(microsecond=0), state="running", started_at=started, deliveries=1
    )
    make_attempt(run, started_at=started, log="Fetching\n", progress_done=1, progress_total=4)
    return run


# --- explanation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", list(OverlapPolicy))
def test_running_run_without_timeout_says_what_later_runs_do(
    admin_client: Client, job: Job, running: Run, overlap: OverlapPolicy
) -> None:
    job.overlap_policy = overlap
    control.save(job)
    text = str(WITHOUT_TIMEOUT[overlap])
    assert text not in page_of(admin_client, running), "the attempt's definition is unknown"
    running.attempts.update(definition=definition_id(job))
    assert text in page_of(admin_client, running)
    job.timeout = timedelta(hours=1)
    control.save(job)
    assert text in page_of(admin_client, running), "the attempt keeps the timeout of its start"
    running.attempts.update(definition=definition_id(job))
    assert text not in page_of(admin_client, running)


FAR = NOON.replace(year=9000)


@pytest.mark.parametrize(
    ("values", "sentence", "time"),
    [
        ({"state": "pending"}, state_sentences.OVERDUE, "2026-03-01 12:00:00"),
        (
            {"state": "pending", "due_at": FAR},
            state_sentences.SENTENCES[State.PENDING],
            "9000-03-01 12:00:00",
        ),
        (
            {"state": "pending", "due_at": FAR, "attempt": 2},
            state_sentences.RETRY_DUE,
            "9000-03-01 12:00:00",
        ),
        (
            {"state": "queued", "queued_at": NOON, "deliveries": 1},
            state_sentences.SENTENCES[State.QUEUED],
            "2026-03-01 12:00:00",
        ),
        (
            {"state": "pending", "queued_at": NOON, "deliveries": 1},
            state_sentences.NOT_STARTED,
            "2026-03-01 12:00:00",
        ),
        (
            {"state": "queued", "queued_at": NOON, "deliveries": 2},
            state_sentences.SENT_AGAIN,
            "2026-03-01 12:00:00",
        ),
        (
            {"state": "waiting", "reason": "the run before"},
            state_sentences.SENTENCES[State.WAITING],
            "",
        ),
        (
            {"state": "running", "started_at": NOON},
            state_sentences.SENTENCES[State.RUNNING],
            "2026-03-01 12:00:00",
        ),
        (
            {"state": "succeeded", "finished_at": NOON},
            state_sentences.SENTENCES[State.SUCCEEDED],
            "12:00:00",
        ),
        (
            {"state": "failed", "finished_at": NOON, "reason": "ValueError"},
            state_sentences.SENTENCES[State.FAILED],
            "12:00:00",
        ),
        (
            {"state": "skipped", "finished_at": NOON, "reason": "overlap"},
            state_sentences.SENTENCES[State.SKIPPED],
            "12:00:00",
        ),
        (
            {"state": "missed", "finished_at": NOON, "reason": "late"},
            state_sentences.SENTENCES[State.MISSED],
            "",
        ),
        (
            {"state": "cancelled", "finished_at": NOON, "reason": "by ann"},
            state_sentences.SENTENCES[State.CANCELLED],
            "12:00:00",
        ),
    ],
)
def test_page_starts_with_state_and_explanation(
    admin_client: Client, job: Job, values: dict[str, Any], sentence: Any, time: str
) -> None:
    run = make_run(job, **values)
    html = page_of(admin_client, run)

    verdict = verdict_of(html)
    shown = dict.fromkeys(("due", "queued", "started", "finished"), time)
    assert f'class="dcron-badge dcron-{run.state}"' in verdict
    assert str(sentence).format(number=run.attempt, **shown) in text_of(verdict)
    assert time in text_of(verdict)
    assert ('class="dcron-reason"' in verdict) == bool(run.reason)
    assert run.reason in text_of(verdict)
    assert html.index("dcron-verdict") < html.index("<fieldset")


def test_page_of_backfilled_run_says_that_it_waits_for_the_paused_job(
    admin_client: Client, job: Job
) -> None:
    run = make_run(job, state="waiting", trigger="backfill")
    text = str(state_sentences.WAITS_FOR_RESUME)
    assert text not in text_of(verdict_of(page_of(admin_client, run)))
    control.pause(job, "deploy")
    assert text in text_of(verdict_of(page_of(admin_client, run)))


def test_page_of_running_run_says_that_heartbeats_are_missing(
    admin_client: Client, running: Run, settings: Settings
) -> None:
    settings.DCRON_RUN_LEASE = timedelta(minutes=10)
    start = str(state_sentences.NO_HEARTBEAT).partition("{")[0]

    def is_silent_for(silence: timedelta) -> bool:
        Run.objects.update(heartbeat_at=now() - silence)
        return start in text_of(verdict_of(page_of(admin_client, running)))

    assert is_silent_for(timedelta(minutes=11))
    assert not is_silent_for(timedelta())


def verdict_of(html: str) -> str:
    return html.partition('class="dcron-verdict')[2].partition("</div>")[0]


def test_page_of_cancelled_run_shows_who_when_and_why_before_traceback(
    admin_client: Client, job: Job
) -> None:
    run = make_run(
        job,
        state="cancelled",
        reason="too slow (ann)",
        cancel_requested_at=NOON + 5 * SECOND,
        finished_at=NOON + 6 * SECOND,
    )
    attempt = make_attempt(
        run,
        outcome="cancelled",
        exception_class="django_dcron.exceptions.RunCancelled",
        traceback="raise RunCancelled",
        finished_at=run.finished_at,
    )
    html = page_of(admin_client, run)
    attempt_page = admin_client.get(
        reverse("admin:django_dcron_attempt_change", args=[attempt.pk])
    ).content.decode()

    verdict = text_of(verdict_of(html))
    assert {"12:00:05", "12:00:06"} <= set(re.findall(r"\d\d:\d\d:\d\d", verdict))
    assert run.reason in verdict
    for page_with_traceback in (html, attempt_page):
        assert attempt.exception_class not in page_with_traceback
        before = page_with_traceback.partition(attempt.traceback)[0]
        assert before.count("<details") > before.count("</details>"), "the traceback isn't folded"


def test_page_counts_missed_occurrences_merged_into_run(admin_client: Client, job: Job) -> None:
    earlier = NOON - timedelta(hours=1)
    one = make_run(job, state="missed", missed_before=1, missed_from=earlier)
    many = make_run(job, NOON + SECOND, state="missed", missed_before=4, missed_from=earlier)
    none = make_run(job, NOON + 2 * SECOND, state="missed")

    for run, number in ((one, "1"), (many, "4")):
        verdict = text_of(verdict_of(page_of(admin_client, run)))
        assert re.findall(r"\b\d\b", verdict) == [number]
        assert "2026-03-01 11:00:00" in verdict
    assert not re.search(r"\d", text_of(verdict_of(page_of(admin_client, none))))


def test_page_shows_requested_cancellation(admin_client: Client, running: Run) -> None:
    requested = str(state_sentences.CANCEL_REQUESTED).format(time="2026-03-01 12:00:00")
    assert requested not in text_of(page_of(admin_client, running))
    Run.objects.update(cancel_requested_at=NOON, reason="too slow (ann)")

    verdict = text_of(verdict_of(page_of(admin_client, running)))

    assert requested in verdict
    assert "too slow (ann)" in verdict


def test_page_hides_delivery_of_earlier_attempt(admin_client: Client, job: Job) -> None:
    """A retry doesn't reset ``queued_at``."""
    run = make_run(job, state="pending", attempt=2, queued_at=NOON, deliveries=0)

    def facts() -> list[tuple[str, str]]:
        return [
            (label, text_of(value))
            for label, value in admin_client.get(run_url(run)).context["page"].facts
        ]

    before = facts()
    Run.objects.update(deliveries=2)
    assert [value for label, value in facts() if (label, value) not in before] == ["12:00:00", "2"]


def test_duration_of_a_lost_attempt_says_what_it_includes(admin_client: Client, job: Job) -> None:
    end = NOON + 146 * SECOND
    run = make_run(job, state="failed", started_at=NOON, finished_at=end, attempt=1)
    attempt = make_attempt(run, outcome="lost", started_at=NOON, finished_at=end)

    note = "until it was declared lost"
    facts = dict(admin_client.get(run_url(run)).context["page"].facts)
    assert text_of(facts["duration"]) == f"2m 26s{note}"
    of_attempt = reverse("admin:django_dcron_attempt_change", args=[attempt.pk])
    assert note in admin_client.get(of_attempt).content.decode()
    Attempt.objects.update(outcome="failed")
    assert note not in page_of(admin_client, run)


def test_page_shows_that_a_returned_run_had_been_sent(admin_client: Client, job: Job) -> None:
    """A freeze returned it before a worker started it."""
    run = make_run(job, state="pending", queued_at=NOON + SECOND, deliveries=0)
    shown = admin_client.get(run_url(run)).context["page"]
    sentence = text_of(next(iter(state_sentences.state_sentences(run, NOON + 60 * SECOND))))
    assert sentence == str(state_sentences.NOT_STARTED).format(queued="2026-03-01 12:00:01")
    assert "12:00:01" in [text_of(value) for _label, value in shown.facts]


def test_failed_run_says_why_it_was_not_retried(admin_client: Client, job: Job) -> None:
    job.max_attempts = 3
    control.save(job)
    run = make_run(job, state="failed", started_at=NOON, finished_at=NOON)
    name = "django_dcron.exceptions.PermanentFailure"
    attempt = make_attempt(run, outcome="failed", exception_class=name, finished_at=NOON)
    record_definition(job, attempt.pk)
    expected = "Not retried: the attempt raised PermanentFailure."
    assert expected in text_of(verdict_of(page_of(admin_client, run)))
    Attempt.objects.update(number=3)
    Run.objects.update(attempt=3)
    assert "Not retried" not in text_of(verdict_of(page_of(admin_client, run)))


# --- links ----------------------------------------------------------------------------------------


def test_page_links_job_node_worker_and_neighboring_runs(admin_client: Client, job: Job) -> None:
    Node.objects.create(
        id="node-a-1",
        name="node-a",
        host="h",
        pid=1,
        version="1",
        started_at=NOON,
        heartbeat_at=NOON,
    )
    before, run, after = (
        make_run(job, NOON + hour * timedelta(hours=1), state="succeeded", node="node-a-1")
        for hour in range(3)
    )
    make_run(make_job("other"), NOON + SECOND)
    again = make_run(job, NOON + timedelta(days=1), rerun_of=run)
    make_attempt(run, worker="celery@web 1&2", outcome="succeeded")

    html = page_of(admin_client, run)

    for url in (
        reverse("admin:django_dcron_job_change", args=[job.pk]),
        reverse("admin:django_dcron_node_change", args=["node-a-1"]),
        f"{reverse('admin:django_dcron_attempt_changelist')}?worker=celery%40web+1%262&amp;started_at__lt=2026-03-01T13%3A01%3A00%2B00%3A00",
        run_url(again),
    ):
        assert f'<a href="{url}">' in html
    assert f'<a href="{run_url(before)}" rel="prev">' in html
    assert f'<a href="{run_url(after)}" rel="next">' in html
    listed = admin_client.get(
        reverse("admin:django_dcron_attempt_changelist"), {"worker": "celery@web 1&2"}
    ).context["cl"]
    assert listed.result_count == 1
    assert "field-rerun_of_link" in page_of(admin_client, again)
    assert "field-rerun_of_link" not in html
    assert run_url(run) in page_of(admin_client, again)


@pytest.mark.parametrize(("is_rerun", "shown"), [(False, "Backfill"), (True, "Rerun")])
def test_rerun_that_queues_like_a_backfill_is_shown_as_a_rerun(
    admin_client: Client, is_rerun: bool, shown: str
) -> None:
    job = make_job()
    original = make_run(job, state="failed") if is_rerun else None
    run = make_run(job, NOON + SECOND, state="waiting", trigger="backfill", rerun_of=original)
    page = re.sub(r"\s+", " ", page_of(admin_client, run))
    assert f'<div class="readonly">{shown}</div>' in page
    listed = admin_client.get(list_url("run"), {"state__exact": "waiting"}).content.decode()
    assert f">{shown}</div>" in listed
    job_page = admin_client.get(reverse("admin:django_dcron_job_change", args=[job.pk]))
    assert f"<td>{shown}</td>" in job_page.content.decode()


def test_deleted_node_is_named_without_link(admin_client: Client, job: Job) -> None:
    html = page_of(admin_client, make_run(job, node="long-gone"))

    assert "Node long-gone" in text_of(html)
    assert "/node/" not in html.partition('id="dcron-status"')[2]


def test_arguments_taken_from_job_are_marked(admin_client: Client, job: Job) -> None:
    Job.objects.update(args=[1], kwargs={"of": "the job"})
    html = page_of(admin_client, make_run(job, NOON + SECOND, args=["of the run"]))

    assert "[&quot;of the run&quot;]" in html
    assert "{&quot;of&quot;: &quot;the job&quot;}" in html
    own, of_job = (
        html.partition(f"field-{name}")[2] for name in ("arguments", "keyword_arguments")
    )
    note = str(escape(JOB_ARGUMENTS_NOTE))
    assert note not in own.partition("field-keyword_arguments")[0]
    assert note in of_job
    assert html.count(note) == 1


# --- automatic refresh ----------------------------------------------------------------------------


def test_attempts_part_refreshes_with_new_log_and_progress(
    admin_client: Client, running: Run
) -> None:
    html = page_of(admin_client, running)
    source = source_of(html, "attempts")
    assert "1 of 4 (25 %)" in text_of(html)

    assert admin_client.get(source).status_code == 204
    Attempt.objects.update(log="Fetching\nStoring\n", progress_done=2)
    grown = admin_client.get(source)

    assert grown.status_code == 200
    assert "HX-Refresh" not in grown
    assert "Storing" in grown.content.decode()
    assert "2 of 4 (50 %)" in text_of(grown.content.decode())
    assert admin_client.get(source_of(grown.content.decode(), "attempts")).status_code == 204


def test_refreshed_part_equals_part_of_page(admin_client: Client, running: Run) -> None:
    with set_clock(now()):
        html = page_of(admin_client, running)

        for name in page.PARTS:
            assert admin_client.get(source_of(html, name)).status_code == 204
            assert admin_client.get(part_url(running, name)).content.decode() in html


def test_status_part_changes_as_time_passes(
    admin_client: Client, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(page_of(admin_client, running), "status")
    later = now() + 60 * SECOND
    monkeypatch.setattr(page, "database_now", lambda using: later)

    assert admin_client.get(source).status_code == 200


@pytest.mark.parametrize("name", page.PARTS)
def test_finished_run_reloads_page_and_stops_refreshing(
    admin_client: Client, running: Run, name: str
) -> None:
    assert "htmx" in page_of(admin_client, running)
    Run.objects.update(state="succeeded", finished_at=now())

    assert admin_client.get(part_url(running, name))["HX-Refresh"] == "true"
    html = page_of(admin_client, running)
    assert "hx-get" not in html
    assert "htmx" not in html


def test_deleted_run_reloads_page(admin_client: Client, job: Job) -> None:
    run = make_run(job)
    source = source_of(page_of(admin_client, run), "status")
    Run.objects.all().delete()

    assert admin_client.get(source)["HX-Refresh"] == "true"
    assert admin_client.get(run_url(run)).status_code == 302


def test_unknown_part_returns_404(admin_client: Client, running: Run) -> None:
    assert admin_client.get(part_url(running, "log")).status_code == 404


def test_parts_require_permissions(client: Client, staff_with: StaffWith, running: Run) -> None:
    both = [part_url(running, name) for name in page.PARTS]
    text = text_url(Attempt.objects.get(), "log")

    assert [client.get(url).status_code for url in (*both, text)] == [302, 302, 302]
    assert [staff_with().get(url).status_code for url in (*both, text)] == [403, 403, 403]
    assert [staff_with("view_run").get(url).status_code for url in (*both, text)] == [200, 403, 403]
    assert [staff_with("view_attempt").get(url).status_code for url in (*both, text)] == [
        403,
        403,
        200,
    ]
    may_see_both = staff_with("view_run", "view_attempt")
    assert [may_see_both.get(url).status_code for url in (*both, text)] == [200, 200, 200]


def test_page_hides_attempts_without_view_attempt_permission(
    staff_with: StaffWith, running: Run
) -> None:
    html = page_of(staff_with("view_run"), running)

    for hidden in ("dcron-attempts", "dcron-timeline", "celery@web-1", "Fetching"):
        assert hidden not in html
    assert 'class="dcron-verdict dcron-running"' in html
    assert "“Can view attempt”" in html
    assert "“Can view attempt”" not in page_of(staff_with("view_run", "view_attempt"), running)


# --- results and logs of the attempts -------------------------------------------------------------


def test_texts_of_job_are_escaped(admin_client: Client, running: Run) -> None:
    Run.objects.update(reason=EVIL, node=EVIL, idempotency_key=EVIL)
    texts = {"log": EVIL, "message": EVIL, "traceback": EVIL, "result": json.dumps(EVIL)}
    Attempt.objects.update(**texts, exception_class=EVIL, worker=EVIL, progress_note=EVIL)
    make_attempt(running, 2, **texts, exception_class=EVIL, worker=EVIL)

    html = page_of(admin_client, running)

    assert "<script>alert" not in html
    assert html.count(ESCAPED) >= 9


def test_failure_is_shown_before_log(admin_client: Client, job: Job) -> None:
    run = make_run(job, state="failed", finished_at=NOON)
    make_attempt(
        run,
        outcome="failed",
        exception_class="ValueError",
        message="bad order",
        traceback="in line 7",
        log="a log",
    )

    html = page_of(admin_client, run).partition('id="dcron-latest"')[2]

    places = [html.index(text) for text in ("ValueError", "bad order", "in line 7", "a log")]
    assert places == sorted(places)


def test_page_shows_latest_attempts_and_links_to_all(admin_client: Client, job: Job) -> None:
    run = make_run(job, state="failed", attempt=100, finished_at=NOON + timedelta(hours=1))
    for number in range(1, 101):
        times = {
            "started_at": NOON + number * SECOND,
            "finished_at": NOON + (number + 0.5) * SECOND,
        }
        make_attempt(run, number, outcome="failed", log="x" * 1000, message="y" * 1000, **times)

    html = page_of(admin_client, run)

    assert html.count('class="dcron-lane"') == ATTEMPTS_SHOWN
    every = reverse("admin:django_dcron_attempt_changelist") + f"?q={run.pk}"
    link = html.partition(f'href="{every}"')[2].partition("</a>")[0]
    listed = admin_client.get(every).context["cl"].result_count
    assert (listed, re.findall(r"\d+", link)) == (100, ["100"])
    assert html.count("x" * 1000) == 1
    assert html.count("y" * 201) == 1000 // 201  # shown for the latest attempt only


def test_page_truncates_long_texts(admin_client: Client, running: Run) -> None:
    log = "".join(f"{number:09}\n" for number in range(CHARACTERS_SHOWN // 2))
    Attempt.objects.update(log=log, traceback=log, message=log, result=log)

    html = page_of(admin_client, running)

    assert len(html) < 4 * CHARACTERS_SHOWN + 50_000
    assert log[-CHARACTERS_SHOWN:] in html
    assert log[:CHARACTERS_SHOWN] in html
    notes = re.findall(r'<p class="dcron-quiet">([^<]*\d{4}[^<]*)</p>', html)
    assert len(notes) == 4
    assert {tuple(re.findall(r"\d+", note)) for note in notes} == {
        (str(CHARACTERS_SHOWN), str(len(log)))
    }
    whole = admin_client.get(text_url(Attempt.objects.get(), "log"))
    assert whole.content.decode() == log


def test_search_finds_lines_of_the_whole_log(admin_client: Client, running: Run) -> None:
    attempt = Attempt.objects.get()
    filler = "x" * CHARACTERS_SHOWN
    Attempt.objects.update(log=f"Order 4711 <b>\n{filler}\norder 12\n")

    page = admin_client.get(run_url(running)).content.decode()
    assert f'formaction="{text_url(attempt, "log")}"' in page
    assert 'id="dcron-log-search"' in page
    found = admin_client.get(text_url(attempt, "log"), {"q": " ORDER "})
    assert found.content.decode() == "1: Order 4711 <b>\n3: order 12\n"
    assert found["Content-Type"] == "text/plain; charset=utf-8"
    assert admin_client.get(text_url(attempt, "log"), {"q": "nothing"}).content == b""


def test_attempt_text_is_served_as_plain_text(admin_client: Client, running: Run) -> None:
    Attempt.objects.update(log=EVIL)
    attempt = Attempt.objects.get()

    response = admin_client.get(text_url(attempt, "log"))

    assert response.content.decode() == EVIL
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert admin_client.get(text_url(attempt, "token")).status_code == 404
    attempt.delete()
    assert (
        admin_client.get(
            reverse("admin:django_dcron_attempt_text", args=[1 << 40, "log"])
        ).status_code
        == 404
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"orders": [1, "é"]}', '{\n  "orders": [\n    1,\n    "é"\n  ]\n}'),
        ('"a\\ud800"', '"a\\ud800"'),  # a lone surrogate isn't a character
        ("[1\n[... 9 characters omitted ...]\n]", "[1\n[... 9 characters omitted ...]\n]"),
        ("[" * 100_000, "[" * 100_000),
        ("[" * 500 + "1," * 5000 + "1" + "]" * 500, None),
    ],
)
def test_json_result_is_indented_if_possible(text: str, shown: str | None) -> None:
    assert indented_json(text) == (text if shown is None else shown)


@pytest.mark.parametrize(
    ("columns", "bar", "text"),
    [
        ({"progress_done": 2, "progress_total": 3}, 'value="66"', "2 of 3 (66 %)"),
        ({"progress_done": 5, "progress_total": 3}, 'value="100"', "5 of 3 (100 %)"),
        (
            {"progress_done": 2, "progress_total": None, "progress_note": "of many"},
            "<progress aria",
            "2 of many",
        ),
        ({"progress_done": 2, "progress_total": 0}, "<progress aria", "Progress 2"),
        (
            {"progress_done": None, "progress_total": None, "progress_note": "soon"},
            "<progress aria",
            "soon",
        ),
    ],
)
def test_progress_is_shown_as_bar_and_text(
    admin_client: Client, running: Run, columns: dict[str, Any], bar: str, text: str
) -> None:
    Attempt.objects.update(**columns)

    html = page_of(admin_client, running)

    assert bar in html
    assert text in text_of(html)


def test_finished_attempt_has_no_progress_bar(admin_client: Client, running: Run) -> None:
    Attempt.objects.update(progress_total=None, outcome="failed", finished_at=now())

    assert "<progress" not in page_of(admin_client, running)


# --- times of due, dispatch and start -------------------------------------------------------------


@pytest.fixture
def retried(job: Job) -> Run:
    """A run with two failed attempts and a third one to come.

    It was claimed 10 s ahead, dispatched after 10 ms and started 4 s later. The retry waited 10 s.
    The second attempt started before the node recorded its dispatch.
    """
    run = make_run(job, state="pending", attempt=3, due_at=NOON.replace(year=9000), queued_at=NOON)
    Run.objects.update(claimed_at=NOON - 10 * SECOND)
    make_attempt(
        run,
        outcome="failed",
        due_at=NOON,
        queued_at=NOON + SECOND / 100,
        started_at=NOON + 4.01 * SECOND,
        finished_at=NOON + 8 * SECOND,
    )
    started = NOON + 18.05 * SECOND
    times = {"due_at": NOON + 18 * SECOND, "started_at": started, "finished_at": started + SECOND}
    make_attempt(run, 2, outcome="failed", **times)
    run.refresh_from_db()
    return run


def test_timeline_table_lists_waits_of_every_attempt(admin_client: Client, retried: Run) -> None:
    html = page_of(admin_client, retried)
    table = html.partition("<caption>Timeline</caption>")[2].partition("</table>")[0]
    rows = [text_of(row.replace("</td>", " ")) for row in table.split("</tr>")[1:]]

    early = str(CLAIMED_EARLY) % {"time": "10.0 s"}
    assert [row.replace("2026-03-01 ", "") for row in rows[:-2]] == [
        f"1 {early}",
        f"1 {PHASE_LABELS[PhaseKind.DUE]} 12:00:00.000 12:00:00.010 10 ms",
        f"1 {PHASE_LABELS[PhaseKind.QUEUED]} 12:00:00.010 12:00:04.010 4.0 s",
        f"1 {FAILED} 12:00:04.010 12:00:08.000 4.0 s",
        f"2 {PHASE_LABELS[PhaseKind.BACKOFF]} 12:00:08.000 12:00:18.000 10.0 s",
        f"2 {PHASE_LABELS[PhaseKind.DUE_OR_QUEUED]} 12:00:18.000 12:00:18.050 50 ms",
        f"2 {FAILED} 12:00:18.050 12:00:19.050 1.0 s",
    ]
    assert rows[-2].startswith(f"3 {PHASE_LABELS[PhaseKind.BACKOFF]}")
    assert html.count(early) == 2, "in the chart and in the table, for the first attempt only"


def test_page_shows_late_claim_of_scheduled_run(admin_client: Client, job: Job) -> None:
    run = make_run(job, state="pending", claimed_at=NOON + 7 * SECOND)
    assert str(CLAIMED_LATE) % {"time": "7.0 s"} in page_of(admin_client, run)

    by_hand = make_run(job, NOON + SECOND, state="pending", trigger="manual")
    assert "dcron-claim" not in page_of(admin_client, by_hand)


def test_earlier_attempts_and_attempt_page_show_times_and_waits(
    admin_client: Client, retried: Run
) -> None:
    times = {
        "due_at": NOON + 40 * SECOND,
        "queued_at": NOON + 41 * SECOND,
        "started_at": NOON + 42 * SECOND,
    }
    third = make_attempt(retried, 3, **times)
    Run.objects.update(state="running", started_at=times["started_at"])

    rows = page_of(admin_client, retried).partition('id="dcron-earlier"')[2].split("<tr>")[2:4]
    second, first = (text_of(row.replace("</", " </")) for row in rows)
    attempt_page = text_of(
        admin_client.get(
            reverse("admin:django_dcron_attempt_change", args=[third.pk])
        ).content.decode()
    )

    assert figures(first) == [
        "12:00:00.000",
        "12:00:00.010",
        "10 ms",
        "12:00:04.010",
        "4.0 s",
        "4.0 s",
    ]
    assert figures(second) == ["12:00:18.000", "10.0 s", "12:00:18.050", "50 ms", "1.0 s"]
    times_shown = ["12:00:40.000", "12:00:41.000", "1.0 s", "12:00:42.000", "1.0 s"]
    assert figures(attempt_page)[: len(times_shown)] == times_shown


# --- query counts ---------------------------------------------------------------------------------


def test_number_of_queries_is_constant(admin_client: Client, running: Run) -> None:
    def queries(url: str) -> list[str]:
        admin_client.get(url)
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(url)
        return [query["sql"] for query in captured]

    Run.objects.update(node="node-a")
    urls = [run_url(running), *(part_url(running, name) for name in page.PARTS)]
    few = [len(queries(url)) for url in urls]
    for number in range(2, 30):
        make_attempt(running, number, log="log")
        make_run(running.job, NOON + number * SECOND)
    many = [queries(url) for url in urls]

    assert [len(asked) for asked in many] == few
    assert len(many[0]) <= MAX_QUERIES
    assert max(map(len, many[1:])) <= MAX_QUERIES_OF_PART
    assert not any("traceback" in sql for sql in many[1]), "the chart needs no texts"


def test_missed_run_links_to_the_newer_run_that_replaces_it(admin_client: Client) -> None:
    job = make_job()
    reason = f"the run didn't start within 1m; {REPLACED_BY_NEWER_RUN}"
    missed = make_run(job, NOON, state="missed", finished_at=NOON, reason=reason)
    newer = make_run(job, NOON + timedelta(hours=1), state="succeeded")
    sentences = admin_client.get(run_url(missed)).context["page"].sentences
    assert any(run_url(newer) in sentence for sentence in sentences)
