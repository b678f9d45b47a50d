"""Test ``dcron run, pause, resume, cancel, rerun, backfill``: effects, output and exit codes."""

import json
import re
import shlex
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from getpass import getuser
from io import StringIO
from random import Random
from typing import Any, NoReturn
from uuid import UUID, uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import DatabaseError, OperationalError, ProgrammingError, connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils.translation import override
from pytest_django import Settings

from django_dcron import control, targets
from django_dcron.db import session_limits
from django_dcron.db.error_remedies import END_LOCK, with_remedy
from django_dcron.db.now import database_now
from django_dcron.diagnosis import system_health
from django_dcron.diagnosis.run_history import EMPTY_LOG
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.jobs import saving
from django_dcron.jobs.action_texts import signed_reason
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.management.commands.dcron import Command
from django_dcron.management.dcron import backfill as backfill_command
from django_dcron.management.dcron import bulk_actions, progress_bar, run_absence, run_watch
from django_dcron.management.dcron import pause as pause_command
from django_dcron.management.dcron import rerun as rerun_command
from django_dcron.management.dcron import resume as resume_command
from django_dcron.management.dcron import run as run_command
from django_dcron.management.dcron.output import BAD, GOOD, QUIET, WARNING, Output
from django_dcron.management.dcron.progress_bar import ProgressBar
from django_dcron.management.dcron.run_absence import Absence, FoundAbsence
from django_dcron.models import Attempt, AuditEntry, Cursor, Job, Node, Run
from django_dcron.models.job_states import HANDED_BACK, NO_LONGER_DECLARED
from django_dcron.models.statistics import count_ended_runs
from django_dcron.policies.lifecycle import State
from django_dcron.policies.retry import refused_retry_note
from django_dcron.targets import cron
from django_dcron.testing import set_clock
from django_dcron.utils.bounded_text import OMISSION_MARK, BoundedText
from tests.conftest import StartProcess
from tests.diagnosis.test_system_health import worker_replies
from tests.docs.test_documents import ROOT
from tests.factories import age_pauses, make_idle_job, make_job, make_node, make_run
from tests.lock_holder import has_usual_lock_limit, keeping_open, lock_runs
from tests.management import calling
from tests.waiting import TIMEOUT

QUICK = {
    "DCRON_TEST_SETTINGS": json.dumps(
        {"TICK": 0.1, "RUN_LEASE": 1, "STOP_WITHOUT_HEARTBEAT_AFTER": 60}
    )
}


def call(*arguments: str) -> tuple[int, str]:
    """Return the exit code and all output."""
    code, out, error = calling.call(*arguments)
    return code, out + error


def document(*arguments: str) -> tuple[int, Any]:
    """Return the exit code and the JSON output."""
    answer = calling.call(*arguments, "--json")
    return answer.code, answer.json


SHADED = (
    "shaded: The job is a shadow. The run is recorded, but tests.app.tasks.fail isn't executed."
)
REQUESTED = "cancellation requested"
RUN_CALM = """
import signal
from django.core.management import execute_from_command_line
# A shell's background jobs, and their children, ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
execute_from_command_line(["manage.py", "dcron", "run", "calm"])
"""


@pytest.fixture(autouse=True)
def _thread_dispatcher(settings: Settings, transactional_db: None) -> None:
    settings.DCRON_DISPATCHER = "thread"


# --- run ----------------------------------------------------------------------------------------


def test_run_follows_run_until_it_ends(start_runcron: StartProcess) -> None:
    make_idle_job(name="good", target="tests.app.tasks.report_progress", args=[0.8])
    make_idle_job(name="bad", target="tests.app.tasks.fail", kwargs={"message": "no paper"})
    make_idle_job(name="shaded", target="shadow:tests.app.tasks.fail")
    start_runcron("--embedded", "--name", "a", env=QUICK).wait_for_log(
        "node started: node=a", TIMEOUT
    )

    code, message = call("run", "good", "--timeout", "60s")
    assert code == 0, message
    patterns = [
        r"good: run [0-9a-f-]{36}",
        r"attempt 1 runs on \S+/threads/\d+",
        r"three rows",
        r"progress: 3 of 10 rows",
        r"attempt 1 succeeded after .+",
        r"good succeeded",
    ]
    lines = message.splitlines()
    assert len(lines) == len(patterns), message
    assert all(re.fullmatch(*pair) for pair in zip(patterns, lines, strict=True)), message

    code, message = call("run", "shaded", "--timeout", "60s")
    assert (code, message.splitlines()[-1]) == (0, SHADED)
    assert str(EMPTY_LOG) not in message
    assert "shaded succeeded" not in message

    assert call("run", "shaded", "--no-wait")[1].splitlines()[1:] == [SHADED]

    code, message = call("run", "bad", "--timeout", "60s")
    run = Run.objects.get(job__name="bad")
    assert code == 1
    assert "\nattempt 1 failed after " in message
    assert ": RuntimeError: no paper\n" in message
    assert re.search(rf"^bad failed.*manage.py dcron history {run.pk}$", message, re.MULTILINE)

    code, shown = document("run", "good", "--args", "[0]", "--timeout", "60s")
    assert code == 0
    assert (shown["run"]["state"], shown["run"]["args"], shown["run"]["trigger"]) == (
        "succeeded",
        [0],
        "manual",
    )


def test_ctrl_c_stops_waiting_but_not_the_run(start_process: StartProcess) -> None:
    make_idle_job(name="calm")
    waiting = start_process("dcron-run", "-c", RUN_CALM)
    waiting.wait_for_log("calm: run ", TIMEOUT)
    waiting.send(signal.SIGINT)
    assert waiting.wait(TIMEOUT) == 1
    run = Run.objects.get()
    assert f"manage.py dcron cancel {run.pk}" in waiting.log
    assert "Traceback" not in waiting.log
    assert run.state in ("pending", "queued")


@pytest.mark.postgresql
def test_ctrl_c_during_query_names_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        connection.ensure_connection()
        connection.connection.pgconn.send_query(b"SELECT 1")
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "watch_run", interrupted)
    make_idle_job(name="calm")
    code, message = call("run", "calm")
    assert code == 1
    assert str(Run.objects.get().pk) in message


@pytest.mark.parametrize(
    ("state", "reason", "message"),
    [
        ("pending", "", "no node is running. Start a node with manage.py runcron.\n"),
        (
            "queued",
            "",
            "no worker has started it yet; no node is running, either. Start a node with "
            "manage.py runcron.\n",
        ),
        ("waiting", "one is under way", "not started: one is under way\n"),
    ],
)
def test_run_explains_why_it_has_not_started(
    state: str, reason: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_watch, "EXPLAIN_WAIT_AFTER", 0)
    job = make_idle_job(name="idle")
    run = make_run(job, state, reason=reason, idempotency_key="k")
    code, output = call("run", "idle", "--timeout", "0s", "--idempotency-key", "k")
    assert code == 1
    assert output.count(message) == 1, output
    assert output.endswith(f"manage.py dcron cancel {run.pk}")


class FakeTime:
    """A clock that only ``sleep`` moves."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds


@pytest.mark.parametrize("enabled", [True, False])
def test_run_stops_waiting_if_no_node_is_live(
    enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_watch, "time", fake_time := FakeTime())
    job = make_idle_job(name="idle")
    if not enabled:
        control.pause(job)
    code, shown = document("run", "idle")
    assert (code, shown["missing"], shown["run"]["state"]) == (1, "no_live_node", "pending")
    assert run_watch.ABSENCE_TIMEOUT <= fake_time.passed < 2 * run_watch.ABSENCE_TIMEOUT
    code, message = call("run", "idle")
    assert code == 1
    assert "manage.py runcron" in message.splitlines()[-1]
    assert (
        "no node is running. Start a node with manage.py runcron; waiting up to 60 s\n" in message
    )

    fake_time.passed = 0
    code, shown = document("run", "idle", "--timeout", "90s")
    assert (code, shown["missing"]) == (1, None)
    assert fake_time.passed >= 90, "a time limit is kept"


def test_run_keeps_waiting_while_node_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_watch, "time", fake_time := FakeTime())
    absent = FoundAbsence(Absence.NODE, "gone")
    monkeypatch.setattr(
        run_watch, "absence_for", lambda _: None if 20 <= fake_time.passed < 25 else absent
    )
    make_idle_job(name="idle")
    assert document("run", "idle")[1]["missing"] == "no_live_node"
    # The command checks every 5 s. The node is absent at 5, 10 and 15 s, and from 25 s on.
    assert 25 + run_watch.ABSENCE_TIMEOUT <= fake_time.passed < 30 + run_watch.ABSENCE_TIMEOUT


@pytest.mark.django_db(transaction=True)
def test_run_keeps_waiting_during_an_outage_of_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_watch, "time", fake_time := FakeTime())
    real, longest = run_watch._read, 30.0

    def unreachable(run_id: UUID) -> Run:
        if 10 <= fake_time.passed < 10 + longest:
            raise OperationalError("server closed the connection")
        if fake_time.passed >= 10 + longest:
            Run.objects.filter(pk=run_id).update(state="succeeded", finished_at=now)
        return real(run_id)

    now = database_now("default")
    monkeypatch.setattr(run_watch, "_read", unreachable)
    make_idle_job(name="idle")
    code, message = call("run", "idle")
    assert code == 0, message
    assert message.count("waiting for the database: server closed the connection\n") == 1

    fake_time.passed, longest = 0, 90.0
    code, message = call("run", "idle")
    run = Run.objects.get(state="pending")
    assert (code, fake_time.passed) == (1, 10 + run_watch.ABSENCE_TIMEOUT)
    assert message.endswith(f"To see how it ended: manage.py dcron history {run.pk}")


@pytest.mark.django_db(transaction=True)
def test_run_stops_waiting_if_a_query_of_its_cause_fails_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def timed_out(run: Run) -> None:
        raise OperationalError("statement timeout")

    monkeypatch.setattr(run_watch, "time", fake_time := FakeTime())
    monkeypatch.setattr(run_watch, "absence_for", timed_out)
    make_idle_job(name="idle")
    code, message = call("run", "idle")
    assert (code, message.count("waiting for the database: statement timeout\n")) == (1, 1)
    assert fake_time.passed < 2 * run_watch.ABSENCE_TIMEOUT


def test_overdue_queued_run_means_worker_is_missing(settings: Settings) -> None:
    settings.DCRON_DISPATCHER = "celery"
    job = make_idle_job(name="idle")
    long_ago = database_now("default") - timedelta(hours=1)
    run = make_run(job, "queued", due_at=long_ago, queued_at=long_ago)
    assert run_absence.find_absence(run, read_verdict()) is Absence.WORKER
    fresh = make_run(job, "queued")
    busy = make_run(job, "running")
    assert run_absence.find_absence(run, read_verdict()) is None, "a worker executes a long run"
    Run.objects.filter(pk__in=[run.pk, busy.pk]).delete()
    assert run_absence.find_absence(fresh, read_verdict()) is None, "a worker may still take it"
    pending = make_run(job)
    assert run_absence.find_absence(pending, read_verdict()) is Absence.NODE
    make_node()
    assert run_absence.find_absence(pending, read_verdict()) is None


@pytest.mark.parametrize("state", ["queued", "pending"])
def test_worker_is_missing_if_no_worker_that_answers_can_execute_the_run(
    state: str, settings: Settings
) -> None:
    settings.DCRON_DISPATCHER = "celery"
    job, now = make_idle_job(name="idle"), database_now("default")
    run = make_run(job, state, due_at=now, queued_at=now, deliveries=1)
    node = make_node(workers=worker_replies(("w1", ["celery"], False, []), at=now))

    def missing(*replies: tuple[str, list[str], bool, list[str]]) -> Absence | None:
        Node.objects.filter(pk=node.pk).update(workers=worker_replies(*replies, at=now))
        return run_absence.find_absence(run, read_verdict())

    discards, suitable = ("w1", ["celery"], False, []), ("w2", ["celery"], True, [])
    assert missing(discards) is Absence.WORKER
    assert missing(("w1", ["celery"], True, ["1"])) is Absence.WORKER, "it uses another database"
    assert missing(("w1", ["other"], True, [])) is Absence.WORKER
    assert missing(discards, suitable) is None
    run.deliveries = 0
    assert missing(discards) is (Absence.WORKER if state == "queued" else None)


def test_run_stops_waiting_if_all_workers_of_its_queue_discard_it(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.DCRON_DISPATCHER = "celery"
    monkeypatch.setattr(run_watch, "time", fake_time := FakeTime())
    job, now = make_idle_job(name="idle"), database_now("default")
    make_run(job, "queued", due_at=now, queued_at=now, deliveries=1, idempotency_key="k")
    # The node stays live, however long the reads of a simulated minute take.
    replies = worker_replies(("w1", ["celery"], False, []), at=now)
    make_node(age=-timedelta(hours=1), workers=replies)
    code, output = call("run", "idle", "--idempotency-key", "k")
    assert code == 1
    assert output.count("app.autodiscover_tasks()") == 2, "at the start and at the end of the wait"
    assert "start a worker for queue" not in output
    assert run_watch.ABSENCE_TIMEOUT <= fake_time.passed < 2 * run_watch.ABSENCE_TIMEOUT


def test_stale_running_run_means_node_is_missing(settings: Settings) -> None:
    settings.DCRON_DISPATCHER = "celery"
    run = make_run(make_idle_job(name="idle"), "running")
    assert run_absence.find_absence(run, read_verdict()) is None
    Run.objects.update(heartbeat_at=database_now("default") - timedelta(hours=1))
    assert run_absence.find_absence(run, read_verdict()) is Absence.NODE


def test_run_with_no_wait_prints_run_id() -> None:
    job = make_idle_job(name="idle", target="tests.app.tasks.echo")
    key = ("--no-wait", "--idempotency-key", "k")
    arguments = ("--args", "[1]", "--kwargs", '{"a": 2}')
    code, message = call("run", "idle", *key, *arguments)
    run = Run.objects.get(job=job)
    assert (code, message) == (0, f"idle: run {run.pk}\n")
    assert (run.args, run.kwargs, run.trigger) == ([1], {"a": 2}, "manual")
    code, shown = document("run", "idle", *key, *arguments)
    assert (code, shown["run"]["id"]) == (0, str(run.pk))
    code, message = call("run", "idle", *key)
    assert (code, f"was used for run {run.pk} with other arguments" in message) == (2, True)
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "'nothing'"),
        (
            ("idle", "--args", "{}"),
            "--args '{}' (allowed: a JSON list, such as [1, 2])",
        ),
        (("idle", "--kwargs", "x"), "--kwargs 'x'"),
        (("idle", "--kwargs", '{"a": 1, "a": 2}'), 'has the key "a" more than once'),
        (("idle", "--kwargs", '{"no": 1}'), "--kwargs: Unknown parameter 'no'"),
        (("outdated",), "the kwargs of the job: Unknown parameter 'no'"),
        (("outdated", "--args", "[]"), "--args with the kwargs of the job: Unknown parameter"),
        (("idle", "--args", "[1, 2, 3]"), "--args: "),
        (
            ("needs_seconds", "--kwargs", "{}"),
            "--kwargs with the args of the job: The argument 'seconds' is missing",
        ),
        (("idle", "--kwargs", '{"seconds": NaN}'), "Out of range"),
        (("idle", "--args", '["\\u0000"]'), "NUL"),
        (("idle", "--args", '["\\ud800"]'), "--args: "),
        (
            ("idle", "--args", "[" * 40 + "]" * 40),
            "--args: The value can't be stored: it is nested too deep",
        ),
        (("idle", "--args", "[" * 10_000), "(allowed: a JSON list"),
        (("idle", "--idempotency-key", ""), "idempotency_key"),
        (("idle", "--timeout", "1"), "--timeout '1'"),
        (("idle", "--timeout", ""), "--timeout ''"),
    ],
)
def test_run_rejects_invalid_arguments(arguments: tuple[str, ...], message: str) -> None:
    make_idle_job(name="idle", target="tests.app.tasks.slow")
    make_idle_job(name="outdated", target="tests.app.tasks.slow")
    Job.objects.filter(name="outdated").update(kwargs={"no": 1})
    make_idle_job(name="needs_seconds", target="tests.app.tasks.nap", kwargs={"seconds": 1})
    code, output = call("run", *arguments)
    assert code == 2
    assert message in output
    assert not Run.objects.exists()


@pytest.mark.parametrize("style", ["", GOOD, BAD, WARNING, QUIET])
def test_terminal_shows_progress_bar_and_lines(style: str) -> None:
    command = Command(stdout=StringIO(), force_color=True)
    output = Output(command, {"force_color": True})
    with ProgressBar(output) as bar:
        bar.show(3, 10, "rows [bold]")
        bar.line("printed \x1b[31m[red]", style)
        bar.show(10, 10, "rows")
    drawn = command.stdout.getvalue()  # type: ignore[attr-defined]
    assert "rows [bold]" in drawn
    assert "printed \\x1b[31m[red]" in drawn
    assert "10/10" in drawn


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 40, 1000])
def test_followed_log_shows_every_visible_character_once(limit: int, settings: Settings) -> None:
    """Each character encodes its position in the log.

    The output contains everything that was visible, in order and once, even if much was omitted
    between two reads.
    """
    settings.DCRON_LOG_LIMIT = limit
    for seed in range(100):
        random = Random(seed)
        log, shown, output, seen, written = BoundedText(limit), "", "", set(), 0
        for _ in range(random.randrange(1, 12)):
            length = random.choice((0, 1, 3, 10, 60))
            log.write("".join(chr(0x4E00 + written + n) for n in range(length)))
            written += length
            if random.random() < 0.6:
                output += run_watch.new_log_text(shown, log.getvalue())
                shown = log.getvalue()
                seen |= set(OMISSION_MARK.sub("", shown, count=1))
        characters = re.sub(r"[^\u4e00-\u9fff]", "", output)
        assert list(characters) == sorted(set(characters)), seed
        assert set(characters) == {char for char in seen if char >= "\u4e00"}, seed
        if written <= limit and shown == log.getvalue():
            assert output == shown, seed


# --- pause and resume ---------------------------------------------------------------------------


def test_pause_and_resume_accept_several_jobs() -> None:
    first, second = make_idle_job(name="first"), make_idle_job(name="second", namespace="shop")
    code, message = call("pause", "first", "shop/second", "--reason", "moving", "--until", "+2h")
    assert code == 0
    assert re.fullmatch(
        rf"first: paused until .+: moving \({getuser()}\)\nshop/second: paused until .+\)\n",
        message,
    ), message
    for job in (first, second):
        job.refresh_from_db()
        assert not job.enabled
        assert job.pause_reason == f"moving ({getuser()})"
        assert job.paused_until is not None
    code, shown = document("resume", "first", "shop/second")
    assert code == 0
    assert [(result["job"], result["done"]) for result in shown["results"]] == [
        ("first", True),
        ("shop/second", True),
    ]
    assert all(result["next"] for result in shown["results"])
    assert not Job.objects.filter(enabled=False).exists()
    assert call("resume", "first")[1].startswith("first: not paused; ")


def test_reason_beyond_its_limit_is_refused_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "u" * 100)
    job = make_idle_job()
    code, message = call("pause", job.name, "--reason", "x" * 151)
    assert code == 2
    assert "--reason has 151 characters" in message
    assert "150" in message
    assert Job.objects.get().enabled
    assert call("pause", job.name, "--reason", "x" * 150)[0] == 0
    assert Job.objects.get().pause_reason == f"{'x' * 150} ({'u' * 100})"


def test_pause_without_reason_names_user() -> None:
    make_idle_job(name="first")
    assert call("pause", "first") == (0, f"first: paused until resumed: by {getuser()}\n")


def test_resume_of_a_named_job_says_which_backfill_runs_what_was_due_during_the_pause() -> None:
    job = make_job(name="nightly report", schedule="@daily")
    call("pause", "nightly report")
    age_pauses(timedelta(days=3))
    code, shown = document("resume", "nightly report")
    (caution,) = shown["results"][0]["cautions"]
    assert code == 0
    assert "3 occurrences" in caution["message"]
    *_, command = caution["message"].partition("manage.py dcron ")
    assert call(*shlex.split(command), "--no-wait")[0] == 0
    assert Run.objects.filter(job=job, trigger="backfill").count() == 3


def test_resume_counts_nothing_for_selected_jobs_and_after_a_short_pause() -> None:
    make_job(name="report", schedule="@daily")
    call("pause", "report")
    age_pauses(timedelta(days=3))
    assert document("resume", "--all", "--yes")[1]["results"][0]["cautions"] == []
    make_idle_job(name="yearly")
    call("pause", "yearly")
    assert document("resume", "yearly")[1]["results"][0]["cautions"] == []


def test_refused_resume_does_not_stop_other_jobs() -> None:
    over, job = make_job(name="over"), make_job(name="fine")
    call("pause", "fine", "over")
    Job.objects.filter(pk=over.pk).update(schedule="@at 2020-01-01T00:00")
    code, message = call("resume", "over", "fine")
    assert code == 1
    assert message.startswith("over: refused: over ")
    assert "1 of 2" in message.splitlines()[-1]
    job.refresh_from_db()
    assert job.enabled
    code, shown = document("resume", "over", "fine")
    assert code == 1
    assert [result["done"] for result in shown["results"]] == [False, True]
    assert "can't be resumed" in shown["results"][0]["error"]


def test_pause_says_that_runs_which_are_due_still_start() -> None:
    job, now = make_idle_job(name="report"), database_now("default")
    for state in ("pending", "queued", "waiting", "running", "succeeded"):
        make_run(job, state)
    Run.objects.filter(state="pending").update(due_at=now + timedelta(hours=1))
    code, shown = document("pause", "report")
    (caution,) = shown["results"][0]["cautions"]
    assert code == 0
    assert caution["message"].startswith("2 runs that are due still start despite the pause.")
    *_, command = caution["message"].partition("manage.py dcron ")
    assert call(*shlex.split(command))[0] == 0
    assert set(Run.objects.values_list("state", flat=True)) >= {"running", "succeeded"}
    assert not Run.objects.filter(state__in=["queued", "waiting"]).exists()
    Job.objects.update(enabled=True)
    assert document("pause", "report")[1]["results"][0]["cautions"] == []


def test_pause_says_which_due_runs_wait_for_the_end_of_a_freeze() -> None:
    """The pause doesn't withdraw them, so they may start after the freeze."""
    jobs = {name: make_idle_job(name=name) for name in ("both", "frozen", "manual")}
    for name in ("both", "frozen"):
        make_run(jobs[name], "pending")
    for name in ("both", "manual"):
        make_run(jobs[name], "queued", trigger="manual")
    control.freeze("deploy")
    results = document("pause", *jobs)[1]["results"]
    texts = [each["cautions"][0]["message"].partition(" To cancel")[0] for each in results]
    starts = "1 run that is due still starts despite the pause."
    waits = (
        "1 due run waits for the end of the freeze. The misfire policy then decides, despite the "
        "pause."
    )
    assert texts == [f"{starts} {waits}", waits, starts]


def test_pause_and_freeze_refuse_a_duration_of_zero() -> None:
    make_job(name="first")
    for arguments in (("pause", "first"), ("freeze", "--reason", "deploy")):
        code, message = call(*arguments, "--for", "0s")
        assert (code, "--for '0s'" in message) == (2, True)
    assert paused_jobs() == set()


def test_pause_with_unknown_name_or_invalid_time_changes_nothing() -> None:
    make_job(name="fine")
    code, message = call("pause", "fine", "nothing")
    assert code == 2
    assert "'nothing'" in message
    assert Job.objects.get().enabled
    assert call("pause", "fine", "--until", "soon")[0] == 2
    code, message = call("pause", "fine", "--until", "2020-01-01")
    assert code == 2
    assert "'2020-01-01'" in message
    assert "2h" in message
    assert Job.objects.get().enabled


# --- selections ---------------------------------------------------------------------------------


def make_shop() -> tuple[Job, Job, Job]:
    """Create two jobs of a shop, one of them tagged, and one job elsewhere."""
    return (
        make_idle_job(name="import", namespace="shop", tags=["nightly"]),
        make_idle_job(name="export", namespace="shop"),
        make_idle_job(name="import"),
    )


def paused_jobs() -> set[str]:
    return {str(job) for job in Job.objects.filter(enabled=False)}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (["--all"], {"shop/import", "shop/export", "import"}),
        (["*/*"], {"shop/import", "shop/export", "import"}),
        (["*"], {"import"}),
        (["shop/*"], {"shop/import", "shop/export"}),
        (["s?op/imp*", "import"], {"shop/import", "import"}),
        (["*/import"], {"shop/import", "import"}),
        (["shop/*", "--tag", "nightly"], {"shop/import"}),
        (["--namespace", "shop"], {"shop/import", "shop/export"}),
        (["--namespace", "shop", "*"], {"shop/import", "shop/export"}),
        (["--namespace", "shop", "imp*"], {"shop/import"}),
        (["--namespace", "shop", "*/exp*"], {"shop/export"}),
        (["--tag", "nightly"], {"shop/import"}),
        (["--state", "enabled", "--namespace", "default"], {"import"}),
        (["--all", "--exclude", "import"], {"shop/import", "shop/export"}),
        (["--all", "--exclude", "shop/exp*", "--exclude", "import"], {"shop/import"}),
        (["--namespace", "shop", "--exclude", "import"], {"shop/export"}),
        (["shop/*", "--exclude", "*/exp*"], {"shop/import"}),
        (["--all", "--exclude", "exp*"], {"shop/import", "import"}),
    ],
)
def test_selection_requires_confirmation_and_selects_jobs(
    selection: list[str], expected: set[str]
) -> None:
    make_shop()
    code, shown = document("pause", *selection, "--dry-run")
    assert (code, {each["job"] for each in shown["selected"]}) == (0, expected)
    assert paused_jobs() == set(), "a dry run does nothing"
    assert call("pause", *selection)[0] == 2, "it isn't confirmed"
    assert paused_jobs() == set()
    code, shown = document("pause", *selection, "--yes")
    assert (code, {each["job"] for each in shown["results"]}) == (0, expected)
    assert paused_jobs() == expected


@pytest.mark.parametrize(
    ("selection", "code"),
    [
        ([], 2),
        (["--all", "import"], 2),
        (["--all", "--namespace", "shop"], 2),
        (["import", "--namespace", "shop"], 2),
        (["import", "nothing-*"], 2),
        (["shop.*"], 2),
        (["--namespace", "nowhere"], 1),
        (["--namespace", "nowhere", "*"], 2),
        (["--namespace", "default", "exp*"], 2),
        (["--namespace", "default", "shop/*"], 1),
        (["shop/*", "--search", "nothing"], 1),
        (["--all", "--exclude", "imports"], 2),
        (["--all", "--exclude", "nothing-*"], 2),
        (["--namespace", "shop", "--exclude", "shop/*"], 1),
    ],
)
@pytest.mark.parametrize("action", ["pause", "resume", "cancel", "run"])
def test_invalid_or_empty_selection_changes_nothing(
    action: str, selection: list[str], code: int
) -> None:
    make_shop()
    assert call(action, *selection, "--yes")[0] == code
    assert paused_jobs() == set()
    assert not Run.objects.exists()


def test_error_about_an_excluded_pattern_names_the_pattern_as_typed() -> None:
    make_shop()
    assert "No job matches 'zz*'." in call("pause", "--all", "--exclude", "zz*", "--yes")[1]


def test_error_about_a_pattern_names_the_namespace_that_was_searched() -> None:
    make_shop()
    for selection, namespace in ((["exp*"], "'default'"), (["exp*", "--namespace", "no"], "'no'")):
        message = call("pause", *selection)[1]
        assert (namespace in message, "'*/exp*'" in message) == (True, True)
    assert "namespace" not in call("pause", "bank/exp*")[1]


def test_jobs_are_selected_by_source() -> None:
    make_shop()
    make_idle_job(name="declared", declared={"schedule": "@daily"})
    assert call("pause", "--source", "code", "--yes")[0] == 0
    assert paused_jobs() == {"declared"}


def test_selection_skips_paused_jobs() -> None:
    imported, _exported, _other = make_shop()
    control.pause(imported, "broken")
    code, shown = document("pause", "--namespace", "shop", "--reason", "deploy", "--no-input")
    assert code == 0
    assert [each["job"] for each in shown["skipped"]] == ["shop/import"]
    assert [each["job"] for each in shown["results"]] == ["shop/export"]
    imported.refresh_from_db()
    assert imported.pause_reason == "broken"
    assert call("pause", "shop/import", "--reason", "deploy")[0] == 0, "a named job isn't skipped"
    imported.refresh_from_db()
    assert imported.pause_reason.startswith("deploy")
    code, shown = document("resume", "--all", "--yes")
    assert [each["job"] for each in shown["skipped"]] == ["import"]
    assert (code, paused_jobs()) == (0, set())


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_selection_skips_finished_jobs(action: str) -> None:
    disable_exhausted([make_idle_job(name="once").pk], "default")
    Job.objects.update(schedule="@at 2020-01-01T00:00Z")
    code, shown = document(action, "--all", "--yes")
    assert (code, [each["job"] for each in shown["skipped"]]) == (0, ["once"])
    assert Job.objects.get(name="once").is_finished


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_number_of_queries_does_not_grow_with_the_selected_jobs(action: str) -> None:
    counts = []
    for namespace, number in (("few", 2), ("many", 30)):
        jobs = [make_idle_job(namespace=namespace) for _ in range(number)]
        if action == "resume":
            control.pause_many(jobs, "deploy")
        with CaptureQueriesContext(connection) as queries:
            assert call(action, "--namespace", namespace, "--yes")[0] == 0
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_progress_of_batches_is_shown_on_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_actions, "JOBS_AT_ONCE", 2)
    monkeypatch.setattr(progress_bar, "LINE_EVERY", 0)
    for _ in range(5):
        make_idle_job()
    out, error = StringIO(), StringIO()
    call_command("dcron", "pause", "--all", "--yes", "--json", stdout=out, stderr=error)
    assert len(json.loads(out.getvalue())["results"]) == 5
    assert re.findall(r"(\d) of 5", error.getvalue()) == ["2", "4", "5"]


def test_pause_of_paused_job_shows_the_replaced_pause() -> None:
    make_job(name="first")
    assert document("pause", "first", "--until", "1w")[1]["results"][0]["replaced"] is None
    until = Job.objects.get().paused_until
    assert until is not None
    code, shown = document("pause", "first", "--reason", "deploy")
    (result,) = shown["results"]
    assert (code, result["until"]) == (0, None)
    assert result["replaced"]["reason"] == f"by {getuser()}"
    assert datetime.fromisoformat(result["replaced"]["until"]) == until
    again = ("pause", "first", "--reason", "again")
    assert f"(replaces paused until resumed: deploy ({getuser()}))" in call(*again)[1]
    Job.objects.update(pause_reason="")
    assert "(replaces paused until resumed)" in call(*again)[1]


def test_pause_without_reason_and_end_keeps_those_of_a_paused_job() -> None:
    job = make_job(name="first")
    call("pause", "first", "--reason", "data provider down", "--until", "1w")
    job.refresh_from_db()
    code, shown = document("pause", "first")
    (result,) = shown["results"]
    assert (code, result["done"], result["replaced"]) == (0, True, None)
    assert (result["reason"], datetime.fromisoformat(result["until"])) == (
        f"data provider down ({getuser()})",
        job.paused_until,
    )
    assert "first: already paused until" in call("pause", "first")[1]
    version = job.version
    job.refresh_from_db()
    assert (job.version, job.pause_reason) == (version, f"data provider down ({getuser()})")


@pytest.mark.parametrize("option", [("--reason", ""), ("--until", "2w"), ("--for", "2w")])
def test_pause_with_an_empty_reason_or_only_an_end_replaces_the_pause(
    option: tuple[str, str],
) -> None:
    make_idle_job(name="first")
    call("pause", "first", "--reason", "data provider down", "--until", "1w")
    code, shown = document("pause", "first", *option)
    (result,) = shown["results"]
    assert (code, result["replaced"]["reason"]) == (0, f"data provider down ({getuser()})")
    job = Job.objects.get()
    assert (job.pause_reason, job.paused_until is None) == (f"by {getuser()}", not option[1])


def after_the_selection(change: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call ``change`` after the next command has read the jobs, and before it changes them."""
    perform_plan = bulk_actions.perform_plan

    def perform_later(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        change()
        perform_plan(*arguments, **options)

    monkeypatch.setattr(bulk_actions, "perform_plan", perform_later)


def test_pause_reports_the_pause_that_another_user_began_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_idle_job(name="first")
    for reason in ("incident", "migration"):
        after_the_selection(partial(control.pause, job, reason), monkeypatch)
        assert call("pause", "first") == (0, f"first: already paused until resumed: {reason}\n")
    after_the_selection(partial(control.pause, job, "other"), monkeypatch)
    code, shown = document("pause", "first", "--reason", "deploy")
    (result,) = shown["results"]
    assert (code, result["replaced"]) == (0, {"reason": "other", "until": None})
    assert Job.objects.get().pause_reason == f"deploy ({getuser()})"


def test_pause_of_a_waiting_job_keeps_the_reason_that_another_user_gave_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = control.pause(make_idle_job(name="waits", import_source="redbeat"), HANDED_BACK)
    after_the_selection(partial(control.pause, job, "data provider down"), monkeypatch)
    assert call("pause", "waits")[1] == (
        "waits: already paused until resumed: data provider down\n"
    )
    control.pause(job, HANDED_BACK)
    call("pause", "waits")
    assert Job.objects.get().pause_reason == f"by {getuser()}"


def test_pause_of_a_job_that_another_user_resumed_meanwhile_is_no_earlier_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_idle_job(name="first")
    call("pause", "first")
    after_the_selection(partial(control.resume, job), monkeypatch)
    assert call("pause", "first") == (0, f"first: paused until resumed: by {getuser()}\n")
    assert not Job.objects.get().enabled


@pytest.mark.django_db(transaction=True)
def test_pause_is_refused_while_another_transaction_locks_the_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lock(*_arguments: Any) -> None:
        raise OperationalError("database is locked")

    make_idle_job(name="first")
    monkeypatch.setattr(pause_command, "lock_cursors", lock)
    code, message = call("pause", "first")
    assert code == 1
    assert message.splitlines()[0] == ("first: refused: Another change is in progress. Try again.")


def test_pause_of_a_finished_job_lasts_although_its_schedule_is_edited() -> None:
    disable_exhausted([make_idle_job(name="once").pk], "default")
    assert "(replaces paused until resumed: its schedule" in call("pause", "once")[1]
    job = Job.objects.get()
    job.schedule = "0 0 2 1 *"
    control.save(job)
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (False, f"by {getuser()}")


def test_resume_says_that_runs_of_an_unknown_target_fail() -> None:
    for name in ("gone", "fine"):
        control.pause(make_job(name=name))
    Job.objects.filter(name="gone").update(target="shop.cron.gone")
    code, shown = call("resume", "gone", "fine")
    gone, fine = shown.splitlines()
    assert code == 0
    assert "Runs fail: Unknown target 'shop.cron.gone'" in gone
    assert "fail" not in fine
    assert paused_jobs() == set()
    results = document("resume", "gone", "fine")[1]["results"]
    assert [len(result["cautions"]) for result in results] == [1, 0]
    assert "shop.cron.gone" in results[0]["cautions"][0]["message"]


def test_resume_cautions_that_the_next_sync_pauses_an_undeclared_job() -> None:
    control.pause(make_job(name="gone", declared={}))
    control.pause(make_job(name="fine"))
    gone, fine = call("resume", "gone", "fine")[1].splitlines()
    assert ["sync" in line for line in (gone, fine)] == [True, False]
    gone, fine = document("resume", "gone", "fine")[1]["results"]
    assert ["sync" in caution["message"] for caution in gone["cautions"]] == [True]
    assert fine["cautions"] == []


@pytest.mark.parametrize(
    ("target", "enabled", "kwargs", "is_twin"),
    [
        ("tests.app.tasks.echo", True, {"city": "Bonn"}, True),
        ("shadow:tests.app.tasks.echo", True, {"city": "Bonn"}, True),
        ("tests.app.tasks.echo", False, {"city": "Bonn"}, False),
        ("tests.app.tasks.echo", True, {"city": "Ulm"}, False),
    ],
)
def test_resume_cautions_that_an_imported_job_does_the_same(
    target: str, enabled: bool, kwargs: dict[str, str], is_twin: bool
) -> None:
    origin = {"import_source": "redbeat", "import_key": "old"}
    make_job(name="old", target=target, kwargs=kwargs, enabled=enabled, **origin)
    work = {"target": "tests.app.tasks.echo", "kwargs": {"city": "Bonn"}}
    control.pause(make_job(name="new", declared={}, **work))
    control.pause(make_job(name="by-hand", **work))
    new, by_hand = document("resume", "new", "by-hand")[1]["results"]
    named = [
        any("enabled job old has" in caution["message"] for caution in each["cautions"])
        for each in (new, by_hand)
    ]
    assert named == [is_twin, False]
    if not enabled:
        (old,) = document("resume", "old")[1]["results"]
        assert ["enabled job new has" in each["message"] for each in old["cautions"]] == [True]


@pytest.mark.parametrize("prefix", ["", "shadow:"])
@pytest.mark.parametrize("first", ["declared", "imported"])
def test_the_twin_that_a_later_batch_resumes_names_the_other(
    prefix: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_actions, "JOBS_AT_ONCE", 1)
    target = "tests.app.tasks.ok"
    jobs = [
        make_idle_job(name="declared", target=target, declared={}),
        make_idle_job(
            name="imported", target=f"{prefix}{target}", import_source="redbeat", import_key="k"
        ),
        make_idle_job(name="by-hand", target=target),
        make_idle_job(name="other", target="tests.app.tasks.echo", import_source="redbeat"),
    ]
    control.pause_many(jobs)
    second = "imported" if first == "declared" else "declared"
    results = document("resume", first, second, "by-hand", "other")[1]["results"]
    cautions = {
        each["job"]: " ".join(caution["message"] for caution in each["cautions"])
        for each in results
    }
    assert f"enabled job {first} has" in cautions[second]
    assert [cautions[name] for name in ("by-hand", "other")] == ["", ""]
    assert f"enabled job {second} has" not in cautions[first], "it was still paused"


def test_cautions_of_one_action_are_listed_separately() -> None:
    control.pause(make_job(name="gone", declared={}))
    Job.objects.update(target="shop.cron.gone")
    assert "next sync pauses it. Runs fail: " in call("resume", "gone")[1]
    control.pause(Job.objects.get())
    (result,) = document("resume", "gone")[1]["results"]
    assert [caution["message"].split()[0] for caution in result["cautions"]] == ["Code", "Runs"]


def test_run_of_a_removed_job_says_that_code_no_longer_declares_it() -> None:
    job = make_job(name="my report", declared={})
    Job.objects.filter(pk=job.pk).update(target="shop.cron.gone")
    code, shown = call("run", "my report", "--no-wait")
    assert code == 2
    assert "Unknown target 'shop.cron.gone'" in shown
    assert (
        "Code no longer declares this job. To delete it: manage.py dcron delete 'my report'"
        in shown
    )


def test_skipped_jobs_have_a_line_for_each_reason() -> None:
    paused, gone = make_idle_job(name="paused"), make_idle_job(name="gone")
    control.pause(paused, "deploy")
    control.pause(gone, NO_LONGER_DECLARED)
    for number in range(5):
        make_idle_job(name=f"job-{number}")
    code, shown = call("resume", "--all", "--dry-run")
    selected, *skipped, last = shown.splitlines()
    assert (code, selected, last) == (0, "paused", "resume: 1 job. Nothing was done.")
    assert [line.partition(":")[0] for line in skipped] == [
        "skipped 1 job (gone)",
        "skipped 5 jobs (job-0, job-1, job-2, and 2 more)",
    ]
    assert set(skipped) < set(call("resume", "--all", "--yes")[1].splitlines())


def test_resume_selects_jobs_by_the_reason_of_their_pause() -> None:
    reasons = {
        "typed": ("deploy", ""),
        "by-ada": ("deploy (ada)", "ada"),
        "by-ops": ("deploy (Ada (Ops))", "Ada (Ops)"),
        "by-long": (signed_reason("deploy", "l" * 120), "l" * 120),
        "unsigned": ("deploy (shop)", ""),
        "other-name": ("deploy (shop)", "ada"),
        "longer": ("deploy of shop (ada)", "ada"),
        "other-team": ("deploy (shop) (ada)", "ada"),
        "contained": ("before deploy", ""),
        "other-case": ("Deploy", ""),
    }
    make_idle_job(name="enabled")
    for name, (reason, user) in reasons.items():
        with control.acting_as(user):
            control.pause(make_idle_job(name=name), reason)
    make_idle_job(name="by-me")
    changed = make_idle_job(name="changed")
    with control.acting_as("shop"):
        control.pause(changed, "backup (shop)")
    changed.pause_reason = "deploy (shop)"
    control.save(changed)
    call("pause", "by-me", "--reason", "deploy")
    assert call("resume", "--reason", "deploy")[0] == 2, "asks for confirmation"
    code, shown = document("resume", "--reason", "deploy", "--yes")
    selected = {"typed", "by-ada", "by-ops", "by-long", "by-me"}
    assert {each["job"] for each in shown["results"]} == selected
    assert (code, shown["skipped"]) == (0, [])
    assert paused_jobs() == {*reasons, "changed"} - selected
    assert call("resume", "--all", "--reason", reasons["longer"][0], "--yes")[0] == 0
    assert call("resume", "--reason", "deploy (shop)", "--yes")[0] == 0
    assert paused_jobs() == {"contained", "other-case"}


def test_resume_selects_by_a_reason_that_stayed_when_another_user_changed_the_end() -> None:
    job, reason = make_idle_job(), signed_reason("deploy", "ada")
    with control.acting_as("ada"):
        control.pause(job, reason)
    with control.acting_as("bob"):
        control.pause(job, reason, until=database_now("default") + timedelta(hours=1))
    assert call("resume", "--reason", "deploy", "--yes")[0] == 0
    assert paused_jobs() == set()


@pytest.mark.parametrize("language", ["en", "de", "zh-hans"])
def test_resume_knows_signed_reasons_of_all_languages(language: str) -> None:
    with override(language), control.acting_as("ada@example.com"):
        control.pause(make_idle_job(), signed_reason("deploy", "ada@example.com"))
    assert call("resume", "--reason", "deploy", "--yes")[0] == 0
    assert paused_jobs() == set()


def test_reason_of_the_pause_is_combined_like_a_filter() -> None:
    for job in make_shop():
        control.pause(job, "deploy")
    code, message = call("resume", "shop/import", "--reason", "deploy", "--yes")
    assert (code, "To resume shop/import, omit --reason." in message) == (2, True)
    code, message = call("resume", "shop/import", "--namespace", "shop", "--yes")
    assert (code, "--reason" in message) == (2, False)
    assert call("resume", "--namespace", "shop", "--reason", "", "--yes")[0] == 2
    assert len(paused_jobs()) == 3
    assert call("resume", "shop/exp*", "--reason", "deploy", "--yes")[0] == 0
    assert call("resume", "--namespace", "shop", "--reason", "deploy", "--yes")[0] == 0
    assert paused_jobs() == {"import"}
    code, message = call("resume", "--namespace", "default", "--reason", "backup", "--yes")
    assert (code, "'backup'" in message) == (1, True)
    assert "manage.py dcron list --paused --json" in message
    assert "--reason" in call("resume")[1]
    assert "--reason" not in call("cancel")[1]


def test_selection_does_not_resume_undeclared_jobs() -> None:
    gone, other = make_job(name="gone"), make_job(name="other")
    control.pause(gone, NO_LONGER_DECLARED)
    control.pause(other, "deploy")
    code, shown = document("resume", "*", "--yes")
    assert (code, [each["job"] for each in shown["skipped"]]) == (0, ["gone"])
    assert paused_jobs() == {"gone"}
    assert call("resume", "gone")[0] == 0
    assert paused_jobs() == set()


def test_job_named_next_to_a_pattern_is_changed_as_if_named_alone() -> None:
    gone, named, matched = (make_job(name=name) for name in ("gone", "named", "feed-a"))
    make_job(name="feed-b")
    control.pause(gone, NO_LONGER_DECLARED)
    control.pause(named, "incident")
    control.pause(matched, "incident")
    assert call("pause", "named", "feed-*", "--reason", "deploy", "--yes")[0] == 0
    reasons = dict(Job.objects.values_list("name", "pause_reason"))
    assert {name for name, reason in reasons.items() if reason.startswith("deploy")} == {
        "named",
        "feed-b",
    }
    assert call("resume", "gone", "feed-*", "--yes")[0] == 0
    assert paused_jobs() == {"named"}


@pytest.mark.parametrize(("answer", "code", "paused"), [("y", 0, 2), ("", 1, 0), ("no", 1, 0)])
def test_selection_asks_for_confirmation_on_terminal(
    answer: str, code: int, paused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def reply(question: str) -> str:
        questions.append(question)
        return answer

    monkeypatch.setattr("sys.stdin", TerminalInput())
    monkeypatch.setattr("builtins.input", reply)
    make_shop()
    assert call("pause", "shop/*")[0] == code
    assert (len(paused_jobs()), len(questions)) == (paused, 1)
    assert "2 jobs" in questions[0]
    assert call("pause", "import")[0] == 0
    assert len(questions) == 1, "a name needs no confirmation"


class TerminalInput(StringIO):
    def isatty(self) -> bool:
        return True


def test_end_of_input_is_no_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(question: str) -> str:
        raise EOFError

    monkeypatch.setattr("sys.stdin", TerminalInput())
    monkeypatch.setattr("builtins.input", end)
    make_shop()
    assert call("pause", "shop/*")[0] == 1
    assert paused_jobs() == set()


def test_cancel_accepts_selection_of_jobs() -> None:
    imported, exported, other = make_shop()
    runs = [make_run(imported), make_run(exported, "running"), make_run(exported, "succeeded")]
    kept = make_run(other)
    code, shown = document("cancel", "shop/*", "--dry-run")
    assert {each["run"] for each in shown["selected"]} == {str(run.pk) for run in runs[:2]}
    code, shown = document("cancel", "shop/*", "--state", "running", "--yes")
    assert (code, [each["run"] for each in shown["results"]]) == (0, [str(runs[1].pk)])
    code, shown = document("cancel", "shop/*", str(runs[0].pk), "--yes")
    assert [each["done"] for each in shown["results"]] == [True, True]
    kept.refresh_from_db()
    assert kept.state == "pending"
    assert call("cancel", "shop/*", str(kept.pk))[0] == 2


def test_excluded_job_keeps_a_run_that_is_selected_by_its_id() -> None:
    kept, other = (make_run(make_idle_job(name=name), "running") for name in ("kept", "other"))
    code, shown = document("cancel", str(kept.pk), str(other.pk), "--exclude", "kept", "--yes")
    assert (code, [each["job"] for each in shown["results"]]) == (0, ["other"])


def test_selection_to_cancel_skips_runs_scheduled_in_the_future() -> None:
    """Cancelling a backlog must not cancel a nightly job's next run, which was claimed ahead."""
    job, exported, *_others = make_shop()
    soon = database_now("default") + timedelta(hours=1)
    backlog = make_run(job, "queued")
    retry = make_run(job, attempt=2, due_at=soon)
    ahead = [make_run(job, due_at=soon, scheduled_at=soon + timedelta(hours=n)) for n in range(3)]
    code, shown = document("cancel", "shop/*", "--yes")
    assert (code, {each["run"] for each in shown["results"]}) == (
        0,
        {str(backlog.pk), str(retry.pk)},
    )
    assert {each["run"] for each in shown["skipped"]} == {str(run.pk) for run in ahead}
    assert "skipped 3 runs" in call("cancel", "--namespace", "shop", "--yes")[1]
    assert call("cancel", "shop/*", str(ahead[0].pk), "--yes")[0] == 0, "named by its id"
    Run.objects.filter(pk=ahead[2].pk).update(job=exported)
    code, shown = document("cancel", "shop/*", "shop/import", "--yes")
    assert [each["run"] for each in shown["results"]] == [str(ahead[1].pk)], "named by its job"
    assert [each["run"] for each in shown["skipped"]] == [str(ahead[2].pk)]
    code, message = call("cancel", "shop/export")
    assert code == 0, "named without a pattern"
    assert re.search(r"cancelled, it was scheduled for 20\d\d-", message)
    assert not Run.objects.exclude(state="cancelled").exists()


def test_no_run_that_waits_for_its_jitter_remains_after_pause_and_cancel_of_all_jobs() -> None:
    """As in a copy of production. ``pause`` deletes the runs that ``cancel`` would skip."""
    job = make_idle_job(name="mail", jitter=timedelta(hours=2))
    soon = database_now("default") + timedelta(minutes=30)
    delayed = make_run(job, due_at=soon)
    ahead = make_run(job, scheduled_at=soon, due_at=soon)
    assert document("cancel", "--all", "--dry-run")[1]["skipped"][0]["run"] == str(ahead.pk)
    assert call("pause", "--all", "--yes")[0] == 0
    assert call("cancel", "--all", "--yes")[0] == 0
    assert Run.objects.get() == delayed
    assert Run.objects.get().state == "cancelled"


def test_runs_to_cancel_are_selected_by_their_state() -> None:
    job, *_others = make_shop()
    queued, running = make_run(job, "queued"), make_run(job, "running")
    code, shown = document("cancel", "shop/*", "--state", "queued", "--yes")
    assert (code, [each["run"] for each in shown["results"]]) == (0, [str(queued.pk)])
    assert (
        "no queued or pending runs"
        in (call("cancel", "shop/import", "--state", "queued", "--state", "pending")[1])
    )
    code, message = call("cancel", str(queued.pk), str(running.pk), "--state", "queued")
    assert (code, message.count("refused: ")) == (1, 2)
    assert "is running. Only runs in the selected states are cancelled." in message
    running.refresh_from_db()
    assert running.cancel_requested_at is None


def test_runs_to_cancel_are_selected_by_their_trigger() -> None:
    job = make_idle_job(name="billing")
    scheduled, manual = (make_run(job, "waiting", trigger=each) for each in ("schedule", "manual"))
    rerun = make_run(job, "waiting", trigger="manual", rerun_of=make_run(job, "failed"))
    assert call("cancel", "billing", "--trigger", "chain")[1].startswith("Nothing to cancel: ")
    code, shown = document("cancel", "billing", "--state", "waiting", "--trigger", "manual")
    assert code == 0
    assert [result["run"] for result in shown["results"]] == [str(manual.pk)]
    assert document("cancel", "billing", "--trigger", "rerun", "--trigger", "backfill")[0] == 0
    states = dict(Run.objects.values_list("pk", "state"))
    assert (states[scheduled.pk], states[rerun.pk]) == ("pending", "cancelled"), "its turn came"


def test_run_that_starts_before_the_confirmation_is_not_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, *_others = make_shop()
    queued, started = make_run(job, "queued"), make_run(job, "queued")

    def start_and_confirm(question: str) -> str:
        Run.objects.filter(pk=started.pk).update(state=State.RUNNING)
        return "y"

    monkeypatch.setattr("sys.stdin", TerminalInput())
    monkeypatch.setattr("builtins.input", start_and_confirm)
    code, message = call("cancel", "shop/*", "--state", "queued")
    assert (code, message.count("refused: ")) == (1, 1)
    queued.refresh_from_db()
    started.refresh_from_db()
    assert (queued.state, started.state) == ("cancelled", "running")
    assert (started.cancel_requested_at, started.reason) == (None, "")


def test_run_of_selection_does_not_wait() -> None:
    make_shop()
    assert call("run", "shop/*")[0] == 2
    assert call("run", "shop/*", "--yes", "--timeout", "1m")[0] == 2
    assert call("run", "shop/*", "--dry-run", "--timeout", "1m")[0] == 2
    assert call("run", "import", "--dry-run", "--timeout", "1m")[0] == 0
    assert not Run.objects.exists()
    code, shown = document("run", "shop/*", "--yes", "--idempotency-key", "deploy-1")
    assert code == 0
    assert {each["run"] for each in shown["results"]} == {
        str(run.pk) for run in Run.objects.filter(job__namespace="shop")
    }
    code, shown = document("run", "import", "shop/import", "--idempotency-key", "deploy-1")
    assert (code, Run.objects.count()) == (0, 3)
    code, shown = document("run", "--all", "--yes", "--kwargs", '{"unknown": 1}')
    assert (code, {each["done"] for each in shown["results"]}) == (1, {False})
    assert Run.objects.count() == 3


@pytest.mark.parametrize(
    "command", [("ping", "--no-wait"), ("ping", "--no-wait", "--json"), ("ping", "pong")]
)
def test_run_without_waiting_warns_on_stderr_if_no_node_serves_it(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    make_idle_job(name="ping")
    make_idle_job(name="pong")
    caution = "No node that serves the job is running"
    assert call("run", *command)[0] == 0
    assert capsys.readouterr().err.count(caution) == 1
    call("run", "ping", "--no-wait", "--idempotency-key", "k")
    Run.objects.update(state="queued")
    capsys.readouterr()
    assert call("run", "ping", "--no-wait", "--idempotency-key", "k")[0] == 0
    assert capsys.readouterr().err == "", "a worker has the run"
    make_node()
    assert call("run", *command)[0] == 0
    assert capsys.readouterr().err == ""


def test_warning_about_a_missing_node_concerns_each_namespace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has the first run, but the run of the other namespace waits for a node."""
    make_idle_job(name="ping")
    make_idle_job(name="pong", namespace="shop")
    monkeypatch.setattr(
        run_command, "node_cautions", lambda job, live: set_queued(job) or ["No node."]
    )

    def set_queued(job: Job) -> None:
        Run.objects.filter(job__name="ping").update(state="queued")

    assert call("run", "ping", "shop/pong", "--no-wait")[0] == 0
    assert capsys.readouterr().err.count("No node.") == 1


def test_run_without_waiting_says_what_the_overlap_policy_does_to_it() -> None:
    busy, _idle = (make_idle_job(name=name, overlap_policy="skip") for name in ("busy", "idle"))
    make_run(busy, "running", slot="running", trigger="manual", idempotency_key="k")
    caution = "An earlier run is unfinished"
    assert caution in call("run", "busy", "--no-wait")[1]
    assert [caution in line for line in call("run", "busy", "idle")[1].splitlines()] == [
        True,
        False,
    ]
    assert caution not in call("run", "idle", "--no-wait")[1]
    again = call("run", "busy", "--no-wait", "--idempotency-key", "k")[1]
    assert caution not in again, "the unfinished run is the requested one"
    (shown,) = document("run", "busy", "--no-wait")[1]["cautions"]
    assert shown["message"].startswith(caution)
    assert document("run", "idle", "--no-wait")[1]["cautions"] == []


def test_json_of_a_watched_run_says_that_a_shadow_executes_nothing() -> None:
    make_idle_job(name="shaded", target="shadow:tests.app.tasks.fail")
    (caution,) = document("run", "shaded", "--timeout", "0s")[1]["cautions"]
    assert f"shaded: {caution['message']}" == SHADED


# --- cancel and rerun ---------------------------------------------------------------------------


def test_cancel_accepts_run_or_job() -> None:
    job, other = make_idle_job(name="many"), make_idle_job(name="other")
    single = make_run(other)
    pending, running, ended = (
        make_run(job, state) for state in ("pending", "running", "succeeded")
    )
    code, message = call("cancel", str(single.pk), "--reason", "wrong month")
    assert (code, message) == (0, f"{single} ({single.pk}): cancelled\n")
    single.refresh_from_db()
    assert (single.state, single.reason) == ("cancelled", f"wrong month ({getuser()})")
    code, message = call("cancel", "many")
    assert code == 0
    expected = [f"{pending} ({pending.pk}): cancelled", f"{running} ({running.pk}): {REQUESTED}"]
    assert sorted(message.splitlines()) == sorted(expected)
    running.refresh_from_db()
    assert running.cancel_requested_at is not None
    ended.refresh_from_db()
    assert ended.state == "succeeded"
    assert call("cancel", "other") == (
        0,
        "Nothing to cancel: there are no unfinished runs.\n",
    )
    assert document("cancel", "other") == (0, {"version": 1, "results": []})
    code, message = call("cancel", str(ended.pk))
    assert code == 1
    assert "refused: " in message
    assert "Only unfinished runs" in message
    assert call("cancel", "nothing")[0] == 2
    assert call("cancel", "0" * 12)[0] == 2


def test_overdue_occurrences_are_dropped_as_documented() -> None:
    job = make_idle_job(name="nightly-report")
    make_idle_job(name="idle")
    assert "overdue" not in call("cancel", "--all", "--dry-run")[1]
    Cursor.objects.filter(pk=job.pk).update(next_at=datetime(2024, 1, 1, tzinfo=UTC))
    code, message = call("cancel", "--all", "--dry-run")
    assert (code, message.count("1 job has overdue occurrences")) == (0, 1)
    make_run(job)
    assert "1 job has overdue occurrences" in call("cancel", "--all", "--dry-run")[1]
    Run.objects.all().delete()
    assert call("list", "--sort", "next")[1].splitlines()[1].startswith("nightly-report ")

    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    section = page.partition("### The nodes were down")[2].partition("\n## ")[0]
    for line in re.findall(r"^manage\.py dcron (.*nightly-report.*)$", section, re.MULTILINE):
        assert call(*shlex.split(line))[0] == 0

    assert {run.state for run in Run.objects.filter(job=job)} == {"cancelled"}
    job.refresh_from_db()
    next_at = Cursor.objects.get(pk=job.pk).next_at
    assert job.enabled
    assert next_at is not None
    assert next_at > database_now("default")


def test_cancel_reports_no_run_as_cancelled_that_has_succeeded_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run(make_idle_job(name="idle"), "running")
    take_fields = control._take_fields

    def take_fields_later(*arguments: Any) -> None:
        Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
        take_fields(*arguments)

    monkeypatch.setattr(control, "_take_fields", take_fields_later)
    assert call("cancel", "idle") == (0, f"{run} ({run.pk}): {REQUESTED}\n")


def test_rerun_creates_runs_for_finished_runs_only() -> None:
    job = make_idle_job(name="idle")
    ended, pending = make_run(job, "failed"), make_run(job)
    code, message = call("rerun", str(ended.pk), str(pending.pk))
    made = Run.objects.get(rerun_of=ended)
    assert code == 1
    assert message.startswith(f"{ended} ({ended.pk}): rerun as {made.pk}\n")
    assert "Only finished runs" in message
    code, shown = document("rerun", str(ended.pk))
    assert code == 0
    assert Run.objects.filter(pk=shown["results"][0]["made"], rerun_of=ended).exists()


def test_rerun_says_what_the_overlap_policy_does_to_it() -> None:
    job = make_idle_job(name="idle", overlap_policy="skip")
    ended = make_run(job, "failed")
    make_run(job, "running", slot="running", trigger="manual")
    code, message = call("rerun", str(ended.pk))
    assert code == 0
    assert "An earlier run is unfinished" in message


def test_rerun_says_that_a_shadow_executes_nothing() -> None:
    job = make_idle_job(name="shaded", target="shadow:tests.app.tasks.fail")
    first, second = make_run(job, "failed"), make_run(job, "failed")
    selection = ("shaded", "--state", "failed", "--since", "1h", "--yes")
    for arguments in (selection, (str(first.pk), str(second.pk))):
        code, message = call("rerun", *arguments)
        assert (code, message.count(SHADED.partition(": ")[2])) == (0, 2), message


def test_rerun_says_that_runs_of_an_unknown_target_fail() -> None:
    job = make_idle_job(name="gone")
    runs = [make_run(job, "failed") for _ in range(2)]
    Job.objects.update(target="shop.cron.gone")
    selection = ("gone", "--state", "failed", "--since", "1h", "--yes")
    for arguments in (selection, [str(run.pk) for run in runs]):
        code, message = call("rerun", *arguments)
        assert (code, message.count("Runs fail: Unknown target 'shop.cron.gone'")) == (0, 2)


def test_rerun_of_one_run_says_how_to_see_its_end() -> None:
    ended = make_run(make_idle_job(name="idle"), "failed")
    code, message = call("rerun", str(ended.pk))
    made = Run.objects.get(rerun_of=ended)
    last = message.splitlines()[-1]
    assert (code, last) == (0, f"To see how it ends: manage.py dcron history {made.pk}")


def test_run_that_is_named_twice_is_rerun_once() -> None:
    run = make_run(make_idle_job(name="idle"), "failed")
    code, shown = document("rerun", str(run.pk), str(run.pk)[:23])
    assert (code, len(shown["results"])) == (0, 1)
    assert Run.objects.filter(rerun_of=run).count() == 1


def test_rerun_selects_runs_of_a_job_by_state_and_time() -> None:
    job, other = make_idle_job(name="idle", overlap_policy="skip"), make_idle_job(name="other")
    now = database_now("default")

    def run_at(job: Job, state: str, minutes: int) -> Run:
        return make_run(job, state, scheduled_at=now - timedelta(minutes=minutes))

    oldest, missed = run_at(job, "missed", 40), run_at(job, "missed", 30)
    failed = run_at(job, "failed", 20)
    for args in ((job, "missed", 90), (job, "succeeded", 10), (other, "missed", 30)):
        run_at(*args)
    selection = ("rerun", "idle", "--state", "missed", "--since", "1h")
    code, message = call(*selection)
    assert (code, "2 runs selected. To confirm, add --yes" in message) == (2, True)
    code, message = call(*selection, "--dry-run")
    assert (code, message.splitlines()[-1]) == (0, "rerun: 2 runs. Nothing was done.")
    assert not Run.objects.exclude(rerun_of=None).exists()
    code, message = call(*selection, "--yes")
    assert (code, message.splitlines()[-1]) == (0, "rerun: 2 done")
    made = Run.objects.exclude(rerun_of=None).order_by("scheduled_at")
    assert [run.rerun_of_id for run in made] == [oldest.pk, missed.pk]
    assert {(run.state, run.trigger) for run in made} == {("waiting", "backfill")}
    code, shown = document(*selection, "--state", "failed", "--yes")
    assert code == 0
    assert [each["run"] for each in shown["results"]] == [str(failed.pk)]
    assert {each["run"] for each in shown["skipped"]} == {str(oldest.pk), str(missed.pk)}
    code, message = call(*selection, "--until", "50m", "--yes")
    assert (code, "no runs of idle match" in message) == (0, True)


def test_rerun_of_a_selection_says_once_for_each_job_why_the_new_runs_wait() -> None:
    job, other = make_idle_job(name="idle", namespace="shop"), make_idle_job(name="other")
    for each in (job, job, other):
        make_run(each, "failed")
    control.pause(job)
    control.freeze("deploy", "shop")
    code, shown = document("rerun", "--all", "--state", "failed", "--since", "1h", "--yes")
    assert code == 0
    told: dict[str, list[list[str]]] = {}
    for result in shown["results"]:
        starts = [caution["message"].split(": ")[0] for caution in result["cautions"]]
        told.setdefault(result["job"], []).append(starts)
    no_node = "No node that serves the job is running"
    assert told == {
        str(job): [["The job is paused", "Frozen", no_node], []],
        str(other): [[no_node]],
    }
    make_node(namespace="shop")
    make_run(other, "failed")
    make_run(job, "failed")
    control.unfreeze("shop")
    control.resume(job)
    code, message = call("rerun", "--all", "--state", "failed", "--since", "1h", "--yes")
    assert (code, message.count(no_node), "Frozen" in message) == (0, 1, False)


def test_rerun_refuses_an_unclear_or_too_large_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(make_idle_job(name="idle"), "missed")
    for arguments, problem in (
        ((), "Nothing is selected"),
        (("--state", "missed", "--since", "1h"), "--queue or --all."),
        ((str(run.pk), "--state", "missed"), "--state selects runs of jobs"),
        (("idle", "--since", "1h"), "add --state. "),
        (("idle", "--state", "missed"), "add --since. "),
        (("--all",), "add --state and --since. To list them: manage.py dcron history"),
        ((str(run.pk), "idle"), "not both"),
        (("idle", "--state", "running", "--since", "1h"), "invalid choice"),
        (("nothing-*", "--state", "missed", "--since", "1h"), "No job matches"),
    ):
        code, message = call("rerun", *arguments)
        assert (code, problem in message) == (2, True), message
    make_run(run.job, "missed")
    monkeypatch.setattr(rerun_command, "MAX_SELECTED", 1)
    code, message = call("rerun", "idle", "--state", "missed", "--since", "1h", "--yes")
    assert (code, "Too many runs" in message) == (2, True)


def test_rerun_selects_runs_of_many_jobs_and_runs_those_of_each_job_oldest_first() -> None:
    now = database_now("default")
    first, second = (make_idle_job(name=f"feed-{name}", tags=["feed"]) for name in ("a", "b"))
    other = make_idle_job(name="other", namespace="shop")
    runs = {
        job: [
            make_run(job, state, scheduled_at=(now - timedelta(minutes=minutes)))
            for minutes, state in ((30, "failed"), (20, "succeeded"), (10, "failed"))
        ]
        for job in (first, second, other)
    }
    selectors = ("--state", "failed", "--since", "1h")
    for selection, jobs in (
        (("feed-*",), (first, second)),
        (("--tag", "feed"), (first, second)),
        (("--namespace", "shop"), (other,)),
        (("--all",), (first, second, other)),
        (("feed-a", "shop/other"), (first, other)),
    ):
        code, shown = document("rerun", *selection, *selectors, "--dry-run")
        expected = [str(run.pk) for job in jobs for run in runs[job][::2]]
        assert (code, [each["run"] for each in shown["selected"]]) == (0, expected)
    code, message = call("rerun", "feed-*", *selectors, "--yes")
    assert (code, message.splitlines()[-1]) == (0, "rerun: 4 done")
    for job in (first, second):
        made = Run.objects.filter(job=job).exclude(rerun_of=None).order_by("scheduled_at")
        assert [run.rerun_of_id for run in made] == [run.pk for run in runs[job][::2]]
        (entry,) = AuditEntry.objects.filter(kind="job", action="rerun", job_id=job.pk)
        assert entry.after == {"runs": 2}
    code, shown = document("rerun", "--all", *selectors, "--yes")
    assert (code, len(shown["results"]), len(shown["skipped"])) == (0, 2, 4)
    assert call("rerun", "feed-*", "--state", "missed", "--since", "1h")[1] == (
        "Nothing to run again: no runs of 2 jobs match.\n"
    )


def test_rerun_of_runs_of_many_jobs_needs_no_statement_for_each_job() -> None:
    def statements(number: int) -> int:
        for position in range(number):
            make_run(make_idle_job(name=f"of-{number}-{position}"), "failed")
        with CaptureQueriesContext(connection) as queries:
            code, _out = call(
                "rerun", f"of-{number}-*", "--state", "failed", "--since", "1h", "--yes"
            )
        assert code == 0
        return len(queries)

    assert statements(2) == statements(12)


def test_rerun_of_a_selection_refuses_the_runs_of_a_job_that_is_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, deleted = (make_run(make_idle_job(name=name), "failed") for name in ("kept", "deleted"))
    rerun = rerun_command.rerun_selected

    def delete_and_rerun(runs: Any) -> Any:
        control.delete(deleted.job)
        return rerun(runs)

    monkeypatch.setattr(rerun_command, "rerun_selected", delete_and_rerun)
    code, message = call("rerun", "--all", "--state", "failed", "--since", "1h", "--yes")
    assert (code, "it has been deleted" in message) == (1, True)
    (made,) = Run.objects.exclude(rerun_of=None)
    assert made.rerun_of_id == kept.pk


@pytest.mark.django_db(transaction=True)
def test_rerun_reports_the_finished_batches_if_a_transaction_blocks_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_idle_job(name="first")
    now = database_now("default")
    runs = [
        make_run(job, "failed", scheduled_at=now - timedelta(minutes=minutes))
        for minutes in (20, 10)
    ]
    rerun = rerun_command.rerun_selected

    def rerun_only_the_first(selected: Any) -> Any:
        if runs[0] not in selected:
            raise OperationalError("database is locked")
        return rerun(selected)

    monkeypatch.setattr(rerun_command, "RERUN_AT_ONCE", 1)
    monkeypatch.setattr(rerun_command, "rerun_selected", rerun_only_the_first)
    code, shown = document("rerun", "first", "--state", "failed", "--since", "1h", "--yes")
    assert code == 1
    done, refused = shown["results"]
    assert done["made"] == str(Run.objects.get(rerun_of=runs[0]).pk)
    assert (refused["done"], refused["error"]) == (
        False,
        "Another change is in progress. Try again.",
    )


def blocked(*_arguments: Any, **_options: Any) -> NoReturn:
    raise OperationalError("database is locked")


@pytest.mark.django_db(transaction=True)
def test_contention_after_the_change_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_idle_job(name="first", enabled=False, pause_reason="deploy")
    monkeypatch.setattr(resume_command, "twin_cautions", blocked)
    code, message = call("resume", "first")
    assert (code, "refused" in message) == (2, False)
    assert Job.objects.get().enabled

    make_run(job, "failed", scheduled_at=database_now("default") - timedelta(minutes=1))
    monkeypatch.setattr(rerun_command.DelayCautions, "of", blocked)
    code, message = call("rerun", "first", "--state", "failed", "--since", "1h", "--yes")
    assert (code, "refused" in message) == (2, False)
    assert Run.objects.count() == 1, "cautions are read before the change"


@pytest.mark.django_db(transaction=True)
def test_run_whose_row_cannot_be_read_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(make_idle_job(name="first"), "queued")
    with monkeypatch.context() as patch:
        patch.setattr(type(Run.objects.all()), "in_bulk", blocked)
        code, message = call("cancel", str(run.pk))
    assert (code, "refused" in message) == (1, True)
    assert Run.objects.get().state == "queued"


@pytest.mark.django_db(transaction=True)
def test_contention_ends_a_dry_run_because_it_breaks_the_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On MariaDB, a deadlock rolls the whole transaction back."""
    for name in ("first", "second"):
        make_idle_job(name=name)
    monkeypatch.setattr(saving, "save_batch", blocked)
    code, message = call("set", "first", "second", "max_attempts=3", "--dry-run")
    assert (code, "refused" in message) == (2, False)


# --- delete -------------------------------------------------------------------------------------


def test_delete_keeps_or_erases_the_history() -> None:
    kept, erased = make_idle_job(name="kept"), make_idle_job(name="erased")
    for job in (kept, erased):
        make_run(job, "succeeded")
    assert call("delete", "kept") == (0, "kept: deleted; its finished runs stay\n")
    code, shown = document("delete", "erased", "--erase")
    assert (code, shown["results"][0]["erased"]) == (0, True)
    assert not Job.objects.exists()
    assert [run.job_id for run in Run.objects.all()] == [kept.pk]
    code, message = call("history", f"kept (deleted {kept.pk})")
    assert (code, "succeeded" in message) == (0, True)
    assert call("delete", "kept")[0] == 2


def test_delete_of_a_declared_job_says_that_it_comes_back() -> None:
    make_idle_job(name="a", declared={"schedule": "@never"})
    make_idle_job(name="b")
    make_idle_job(name="renamed", declared={"schedule": "@never"})
    with targets.isolated_registry():
        cron("@never", name="a")(make_shop)
        lines = call("delete", "a", "b", "renamed")[1].splitlines()
        make_idle_job(name="a", declared={"schedule": "@never"})
        (again,) = document("delete", "a")[1]["results"]
    assert ["sync" in line for line in lines] == [True, False, False]
    assert "sync" in again["cautions"][0]["message"]


@pytest.mark.parametrize(("answer", "is_deleted"), [("y", True), ("", False), ("no", False)])
def test_delete_asks_for_confirmation_on_terminal(
    answer: str, is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def reply(question: str) -> str:
        questions.append(question)
        return answer

    monkeypatch.setattr("sys.stdin", TerminalInput())
    monkeypatch.setattr("builtins.input", reply)
    make_idle_job(name="report")
    make_idle_job(name="other")
    in_terminal = ("delete", "report", "--erase", "--force-color")
    assert call(*in_terminal)[0] == (0 if is_deleted else 1)
    assert (len(questions), "erase" in questions[0]) == (1, True)
    assert Job.objects.filter(name="report").exists() is not is_deleted
    assert call("delete", "other", "--dry-run")[0] == 0
    assert Job.objects.filter(name="other").exists()
    assert call("delete", "other", "--no-input", "--force-color")[0] == 0
    assert not Job.objects.filter(name="other").exists()
    make_idle_job(name="third")
    assert call("delete", "third")[0] == 0, "the output is captured, so nobody sees a question"
    assert len(questions) == 1


def test_delete_with_an_unknown_name_deletes_nothing() -> None:
    make_idle_job(name="kept")
    assert call("delete", "kept", "missing")[0] == 2
    assert Job.objects.filter(name="kept").exists()


# --- backfill -----------------------------------------------------------------------------------


def test_backfill_previews_creates_and_follows_runs(start_runcron: StartProcess) -> None:
    job = make_job(name="hourly", schedule="0 * * * *")
    now = database_now("default")
    window = [
        "hourly",
        (now - timedelta(hours=5)).isoformat(),
        (now - timedelta(hours=2)).isoformat(),
    ]
    code, message = call("backfill", *window, "--dry-run")
    lines = message.splitlines()
    assert code == 0
    assert len(lines) == 4
    assert lines[-1] == f"hourly: 3 runs would be created, from {lines[0]} to {lines[-2]}."
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:00:00 UTC", line) for line in lines[:-1])
    assert not Run.objects.exists()

    start_runcron("--embedded", "--name", "a", env=QUICK).wait_for_log(
        "node started: node=a", TIMEOUT
    )
    code, message = call("backfill", *window, "--limit", "2")
    assert code == 0, message
    assert message.startswith(f"hourly: 2 runs created, from {lines[0]} to {lines[1]}.\n")
    assert re.search(r" START 20\S+\d$", message, re.MULTILINE), "it can be copied"
    assert message.endswith("progress: 2 of 2\n2 succeeded.\n")
    assert Run.objects.filter(job=job, state="succeeded", trigger="backfill").count() == 2

    Run.objects.order_by("scheduled_at").first().delete()  # type: ignore[union-attr]
    Job.objects.filter(pk=job.pk).update(target="tests.app.tasks.fail")
    code, shown = document("backfill", *window, "--over-pruned")
    assert code == 1
    assert (shown["existing_runs"], shown["ended"], len(shown["occurrences"])) == (
        1,
        {"failed": 2},
        2,
    )
    code, message = call("backfill", *window)
    assert code == 0
    assert message.startswith(
        "hourly: 0 runs created.\n3 other occurrences skipped: a run exists.\n2 of them are "
        "missed, failed or cancelled. To rerun all such runs of this period, including manual "
        "runs: manage.py dcron rerun hourly "
    )


@pytest.mark.parametrize("options", [("--dry-run",), ("--no-wait",)])
def test_backfill_prints_how_to_run_unsuccessful_runs_again(options: tuple[str, ...]) -> None:
    with set_clock(datetime(2026, 11, 3, 12, 30, tzinfo=UTC)):
        job = make_job(name="every hour", schedule="0 * * * *", timezone="Asia/Tokyo")
        runs = {
            hour: make_run(job, state, scheduled_at=datetime(2026, 11, 3, hour, tzinfo=UTC))
            for hour, state in ((5, "missed"), (6, "cancelled"), (7, "failed"), (8, "succeeded"))
        }
        make_run(job, "pending", trigger="rerun", rerun_of=runs[5])
        between = datetime(2026, 11, 3, 6, 30, tzinfo=UTC)
        make_run(job, "cancelled", trigger="manual", scheduled_at=between)
        window = ("backfill", "every hour", "14:00", "18:00")
        command = (
            "rerun 'every hour' --state missed --state failed --state cancelled "
            "--since 2026-11-03T15:00:00+09:00 --until 2026-11-03T16:00:01+09:00"
        )
        message = call(*window, *options)[1]
        assert (
            "2 of them are missed, failed or cancelled. To rerun all such runs of this period, "
            f"including manual runs: manage.py dcron {command}" in message
        )
        assert document(*window, *options)[1]["unsuccessful"] == 2
        *_, last = call(*shlex.split(command), "--yes")[1].splitlines()
        assert last == "rerun: 3 done", "with the manual run"
        assert "missed, failed" not in call(*window, *options)[1]


def test_backfill_of_an_imported_job_warns_of_the_runs_of_the_source() -> None:
    job = make_job(name="hourly", schedule="@hourly", import_source="redbeat", import_key="k")
    for source, warns in (("redbeat", True), ("", False)):
        Job.objects.filter(pk=job.pk).update(import_source=source, import_key=None)
        message = call("backfill", "hourly", "3h", "now", "--dry-run")[1]
        assert ("imported from redbeat" in message) is warns


@pytest.mark.parametrize(("minutes", "shown"), [(11, 11), (12, 11), (60, 11)])
def test_dry_run_of_a_backfill_shows_the_first_and_last_occurrences(
    minutes: int, shown: int
) -> None:
    make_job(name="often", schedule="* * * * *")
    end = database_now("default").replace(second=30) - timedelta(minutes=5)
    window = ["often", (end - timedelta(minutes=minutes)).isoformat(), end.isoformat()]
    *lines, last = call("backfill", *window, "--dry-run")[1].splitlines()
    assert last == (f"often: {minutes} runs would be created, from {lines[0]} to {lines[-1]}.")
    assert len(lines) == shown
    *every, last = call("backfill", *window, "--dry-run", "--verbosity", "2")[1].splitlines()
    assert len(every) == minutes
    assert last.startswith(f"often: {minutes} runs would be created, from {every[0]}")
    if minutes > shown:
        assert (lines[:5], lines[-5:]) == (every[:5], every[-5:])
        assert lines[5].startswith(f"... {minutes - 10} more")
    assert len(document("backfill", *window, "--dry-run")[1]["occurrences"]) == minutes


def test_backfill_takes_times_of_day_in_the_time_zone_of_the_job() -> None:
    with set_clock(datetime(2026, 11, 3, 12, tzinfo=UTC)):  # 17:30 in Kolkata
        make_job(name="hourly", schedule="0 * * * *", timezone="Asia/Kolkata")
        _code, shown = document("backfill", "hourly", "14:00", "16:00", "--dry-run")
        assert shown["occurrences"] == ["2026-11-03T08:30:00Z", "2026-11-03T09:30:00Z"]
        message = call("backfill", "hourly", "14:00", "15:00", "--no-wait")[1]
        assert "hourly: 1 run created, for 2026-11-03 14:00:00 IST." in message
        _code, shown = document("backfill", "hourly", "23:30", "01:30", "--dry-run")
        assert shown["occurrences"] == ["2026-11-02T18:30:00Z", "2026-11-02T19:30:00Z"]
        code, message = call("backfill", "hourly", "16:00", "14:00", "--dry-run")
        assert (code, "isn't before the end" in message) == (2, True)
        code, message = call("backfill", "hourly", "16:00", "17:31", "--dry-run")
        assert (code, message) == (
            2,
            "END 17:31 is later than now, 17:30:00. To backfill until now, use END now.",
        )


def test_backfill_says_that_it_takes_one_job() -> None:
    make_job(name="hourly", namespace="shop")
    code, message = call("backfill", "shop/*", "10m", "now", "--dry-run")
    assert (code, "one job" in message, "'shop/*' is a pattern" in message) == (2, True, True)


def test_refusal_of_a_backfill_of_pruned_runs_has_times_in_the_zone_of_the_job() -> None:
    with set_clock(datetime(2026, 11, 3, 12, tzinfo=UTC)):
        job = make_job(name="hourly", schedule="0 * * * *", timezone="Asia/Kolkata")
        count_ended_runs([job.pk], State.SUCCEEDED, 7)
        for start in ("14:00", "4h", "2026-11-03T08:00Z"):
            code, message = call("backfill", "hourly", start, "now", "--dry-run")
            assert (code, "+00:00" in message) == (1, False)
            assert "from 2026-11-03T14:00:00+05:30: its runs before 2026-11-03T17:30" in message
            assert "--over-pruned" in message


def test_backfill_with_no_wait_returns_at_once() -> None:
    make_job(name="hourly", schedule="0 * * * *", timezone="Asia/Kolkata")
    code, shown = document("backfill", "hourly", "3h", "now", "--no-wait")
    assert code == 0
    assert len(shown["occurrences"]) == Run.objects.filter(state="waiting").count() == 3
    assert shown["ended"] is None
    assert all(occurrence.endswith(":30:00Z") for occurrence in shown["occurrences"])


def test_backfill_says_why_its_runs_do_not_start() -> None:
    control.pause(make_job(name="hourly", schedule="0 * * * *"))
    control.freeze("incident")
    reasons = (
        "The job is paused: the runs start when it is resumed.",
        "Frozen: (all), until unfrozen: incident",
        "No node that serves the job is running",
    )
    planned = document("backfill", "hourly", "3h", "now", "--dry-run")[1]
    code, message = call("backfill", "hourly", "3h", "now", "--no-wait")
    created = document("backfill", "hourly", "6h", "now", "--no-wait")[1]
    assert (code, planned["cautions"]) == (0, [])
    for reason, caution in zip(reasons, created["cautions"], strict=True):
        assert reason in message
        assert reason in caution["message"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("now", "3h"), 2, "start: "),
        (("yesterday", "now"), 2, "START 'yesterday' (allowed: a time of day such as "),
        (("3h", "2200-01-01"), 2, "END '2200-01-01' is out of range"),
    ],
)
def test_backfill_rejects_invalid_range(
    arguments: tuple[str, ...], code: int, message: str
) -> None:
    make_job(name="hourly", schedule="0 * * * *")
    answer = call("backfill", "hourly", *arguments)
    assert answer[0] == code
    assert message in answer[1]
    assert not Run.objects.exists()


def test_backfill_explains_delay_and_ctrl_c_stops_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    job = make_job(name="hourly", schedule="0 * * * *")
    control.pause(job)
    monkeypatch.setattr("django_dcron.management.dcron.backfill.time.sleep", interrupted)
    code, message = call("backfill", "hourly", "3h", "now")
    assert code == 1
    assert [line.split(": ")[0] for line in message.splitlines()[1:3]] == [
        "The job is paused",
        "No node that serves the job is running",
    ]
    assert message.endswith("manage.py dcron cancel hourly")
    assert Run.objects.filter(state="waiting").count() == 3


def test_backfill_names_the_freeze_that_delays_it_and_how_to_cancel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    job = make_job(name="every hour", schedule="0 * * * *")
    control.freeze("deploy", job.namespace)
    monkeypatch.setattr("django_dcron.management.dcron.backfill.time.sleep", interrupted)
    code, message = call("backfill", "every hour", "3h", "now")
    assert (code, "until unfrozen: deploy" in message) == (1, True)
    _, _, arguments = message.rpartition("manage.py dcron ")
    assert call(*shlex.split(arguments), "--yes")[0] == 0
    assert Run.objects.filter(state="cancelled").count() == 3


@pytest.mark.django_db(transaction=True)
def test_backfill_waits_through_an_outage_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    count, calls = backfill_command._count, iter([1])

    def interrupted(*given: Any) -> dict[str, int]:
        if next(calls, None):
            raise OperationalError("server closed the connection")
        Run.objects.update(state="succeeded")
        return count(*given)

    make_job(name="hourly", schedule="0 * * * *")
    monkeypatch.setattr(backfill_command, "_count", interrupted)
    monkeypatch.setattr(backfill_command, "CHECK_EVERY", 0)
    code, message = call("backfill", "hourly", "3h", "now")
    assert (code, message.splitlines()[-1]) == (0, "3 succeeded.")
    assert "waiting for the database: server closed the connection\n" in message


@pytest.mark.parametrize(
    ("kept", "code", "last"),
    [(3, 0, "3 succeeded."), (2, 0, "2 succeeded, 1 deleted."), (0, 1, "All of the runs were")],
)
def test_backfill_counts_runs_that_were_deleted_meanwhile(
    kept: int, code: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = backfill_command._count

    def deleting(*given: Any) -> dict[str, int]:
        Run.objects.update(state="succeeded")
        Run.objects.filter(pk__in=[run.pk for run in Run.objects.all()[: 3 - kept]]).delete()
        return count(*given)

    make_job(name="hourly", schedule="0 * * * *")
    monkeypatch.setattr(backfill_command, "_count", deleting)
    answer, message = call("backfill", "hourly", "3h", "now")
    assert (answer, message.splitlines()[-1].startswith(last)) == (code, True), message


@pytest.mark.parametrize(
    ("target", "caution"),
    [
        ("shop.cron.gone", "Runs fail: Unknown target 'shop.cron.gone'"),
        ("shadow:tests.app.tasks.fail", SHADED.partition(": ")[2]),
    ],
)
def test_backfill_says_that_its_runs_execute_nothing(target: str, caution: str) -> None:
    make_job(name="hourly", schedule="0 * * * *")
    assert caution not in call("backfill", "hourly", "3h", "now", "--dry-run")[1]
    Job.objects.update(target=target)
    assert caution in call("backfill", "hourly", "3h", "now", "--dry-run")[1]
    (shown,) = document("backfill", "hourly", "3h", "now", "--dry-run")[1]["cautions"]
    assert caution in shown["message"]
    assert caution in call("backfill", "hourly", "3h", "now", "--no-wait")[1]


def test_backfill_warns_if_no_node_serves_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    make_job(name="hourly", schedule="0 * * * *")
    node = make_node(namespace="shop")
    monkeypatch.setattr(backfill_command, "_wait", lambda *_given: {"succeeded": 3})
    assert "No node that serves the job" in call("backfill", "hourly", "3h", "now")[1]
    Node.objects.filter(pk=node.pk).update(namespace="default")
    assert "No node" not in call("backfill", "hourly", "5h", "now")[1]


def test_backfill_of_a_job_with_an_invalid_schedule_blames_the_job() -> None:
    make_job(name="hourly", schedule="0 * * * *")
    for model in (Job, Cursor):
        model.objects.update(schedule="61 * * * *")
    code, message = call("backfill", "hourly", "3h", "now")
    assert (code, "START" in message) == (1, False)
    assert "schedule" in message
    assert "61" in message


def test_backfill_of_finished_job_does_not_wait_for_a_resume() -> None:
    job = make_job(name="hourly", schedule="0 * * * *")
    disable_exhausted([job.pk], "default")
    code, message = call("backfill", "hourly", "3h", "now", "--no-wait")
    assert code == 0
    assert "paused" not in message


def test_job_whose_last_occurrence_is_claimed_ahead_is_not_resumed() -> None:
    at = (database_now("default") + timedelta(seconds=8)).replace(microsecond=0)
    job = make_job(name="once", schedule=f"@at {at:%Y-%m-%dT%H:%M:%S}Z")
    make_run(job, "pending", scheduled_at=at, due_at=at)
    disable_exhausted([job.pk], "default")  # as the claim does, DCRON_LOOK_AHEAD ahead

    assert "resumed" not in call("next", "once")[1]
    call("resume", "--all", "--yes")

    assert Job.objects.get().is_finished
    assert Run.objects.filter(state="pending").count() == 1


def test_pending_run_without_reachable_broker_lacks_broker() -> None:
    run = make_run(make_idle_job(name="idle"))
    make_node(broker_unreachable_since=database_now("default"), broker_error="out of memory")
    assert run_absence.find_absence(run, read_verdict()) is Absence.BROKER
    found = run_absence.absence_for(run)
    assert found
    assert "out of memory" in found.message
    make_node("b")
    assert run_absence.find_absence(run, read_verdict()) is None


def make_ended_run(state: str, **fields: Any) -> None:
    """Create a job, a run with the idempotency key "k" and its attempt, which have ended."""
    run = make_run(make_idle_job(name="idle"), state, idempotency_key="k")
    ended = {"started_at": run.due_at, "finished_at": run.due_at, "outcome": state}
    Attempt.objects.create(run=run, number=1, token=uuid4(), worker="w", **ended, **fields)


@pytest.mark.parametrize(
    ("fields", "is_empty"),
    [({}, True), ({"log": "42 rows\n"}, False), ({"progress_done": 42}, False)],
)
def test_run_that_shows_nothing_says_what_its_log_would_contain(
    fields: dict[str, Any], is_empty: bool
) -> None:
    make_ended_run("succeeded", **fields)
    code, output = call("run", "idle", "--idempotency-key", "k")
    assert (code, output.count(str(EMPTY_LOG))) == (0, int(is_empty))
    assert str(EMPTY_LOG) not in call("run", "idle", "--idempotency-key", "k", "--json")[1]


def test_failed_run_says_that_its_task_asked_for_a_retry() -> None:
    note = refused_retry_note(1)
    make_ended_run("failed", exception_class="OSError", traceback=f"OSError: no answer\n{note}\n")
    code, output = call("run", "idle", "--idempotency-key", "k")
    assert code == 1
    assert f"idle failed. {note} Details: manage.py dcron history " in output
    assert str(EMPTY_LOG) not in output


def test_run_shows_when_next_attempt_is_due() -> None:
    job = make_idle_job(name="idle")
    soon = database_now("default") + timedelta(hours=1)
    make_run(job, "pending", attempt=2, due_at=soon, idempotency_key="k")
    code, output = call("run", "idle", "--timeout", "0s", "--idempotency-key", "k")
    assert code == 1
    (line,) = [line for line in output.splitlines() if "attempt 2" in line]
    assert line.endswith(f"{soon:%Y-%m-%d %H:%M:%S} UTC")
    assert "not started" not in line


def test_retry_that_is_due_just_now_needs_no_explanation() -> None:
    job = make_idle_job(name="idle")
    make_run(job, "pending", attempt=2, due_at=database_now("default"), idempotency_key="k")
    code, output = call("run", "idle", "--timeout", "0s", "--idempotency-key", "k")
    assert code == 1
    assert "attempt 2" not in output


def test_duration_without_unit_leads_to_seconds() -> None:
    code, message = call("run", make_idle_job(name="idle").name, "--timeout", "30")
    assert code == 2
    assert message.endswith("Did you mean 30s?")


def test_commands_report_errors_of_checks_but_no_warnings(settings: Settings) -> None:
    settings.DCRON_UNKNOWN = 1  # W005
    stderr = StringIO()
    call_command("dcron", "list", skip_checks=False, stdout=StringIO(), stderr=stderr)
    assert stderr.getvalue() == ""
    settings.DCRON_LEASE = "soon"  # E001
    with pytest.raises(SystemCheckError, match="E001") as caught:
        call_command("dcron", "list", skip_checks=False, stdout=StringIO(), stderr=stderr)
    assert caught.value.returncode == 2


@pytest.mark.parametrize(
    ("error", "is_missing"),
    [
        ("no such table: django_dcron_job", True),
        ("no such column: django_dcron_job.tags", True),
        ('relation "django_dcron_job" does not exist\nLINE 1: SELECT', True),
        ("(1146, \"Table 'shop.django_dcron_job' doesn't exist\")", True),
        ("(1054, \"Unknown column 'django_dcron_job.tags' in 'SELECT'\")", True),
        ('database "shop" does not exist', False),
        ("connection refused", False),
    ],
)
def test_missing_table_leads_to_migrate(error: str, is_missing: bool) -> None:
    assert ("manage.py migrate" in with_remedy(DatabaseError(error))) is is_missing


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("cannot execute SELECT FOR UPDATE in a read-only transaction", "writable"),
        ("(1290, 'The MariaDB server is running with the --read-only option')", "writable"),
        ("(1792, 'Cannot execute statement in a READ ONLY transaction')", "writable"),
        ("(1036, \"Table 'django_dcron_run' is read only\")", "writable"),
        ("attempt to write a readonly database", "writable"),
        ("session is read-only", "writable"),
        ("FATAL: sorry, too many clients already", "connection limit"),
        ("FATAL: remaining connection slots are reserved for superusers", "connection limit"),
        ("(1040, 'Too many connections')", "connection limit"),
        ("(1203, 'User a has more than max_user_connections')", "connection limit"),
        ("FATAL: no more connections allowed (max_client_conn)", "connection limit"),
        ('connection to server at "db-readonly.prod" failed: Connection refused', "is running"),
        ('connection to server at "read-only.db" failed: Connection refused', "is running"),
        ('FATAL: password authentication failed for user "readonly"', "settings are correct"),
    ],
)
def test_remedy_follows_from_the_message_of_the_database(error: str, remedy: str) -> None:
    assert remedy in with_remedy(DatabaseError(error))


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (1054, "manage.py migrate"),
        (1146, "manage.py migrate"),
        (1792, "writable"),
        (1114, "Free space"),
        (1040, "connection limit"),
        (1213, "Try again"),
        (1045, "settings are correct"),
    ],
)
def test_remedy_does_not_depend_on_the_language_of_mariadb(number: int, remedy: str) -> None:
    assert remedy in with_remedy(OperationalError(number, "Ein Fehler ist aufgetreten"))


@pytest.mark.postgresql
def test_remedy_does_not_depend_on_the_language_of_postgresql() -> None:
    with pytest.raises(ProgrammingError) as caught:
        Job.objects.extra(where=["nothing = 1"]).exists()
    translated = ProgrammingError("Spalte »nothing« existiert nicht")
    translated.__cause__ = caught.value.__cause__
    assert "manage.py migrate" in with_remedy(translated)


def test_nodes_without_heartbeats_in_a_read_only_database_may_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_node(heartbeat_at=database_now("default") - timedelta(hours=1))
    monkeypatch.setattr(system_health, "refuses_writes", lambda using: True)
    code, _, error = calling.call("nodes")
    assert (code, "read-only" in error, "runcron" in error) == (1, True, False)


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_nodes_are_listed_even_if_the_table_of_runs_is_locked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_idle_job(name="report")
    make_node("a")
    monkeypatch.setattr(session_limits, "READ_LOCK_TIMEOUT", timedelta(milliseconds=100))
    with keeping_open(lock_runs):
        code, output, _ = calling.call("nodes")
        assert (code, "If you stop a" in output, END_LOCK in output) == (0, True, True)
        Node.objects.update(heartbeat_at=F("heartbeat_at") - timedelta(hours=1))
        code, output, error = calling.call("nodes")
        assert (code, "expired" in output, END_LOCK in output) == (1, True, True)
        assert "No node is live, so no jobs will start." in error


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "arguments",
    [("doctor",), ("why", "report"), ("history", "report"), ("show", "report")],
    ids=lambda arguments: arguments[0],
)
def test_inspecting_command_ends_with_a_remedy_if_a_table_is_locked(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_idle_job(name="report")
    monkeypatch.setattr(session_limits, "READ_LOCK_TIMEOUT", timedelta(milliseconds=100))
    with keeping_open(lock_runs):
        code, _, error = calling.call(*arguments)
    assert (code, "django_dcron_run" in error, END_LOCK in error) == (2, True, True)
    assert has_usual_lock_limit()
