"""``manage.py dcron run, pause, resume, cancel, rerun, backfill``: what they do, say and end with."""

import json
import re
import signal
from datetime import timedelta
from getpass import getuser
from io import StringIO
from random import Random
from typing import Any

import pytest
from pytest_django import Settings

from django_dcron import control
from django_dcron.execution.bounded_text import BoundedText
from django_dcron.management.commands.dcron import Command
from django_dcron.management.dcron import following
from django_dcron.management.dcron.output import BAD, GOOD, ODD, QUIET, Output
from django_dcron.management.dcron.progress_bar import ProgressBar
from django_dcron.models import Job, Run
from django_dcron.models.database import database_now
from tests.conftest import StartProcess
from tests.factories import make_idle_job, make_job, make_run
from tests.management import calling

PATIENCE = 60.0
QUICK = {"DCRON_TEST_SETTINGS": json.dumps({"TICK": 0.1, "RUN_LEASE": 1})}


def call(*arguments: str) -> tuple[int, str]:
    """Exit code, and all it said."""
    code, out, error = calling.call(*arguments)
    return code, out + error


def document(*arguments: str) -> tuple[int, Any]:
    """Exit code and JSON."""
    answer = calling.call(*arguments, "--json")
    return answer.code, answer.json


RUN_CALM = """
import signal
from django.core.management import execute_from_command_line
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are deaf to Ctrl-C, and so what they start
execute_from_command_line(["manage.py", "dcron", "run", "calm"])
"""


@pytest.fixture(autouse=True)
def _left_to_the_node(settings: Settings, transactional_db: None) -> None:
    settings.DCRON_DISPATCHER = "thread"


# --- run --------------------------------------------------------------------------------------------------------------


def test_a_run_is_watched_to_its_end(start_runcron: StartProcess) -> None:
    make_idle_job(name="good", target="tests.app.tasks.report_progress", args=[0.8])
    make_idle_job(name="bad", target="tests.app.tasks.fail", kwargs={"message": "no paper"})
    start_runcron("--embedded", "--name", "a", env=QUICK).wait_for_log("a is up as", PATIENCE)

    code, said = call("run", "good", "--timeout", "60s")
    assert code == 0, said
    shapes = [
        r"good: run [0-9a-f-]{36}",
        r"attempt 1 runs on \S+/threads",
        r"three rows",
        r"progress: 3 of 10 rows",
        r"attempt 1 succeeded after .+",
        r"good succeeded",
    ]
    lines = said.splitlines()
    assert len(lines) == len(shapes), said
    assert all(re.fullmatch(shape, line) for shape, line in zip(shapes, lines, strict=True)), said

    code, said = call("run", "bad", "--timeout", "60s")
    run = Run.objects.get(job__name="bad")
    assert code == 1
    assert "\nattempt 1 failed after " in said
    assert ": RuntimeError: no paper\n" in said
    assert re.search(rf"^bad failed.*\. More: manage.py dcron history {run.pk}$", said, re.MULTILINE)

    code, told = document("run", "good", "--args", "[0]", "--timeout", "60s")
    assert code == 0
    assert (told["run"]["state"], told["run"]["args"], told["run"]["trigger"]) == ("succeeded", [0], "manual")


def test_ctrl_c_ends_the_waiting_and_not_the_run(start_process: StartProcess) -> None:
    make_idle_job(name="calm")
    waiting = start_process("dcron-run", "-c", RUN_CALM)
    waiting.wait_for_log("calm: run ", PATIENCE)
    waiting.send(signal.SIGINT)
    assert waiting.wait(PATIENCE) == 1
    run = Run.objects.get()
    assert f"Waits no longer; the run goes on. manage.py dcron cancel {run.pk} ends it." in waiting.log
    assert "Traceback" not in waiting.log
    assert run.state in ("pending", "queued")


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("pending", "", "waits: no node runs (manage.py runcron)\n"),
        ("queued", "", "waits: it is handed over, and no worker has taken it yet\n"),
        ("waiting", "one is under way", "waits: one is under way\n"),
    ],
)
def test_a_run_that_does_not_start_says_why(
    state: str, reason: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PATIENCE", 0)
    job = make_idle_job(name="idle")
    run = make_run(job, state, reason=reason, idempotency_key="k")
    code, output = call("run", "idle", "--timeout", "0s", "--idempotency-key", "k")
    assert code == 1
    assert output.count(said) == 1, output
    assert output.endswith(f"Waits no longer; the run goes on. manage.py dcron cancel {run.pk} ends it.")


def test_a_run_that_nobody_waits_for() -> None:
    job = make_idle_job(name="idle", target="tests.app.tasks.echo")
    code, said = call(
        "run", "idle", "--no-wait", "--args", "[1]", "--kwargs", '{"a": 2}', "--idempotency-key", "k"
    )
    run = Run.objects.get(job=job)
    assert (code, said) == (0, f"idle: run {run.pk}\n")
    assert (run.args, run.kwargs, run.trigger) == ([1], {"a": 2}, "manual")
    code, told = document("run", "idle", "--no-wait", "--idempotency-key", "k")
    assert (code, told["run"]["id"]) == (0, str(run.pk))
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing",), "There is no job 'nothing'"),
        (("idle", "--args", "{}"), "--args '{}' cannot be read (allowed: a JSON list, such as [1, 2])."),
        (("idle", "--kwargs", "x"), "--kwargs 'x' cannot be read (allowed: a JSON object"),
        (("idle", "--kwargs", '{"no": 1}'), "'no' is no parameter"),
        (("idle", "--kwargs", '{"seconds": NaN}'), "--kwargs: It cannot be stored: Out of range"),
        (("idle", "--args", '["\\u0000"]'), "--args: It cannot be stored: it has a NUL"),
        (("idle", "--args", '["\\ud800"]'), "--args: It cannot be stored: "),
        (("idle", "--args", "[" * 40 + "]" * 40), "--args: It cannot be stored: it is nested too deep"),
        (("idle", "--args", "[" * 10_000), "cannot be read (allowed: a JSON list"),
        (("idle", "--idempotency-key", ""), "idempotency_key"),
        (("idle", "--timeout", "1"), "--timeout '1' is not a duration"),
    ],
)
def test_a_run_that_makes_no_sense(arguments: tuple[str, ...], said: str) -> None:
    make_idle_job(name="idle", target="tests.app.tasks.slow")
    code, output = call("run", *arguments)
    assert code == 2
    assert said in output
    assert not Run.objects.exists()


@pytest.mark.parametrize("style", ["", GOOD, BAD, ODD, QUIET])
def test_on_a_terminal_there_is_a_bar_and_lines_pass_above_it(style: str) -> None:
    command = Command(stdout=StringIO(), force_color=True)
    output = Output(command, {"force_color": True})
    with ProgressBar(output) as bar:
        bar.show(3, 10, "rows [bold]")
        bar.line("said \x1b[31m[red]", style)
        bar.show(10, 10, "rows")
    drawn = command.stdout.getvalue()  # type: ignore[attr-defined]
    assert "rows [bold]" in drawn
    assert "said \\x1b[31m[red]" in drawn
    assert "10/10" in drawn


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 40, 1000])
def test_of_a_log_nothing_is_lost_or_told_twice(limit: int, settings: Settings) -> None:
    """Each character stands for its place. Whatever there was to see is told, in order and once, however much was left out
    between two looks."""
    settings.DCRON_LOG_LIMIT = limit
    for seed in range(100):
        random = Random(seed)
        log, told, heard, seen, written = BoundedText(limit), "", "", set(), 0
        for _ in range(random.randrange(1, 12)):
            length = random.choice((0, 1, 3, 10, 60))
            log.write("".join(chr(0x4E00 + written + n) for n in range(length)))
            written += length
            if random.random() < 0.6:
                heard += following.news(told, log.getvalue())
                told = log.getvalue()
                seen |= set(following.MARK.sub("", told, count=1))
        places = re.sub(r"[^\u4e00-\u9fff]", "", heard)
        assert list(places) == sorted(set(places)), seed
        assert set(places) == {char for char in seen if char >= "\u4e00"}, seed
        if written <= limit and told == log.getvalue():
            assert heard == told, seed


# --- pause and resume -------------------------------------------------------------------------------------------------


def test_jobs_are_paused_and_resumed_together() -> None:
    first, second = make_job(name="first"), make_job(name="second", namespace="shop")
    code, said = call("pause", "first", "shop/second", "--reason", "moving", "--until", "+2h")
    assert code == 0
    assert re.fullmatch(
        rf"first: paused until .+: moving \({getuser()}\)\nshop/second: paused until .+\)\n", said
    ), said
    for job in (first, second):
        job.refresh_from_db()
        assert not job.enabled
        assert job.pause_reason == f"moving ({getuser()})"
        assert job.paused_until is not None
    code, told = document("resume", "first", "shop/second")
    assert code == 0
    assert [(result["job"], result["done"]) for result in told["results"]] == [
        ("first", True),
        ("shop/second", True),
    ]
    assert all(result["next"] for result in told["results"])
    assert not Job.objects.filter(enabled=False).exists()
    assert call("resume", "first")[1].startswith("first: was not paused; next at ")


def test_who_paused_it_is_said_without_a_reason_too() -> None:
    make_job(name="first")
    assert call("pause", "first") == (0, f"first: paused until it is resumed: by {getuser()}\n")


def test_a_refusal_keeps_no_other_job_from_it() -> None:
    over, job = make_job(name="over"), make_job(name="fine")
    call("pause", "fine", "over")
    Job.objects.filter(pk=over.pk).update(schedule="@at 2020-01-01T00:00")
    code, said = call("resume", "over", "fine")
    assert code == 1
    assert said.startswith("over: refused: over cannot be resumed: ")
    assert said.endswith("1 of 2 refused.")
    job.refresh_from_db()
    assert job.enabled
    code, told = document("resume", "over", "fine")
    assert code == 1
    assert [result["done"] for result in told["results"]] == [False, True]
    assert "cannot be resumed" in told["results"][0]["error"]


def test_a_name_that_is_none_keeps_all_from_it() -> None:
    make_job(name="fine")
    code, said = call("pause", "fine", "nothing")
    assert code == 2
    assert "There is no job 'nothing'" in said
    assert Job.objects.get().enabled
    assert call("pause", "fine", "--until", "soon")[0] == 2
    code, said = call("pause", "fine", "--until", "2h")
    assert (code, said) == (2, "--until '2h' has passed (how long ahead is written +2h).")
    assert Job.objects.get().enabled


# --- cancel and rerun -------------------------------------------------------------------------------------------------


def test_cancel_a_run_or_all_of_a_job() -> None:
    job, other = make_idle_job(name="many"), make_idle_job(name="other")
    alone = make_run(other)
    pending, running, ended = (make_run(job, state) for state in ("pending", "running", "succeeded"))
    code, said = call("cancel", str(alone.pk), "--reason", "wrong month")
    assert (code, said) == (0, f"{alone} ({alone.pk}): cancelled\n")
    alone.refresh_from_db()
    assert (alone.state, alone.reason) == ("cancelled", f"wrong month ({getuser()})")
    code, said = call("cancel", "many")
    assert code == 0
    expected = [f"{pending} ({pending.pk}): cancelled", f"{running} ({running.pk}): asked to stop"]
    assert sorted(said.splitlines()) == sorted(expected)
    running.refresh_from_db()
    assert running.cancel_requested_at is not None
    ended.refresh_from_db()
    assert ended.state == "succeeded"
    assert call("cancel", "other") == (0, "There is nothing to cancel: no run is unfinished.\n")
    assert document("cancel", "other") == (0, {"version": 1, "results": []})
    code, said = call("cancel", str(ended.pk))
    assert code == 1
    assert "refused: " in said
    assert "only an unfinished run can be cancelled" in said
    assert call("cancel", "nothing")[0] == 2
    assert call("cancel", "0" * 12)[0] == 2


def test_rerun() -> None:
    job = make_idle_job(name="idle")
    ended, pending = make_run(job, "failed"), make_run(job)
    code, said = call("rerun", str(ended.pk), str(pending.pk))
    made = Run.objects.get(rerun_of=ended)
    assert code == 1
    assert said.startswith(f"{ended} ({ended.pk}): runs again as {made.pk}\n")
    assert "only a finished run can be run again" in said
    code, told = document("rerun", str(ended.pk))
    assert code == 0
    assert Run.objects.filter(pk=told["results"][0]["made"], rerun_of=ended).exists()


# --- backfill ---------------------------------------------------------------------------------------------------------


def test_backfill_shows_makes_and_waits(start_runcron: StartProcess) -> None:
    job = make_job(name="hourly", schedule="0 * * * *")
    now = database_now("default")
    window = ["hourly", (now - timedelta(hours=5)).isoformat(), (now - timedelta(hours=2)).isoformat()]
    code, said = call("backfill", *window, "--dry-run")
    lines = said.splitlines()
    assert code == 0
    assert len(lines) == 4
    assert lines[-1] == "hourly: 3 runs would be made."
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:00:00 UTC", line) for line in lines[:-1])
    assert not Run.objects.exists()

    start_runcron("--embedded", "--name", "a", env=QUICK).wait_for_log("a is up as", PATIENCE)
    code, said = call("backfill", *window, "--limit", "2")
    assert code == 0, said
    assert said.startswith("hourly: 2 runs made.\nThere may be more: START 20")
    assert said.endswith("progress: 2 of 2\n2 succeeded.\n")
    assert Run.objects.filter(job=job, state="succeeded", trigger="backfill").count() == 2

    Run.objects.order_by("scheduled_at").first().delete()  # type: ignore[union-attr]
    Job.objects.filter(pk=job.pk).update(target="tests.app.tasks.fail")
    code, told = document("backfill", *window, "--over-pruned")
    assert code == 1
    assert (told["have_run"], told["ended"], len(told["occurrences"])) == (1, {"failed": 2}, 2)
    assert call("backfill", *window) == (0, "hourly: 0 runs made.\n3 other occurrences have a run already.\n")


def test_a_backfill_that_nobody_waits_for() -> None:
    make_job(name="hourly", schedule="0 * * * *", timezone="Asia/Kolkata")
    code, told = document("backfill", "hourly", "3h", "now", "--no-wait")
    assert code == 0
    assert len(told["occurrences"]) == Run.objects.filter(state="waiting").count() == 3
    assert told["ended"] is None
    assert all(occurrence.endswith(":30:00Z") for occurrence in told["occurrences"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("now", "3h"), 2, "start: "),
        (("yesterday", "now"), 2, "START 'yesterday' is neither a time such as "),
        (("3h", "2200-01-01"), 2, "END '2200-01-01' is out of range"),
    ],
)
def test_a_backfill_that_makes_no_sense(arguments: tuple[str, ...], code: int, said: str) -> None:
    make_job(name="hourly", schedule="0 * * * *")
    answer = call("backfill", "hourly", *arguments)
    assert answer[0] == code
    assert said in answer[1]
    assert not Run.objects.exists()


def test_a_backfill_that_is_held_back_says_so_and_ctrl_c_ends_the_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    job = make_job(name="hourly", schedule="0 * * * *")
    control.pause(job)
    monkeypatch.setattr("django_dcron.management.dcron.backfill.time.sleep", interrupted)
    code, said = call("backfill", "hourly", "3h", "now")
    assert code == 1
    assert "The job is paused: they run when it is resumed.\nNo node runs (manage.py runcron)" in said
    assert said.endswith(
        "Waits no longer; the runs go on. manage.py dcron cancel hourly ends all that are unfinished."
    )
    assert Run.objects.filter(state="waiting").count() == 3
