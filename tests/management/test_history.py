"""Test ``dcron history``: the runs of a job, and one run with its attempts."""

import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now
from pytest_django import Settings

from django_dcron import control
from django_dcron.diagnosis import run_history
from django_dcron.diagnosis.run_history import EMPTY_LOG
from django_dcron.jobs.definitions import record_definition
from django_dcron.jobs.queued_reruns import rerun_selected
from django_dcron.management.dcron import history
from django_dcron.models import Attempt, Job, Run
from tests.factories import make_idle_job, make_run
from tests.management.calling import call, table

pytestmark = pytest.mark.django_db

START = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def make_history(states: list[str]) -> tuple[Job, list[Run]]:
    """Create runs a minute apart, oldest first. Each took 2 seconds."""
    job = make_idle_job(name="report")
    runs = []
    for number, state in enumerate(states):
        at = START + number * MINUTE
        times = {
            "scheduled_at": at,
            "due_at": at,
            "started_at": at,
            "finished_at": at + timedelta(seconds=2),
        }
        runs.append(make_run(job, state, **times))
    return job, runs


def ids(*arguments: str) -> list[str]:
    return [run["id"] for run in call("history", "report", "--json", *arguments).json["runs"]]


def shown_fields(text: str) -> dict[str, str]:
    """Return the fields in a part of the output by label."""
    return dict(re.split(r" {2,}", line, maxsplit=1) for line in text.splitlines() if "  " in line)


def test_times_of_a_retried_run_are_those_of_all_attempts() -> None:
    job = make_idle_job(name="report")
    last = START + 3 * MINUTE
    run = make_run(
        job,
        "failed",
        scheduled_at=START,
        attempt=3,
        due_at=last,
        started_at=last,
        finished_at=last + timedelta(seconds=2),
    )
    first = Attempt(run=run, number=1, token=uuid4(), worker="w", due_at=START)
    first.started_at = START + timedelta(milliseconds=20)
    first.save()
    _head, row = table(call("history", "report").out)
    assert row[3:] == ["20 ms", "3m 02s", "attempt 3"]
    shown = shown_fields(call("history", str(run.pk)).out.partition("Attempt 1")[0])
    assert shown["started"].startswith("2026-12-01 09:00:00")
    assert (shown["start delay"], shown["duration"], shown["attempts"]) == ("20 ms", "3m 02s", "3")
    assert "due" not in shown


def test_history_shows_when_a_run_and_each_attempt_was_sent() -> None:
    """The time shows whether the node or the worker was late."""
    _job, (run,) = make_history(["succeeded"])
    sent = [START + number * MINUTE for number in (1, 2)]
    for number, queued_at in enumerate(sent, start=1):
        Attempt.objects.create(
            run=run,
            number=number,
            token=uuid4(),
            due_at=START,
            queued_at=queued_at,
            started_at=START + 3 * MINUTE,
        )
    changes = Run.objects.filter(pk=run.pk)
    changes.update(queued_at=sent[1], deliveries=1)

    def sent_times() -> list[str | None]:
        parts = re.split(r"^Attempt \d$", call("history", str(run.pk)).out, flags=re.MULTILINE)
        return [shown_fields(part).get("sent to worker") for part in parts]

    first, second = "2026-12-01 09:01:00 UTC", "2026-12-01 09:02:00 UTC"
    assert sent_times() == [second, first, second]
    changes.update(attempt=2)
    assert sent_times() == [first, first, second], "the run has the times of all attempts"
    document = call("history", str(run.pk), "--json").json["run"]["attempts"][1]
    assert document["due_at"] == "2026-12-01T09:00:00Z"
    assert document["queued_at"] == "2026-12-01T09:02:00Z"

    Attempt.objects.all().delete()
    changes.update(attempt=1, deliveries=0)
    assert sent_times() == [second], "a freeze returned the run"
    changes.update(queued_at=None)
    assert sent_times() == [None]


def test_run_with_one_attempt_has_one_duration() -> None:
    """The rows of the run and of its attempt have slightly different times of the start."""
    _job, (run,) = make_history(["succeeded"])
    started = START - timedelta(seconds=1)
    times = {"started_at": started, "finished_at": run.finished_at}
    Attempt.objects.create(run=run, number=1, token=uuid4(), **times)
    out = call("history", str(run.pk)).out
    assert re.findall(r"^duration +(.*)$", out, re.MULTILINE) == ["2.0 s"]
    Run.objects.filter(pk=run.pk).update(attempt=2)
    assert call("history", str(run.pk)).out.count("\nduration ") == 2


def test_history_lists_runs_newest_first() -> None:
    _job, runs = make_history(["succeeded", "failed"])
    Run.objects.filter(pk=runs[1].pk).update(
        reason="no\nluck", trigger="manual", attempt=2, missed_before=3
    )
    code, out, _err = call("history", "report")
    head, failed, succeeded = table(out)
    assert code == 0
    assert head == ["Run", "Scheduled (UTC)", "State", "Start delay", "Duration", "Note"]
    assert failed == [
        str(runs[1].pk)[:23],
        "2026-12-01 09:01:00+00:00",
        "failed",
        "0 ms",
        "2.0 s",
        "manual; attempt 2; 3 missed before; no luck",
    ]
    assert succeeded[2] == "succeeded"


def test_history_is_paginated_by_limit_and_time() -> None:
    _job, runs = make_history(["succeeded"] * 5)
    newest = [str(run.pk) for run in reversed(runs)]
    assert ids() == newest
    assert ids("-n", "2") == newest[:2]
    assert ids("--until", "2026-12-01T09:03") == newest[2:], "not included"
    assert ids("--since", "2026-12-01T09:03") == newest[:2], "included"
    out = call("history", "report", "-n", "2").out
    assert "--until 2026-12-01T09:03:00+00:00" in out
    cut = call("history", "report", "-n", "2", "--json").json
    assert (cut["more"], cut["continue_until"]) == (True, "2026-12-01T09:03:00Z")
    assert ids("--until", cut["continue_until"]) == newest[2:]
    complete = call("history", "report", "-n", "5", "--json").json
    assert (complete["more"], complete["continue_until"]) == (False, None)


def test_time_of_day_is_the_last_one_in_the_zone_of_the_site(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"  # without clock changes
    hour = now().astimezone(ZoneInfo("Asia/Tokyo")).replace(minute=0, second=0, microsecond=0)
    job = make_idle_job(name="report")
    times = [hour - timedelta(days=1), hour - timedelta(hours=1), hour]
    _day_before, hour_before, latest = [
        str(make_run(job, "succeeded", scheduled_at=at).pk) for at in times
    ]
    assert ids("--since", f"{times[1]:%H:%M}") == [latest, hour_before]
    assert ids("--since", f"{times[1]:%H:%M}", "--until", f"{hour:%H:%M:%S}") == [hour_before]
    assert call("history", "report", "--since", "").code == 2, "an empty variable in a script"
    result = call("history", "report", "--until", "25:00")
    assert (result.code, "25:00" in result.err) == (2, True)


def test_history_is_filtered_by_state() -> None:
    _job, runs = make_history(["failed", "succeeded", "missed", "succeeded"])
    assert ids("--state", "failed") == [str(runs[0].pk)]
    assert ids("--state", "failed", "--state", "missed") == [str(runs[2].pk), str(runs[0].pk)]
    assert ids("--state", "failed", "--state", "missed", "-n", "1") == [str(runs[2].pk)]
    assert call("history", "report", "--state", "skipped").out == "No runs match.\n"


def test_state_filter_searches_latest_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_history, "READ_LIMIT", 2)
    monkeypatch.setattr(history, "READ_LIMIT", 2)  # it names the limit
    make_history(["failed", "succeeded", "succeeded"])
    answer = call("history", "report", "--state", "failed", "--json").json
    assert (answer["runs"], answer["more"]) == ([], True)
    out = call("history", "report", "--state", "failed").out
    assert out.startswith("None of the latest 2 runs match. ")
    until = out.partition("--until ")[2].split()[0]
    assert call("history", "report", "--state", "failed", "--until", until).out.count("failed") == 1


def test_next_page_of_a_search_by_state_begins_at_the_last_run_examined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_history, "READ_LIMIT", 2)
    make_history(["failed", "succeeded", "failed"])
    for job, until in ((("report",), "09:01:00"), ((), "09:01:01")):
        out = call("history", *job, "--state", "failed").out
        assert out.endswith(f"use --until 2026-12-01T{until}+00:00\n")
        document = call("history", *job, "--state", "failed", "--json").json
        assert document["continue_until"] == f"2026-12-01T{until}Z"
    Run.objects.update(state="failed")
    cut = call("history", "report", "--state", "failed", "-n", "1").out
    assert cut.endswith("use --until 2026-12-01T09:02:00+00:00\n")


def test_search_by_state_within_one_second_names_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_history, "READ_LIMIT", 2)
    for number in range(3):
        make_run(make_idle_job(name=f"job-{number}"), "failed", scheduled_at=START)
    Run.objects.filter(job__name="job-2").update(state="succeeded")
    out = call("history", "--state", "failed").out
    assert "There may be older runs" in out
    assert not re.search("--until|--limit", out)
    assert call("history", "--state", "failed", "--json").json["continue_until"] is None


def test_number_of_queries_is_constant() -> None:
    job, _runs = make_history(["succeeded"])

    def run_queries() -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            call("history", "report", "--state", "succeeded")
        return [query["sql"] for query in queries if "django_dcron_run" in query["sql"]]

    few = run_queries()
    for _ in range(5):
        make_run(job, "succeeded")
    assert len(run_queries()) == len(few) == 2
    assert not [sql for sql in few if "JOIN" in sql]


def test_history_without_a_job_lists_the_runs_of_all_jobs() -> None:
    _job, (failed, succeeded) = make_history(["failed", "succeeded"])
    other = make_idle_job(namespace="shop", name="stock")
    last = make_run(other, "failed", scheduled_at=START + 5 * MINUTE)
    upcoming = make_run(other, due_at=now() + MINUTE, scheduled_at=START + 9 * MINUTE)

    def ids_of_all(*arguments: str) -> list[str]:
        return [run["id"] for run in call("history", "--json", *arguments).json["runs"]]

    newest_first = [str(run.pk) for run in (last, succeeded, failed)]
    assert ids_of_all() == newest_first
    assert ids_of_all("--upcoming") == [str(upcoming.pk), *newest_first]
    assert ids_of_all("--state", "failed") == [str(last.pk), str(failed.pk)]
    assert ids_of_all("--until", "2026-12-01T09:05") == newest_first[1:]
    assert ids_of_all("-n", "1") == newest_first[:1]
    head, first, *_rest = table(call("history").out)
    assert (head[1], first[1]) == ("Job", "shop/stock")
    assert call("history", "--attempt", "1").code == 2
    Run.objects.all().delete()
    assert call("history").code == 0


def test_next_page_of_all_jobs_begins_in_the_second_of_the_last_run() -> None:
    for number, minute in enumerate((0, 0, 0, 1)):
        make_run(make_idle_job(name=f"job-{number}"), scheduled_at=START + minute * MINUTE)
    assert "--until 2026-12-01T09:00:01+00:00" in call("history", "-n", "2").out
    together = call("history", "-n", "2", "--until", "2026-12-01T09:01").out
    assert "--limit" in together
    assert "--until" not in together


@pytest.mark.parametrize("arguments", [("report",), ()])
def test_names_of_jobs_need_no_query_for_each_run(arguments: tuple[str, ...]) -> None:
    counts = []
    for number in (1, 5):
        make_history(["succeeded"] * number)
        with CaptureQueriesContext(connection) as queries:
            call("history", *arguments, "--json")
        counts.append(len(queries))
        Job.objects.all().delete()
    assert counts[0] == counts[1]


def test_upcoming_runs_are_hidden_by_default() -> None:
    job = make_idle_job(name="report")
    ended = make_run(job, "succeeded")
    soon = {"scheduled_at": now() + MINUTE, "due_at": now() + MINUTE}
    upcoming, overdue = str(make_run(job, "pending", **soon).pk), str(make_run(job, "pending").pk)
    retry = str(make_run(job, "pending", due_at=now() + MINUTE, attempt=2).pk)
    assert ids() == [retry, overdue, str(ended.pk)]
    assert ids("--upcoming") == [upcoming, retry, overdue, str(ended.pk)]
    assert ids("--state", "pending") == [upcoming, retry, overdue]
    assert call("history", upcoming).code == 0
    assert call("history", upcoming, "--upcoming").code == 2, "for jobs only"
    Run.objects.exclude(pk=upcoming).delete()
    assert "--upcoming" in call("history", "report").out


def test_rerun_that_queues_like_a_backfill_is_shown_as_a_rerun() -> None:
    job, (failed,) = make_history(["failed"])
    backfilled, rerun = (
        make_run(job, "waiting", trigger="backfill", scheduled_at=START + number * MINUTE, **values)
        for number, values in ((1, {}), (2, {"rerun_of": failed}))
    )
    _head, *rows = table(call("history", "report").out)
    assert [row[-1] for row in rows[:2]] == ["rerun", "backfill"]
    for run, trigger in ((rerun, "rerun"), (backfilled, "backfill")):
        assert re.search(rf"^trigger +{trigger}$", call("history", str(run.pk)).out, re.MULTILINE)
    document = call("history", str(rerun.pk), "--json").json["run"]
    assert (document["trigger"], document["rerun_of"]) == ("rerun", str(failed.pk))


def test_notes_of_a_run_that_queues_like_a_backfill_name_its_trigger_once() -> None:
    _job, (failed,) = make_history(["failed"])
    (made,) = rerun_selected([failed]).values()
    assert isinstance(made, Run)
    _head, row, *_ = table(call("history", "report", "--state", "waiting").out)
    assert row[0] == str(made.pk)[: len(row[0])]
    assert row[-1] == f"rerun; {made.reason}"
    assert made.reason.count("rerun") == 0


def test_history_of_new_job_is_empty() -> None:
    make_idle_job(name="report")
    assert call("history", "report").out == "The job has no runs yet.\n"


def make_failure() -> Run:
    _job, (run,) = make_history(["failed"])
    for number in (1, 2):
        Attempt.objects.create(
            run=run,
            number=number,
            token=uuid4(),
            worker="celery@a",
            started_at=START,
            finished_at=START + timedelta(seconds=number),
            outcome="failed",
            exception_class="builtins.ValueError",
            message="no such order: 4711",
            traceback=f'Traceback (most recent call last):\n  File "{number}.py"\n',
            log=f"log of {number}\n",
            result="",
            progress_done=3,
            progress_total=9,
            progress_note="orders",
        )
    return run


def test_history_of_run_shows_attempts() -> None:
    run = make_failure()
    for text in (str(run.pk), str(run.pk)[:23]):
        code, out, _err = call("history", text)
        assert code == 0
        assert out.startswith(f"report, run {run.pk}\nstate ")
        for part in (
            "Attempt 1\n",
            "Attempt 2\n",
            "raised    builtins.ValueError: no such order: 4711\n",
            "progress  3 of 9, orders\n",
            "Log:\nlog of 2\n",
            'Traceback:\nTraceback (most recent call last):\n  File "2.py"\n',
            "duration  2.0 s\n",
        ):
            assert part in out, part
    out = call("history", str(run.pk), "--attempt", "2").out
    assert "log of 2" in out
    assert "log of 1" not in out


def test_history_of_run_says_what_an_empty_log_would_contain() -> None:
    run = make_failure()
    assert str(EMPTY_LOG) not in call("history", str(run.pk)).out
    Attempt.objects.filter(number=2).update(log="")
    assert call("history", str(run.pk)).out.count(str(EMPTY_LOG)) == 1
    assert str(EMPTY_LOG) not in call("history", str(run.pk), "--json").out
    Attempt.objects.update(log="")
    assert call("history", str(run.pk)).out.count(str(EMPTY_LOG)) == 1, "not for each attempt"
    Attempt.objects.filter(number=1).update(log="log of 1")
    Attempt.objects.filter(number=2).update(outcome="")
    assert str(EMPTY_LOG) not in call("history", str(run.pk)).out, "the attempt may still log"


def test_history_of_failed_run_says_why_it_was_not_retried() -> None:
    run = make_failure()
    job = run.job
    job.max_attempts, job.retry_on = 3, ["ValuError"]
    control.save(job)
    attempt = Attempt.objects.get(number=2)
    record_definition(job, attempt.pk)
    Run.objects.update(attempt=2)
    reason = "Not retried: retry_on of the job doesn't list ValueError."
    assert f"\n{reason}\n" in call("history", str(run.pk)).out
    Run.objects.update(state="cancelled")
    assert reason not in call("history", str(run.pk)).out


def test_json_of_run_contains_attempts() -> None:
    run = make_failure()
    document = call("history", str(run.pk), "--attempt", "1", "--json").json
    (attempt,) = document["run"].pop("attempts")
    assert document["run"]["id"] == str(run.pk)
    assert document["run"]["scheduled_at"] == "2026-12-01T09:00:00Z"
    assert attempt["log"] == "log of 1\n"
    assert attempt["finished_at"] == "2026-12-01T09:00:01Z"
    assert attempt["progress"] == {"done": 3, "total": 9, "note": "orders"}


def test_history_of_running_run_shows_current_duration() -> None:
    run = make_run(make_idle_job(name="report"), "running", started_at=now() - MINUTE)
    out = call("history", str(run.pk)).out
    assert re.search(r"^duration +1m \d\ds$", out, re.MULTILINE)
    assert re.search(r"^outcome +running$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["nobody"], "'nobody'"),
        (["019a9f3c-5b7e"], "'019a9f3c-5b7e'"),
        (["report", "--attempt", "1"], "--attempt needs a run"),
        (["report", "--since", "noon"], "--since 'noon'"),
        (["RUN", "--since", "2h"], "--since needs a job"),
        (["RUN", "-n", "5"], "--limit needs a job"),
        (["RUN", "--attempt", "7"], "has no attempt 7; it has 2."),
    ],
)
def test_history_rejects_invalid_arguments(arguments: list[str], output: str) -> None:
    run = make_failure()
    code, out, err = call(
        "history", *(argument.replace("RUN", str(run.pk)) for argument in arguments)
    )
    assert (code, out) == (2, "")
    assert output in err
