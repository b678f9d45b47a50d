"""``manage.py runcron`` as supervisors use it: options, signals, exit codes, log lines."""

import re
import signal
from datetime import timedelta

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from django.core.management.base import CommandParser
from django.db import OperationalError
from pytest_django import Settings

from django_dcron.conf import settings as dcron
from django_dcron.db.clock import ClusterClock
from django_dcron.locks.database import DatabaseLock
from django_dcron.management.dcron import node_arguments
from django_dcron.models import LockLease, Node, Run
from django_dcron.scheduler.membership import Membership
from tests import services
from tests.conftest import StartProcess
from tests.factories import make_idle_job, make_job, make_run
from tests.waiting import wait_until

WITHOUT_SERVICES = {"DJANGO_SETTINGS_MODULE": "tests.end_to_end.settings_without_services"}


def succeeded() -> int:
    return Run.objects.filter(state="succeeded").count()


def no_node_or_lease_is_left() -> bool:
    return not Node.objects.exists() and not LockLease.objects.held().exists()


# --- in this process ----------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_once_with_embedded_executes_due_runs_without_redis(
    redis_server: services.Server, settings: Settings
) -> None:
    redis_server.kill()
    make_job()
    due = make_run(make_idle_job())
    call_command("runcron", once=True, embedded=True, name="x")
    due.refresh_from_db()
    assert due.state == "succeeded"
    assert re.search(r"/threads/\d+$", due.attempts.get().worker)
    assert no_node_or_lease_is_left()
    assert not hasattr(settings, "DCRON_LOCK"), (
        "--embedded changes settings only during the command"
    )


@pytest.mark.django_db(transaction=True)
def test_embedded_restores_the_settings_of_the_project(settings: Settings) -> None:
    settings.DCRON_LOCK, settings.DCRON_DISPATCHER = "redis", "celery"
    call_command("runcron", once=True, embedded=True)
    assert (django_settings.DCRON_LOCK, django_settings.DCRON_DISPATCHER) == ("redis", "celery")


@pytest.mark.django_db(transaction=True)
def test_runcron_once_dispatches_due_runs_to_celery(redis_server: services.Server) -> None:
    due = make_run(make_idle_job())
    call_command("runcron", once=True, name="x")
    due.refresh_from_db()
    assert (due.state, due.deliveries) == ("queued", 1)
    assert no_node_or_lease_is_left()


@pytest.mark.django_db(transaction=True)
def test_for_option_ends_the_node_after_the_given_time(redis_server: services.Server) -> None:
    call_command("runcron", seconds=0.05)
    assert no_node_or_lease_is_left()


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf"])
def test_invalid_duration_is_refused(value: str) -> None:
    with pytest.raises(CommandError, match=f"'{value}'"):
        call_command("runcron", "--for", value)


@pytest.mark.parametrize(("option", "limit"), [("--name", 120), ("--namespace", 64)])
def test_too_long_name_is_refused(option: str, limit: int) -> None:
    with pytest.raises(CommandError, match=f"{option}.* {limit} "):
        call_command("runcron", option, "x" * (limit + 1))


@pytest.mark.parametrize("option", ["--name", "--namespace"])
def test_name_with_invalid_encoding_is_refused(option: str) -> None:
    """Neither the database nor a scrape can store bytes of another encoding."""
    with pytest.raises(CommandError, match=r"'\\udcff'.*UTF-8"):
        call_command("runcron", option, "\udcff")


@pytest.mark.django_db(transaction=True)
def test_unreachable_database_at_the_start_is_an_error(
    redis_server: services.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: Membership) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(Membership, "register", gone)
    with pytest.raises(CommandError, match="connection refused"):
        call_command("runcron")


@pytest.mark.django_db(transaction=True)
def test_exit_code_reports_a_dead_thread(
    redis_server: services.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.scheduler.tick.Ticker.tick", lambda *args, **options: 1 / 0)
    with pytest.raises(SystemExit) as ended:
        call_command("runcron")
    assert ended.value.code == 1


# --- real processes -----------------------------------------------------------------------------


def test_embedded_node_needs_neither_redis_nor_celery(
    start_runcron: StartProcess, redis_server: services.Server
) -> None:
    """The system checks, which elsewhere report a missing Redis, don't prevent the start either."""
    redis_server.kill()
    job = make_job()
    node = start_runcron("--embedded", "--name", "small", env=WITHOUT_SERVICES)
    wait_until(lambda: succeeded() >= 2, what="two succeeded runs")
    node.terminate()
    assert node.wait() == 0
    assert set(Run.objects.values_list("job_id", flat=True)) == {job.pk}
    assert not Run.objects.filter(state__in=["queued", "running"]).exists()
    assert no_node_or_lease_is_left()


def test_log_lines_have_the_documented_format(start_runcron: StartProcess) -> None:
    make_job(overlap_policy="allow")  # no run is skipped on a slow machine
    node = start_runcron("--embedded", "--name", "berlin-1")
    wait_until(lambda: succeeded() >= 1, what="a succeeded run")
    node.terminate()
    assert node.wait() == 0
    line = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO    (.+)$")
    message = [found[1] for text in node.log.splitlines() if (found := line.match(text))]
    assert len(message) == len(node.log.splitlines()), node.log
    message = [text for text in message if "node stopping: " not in text]  # if a run was executing
    shapes = [
        r"shards changed: node=berlin-1 shards=64/64",
        r"node started: node=berlin-1 id=berlin-1-[0-9a-f]{8} pid=\d+",
        r"tick report: node=berlin-1 agenda=\d+ claimed=\d+.*",
        r"run succeeded: job=job-\d+ attempt=1/1",
        r"shards changed: node=berlin-1 shards=0/64",
        r"node stopped: node=berlin-1",
    ]
    assert all(any(re.fullmatch(shape, text) for shape in shapes) for text in message), message
    assert all(any(re.fullmatch(shape, text) for text in message) for shape in shapes), message


def test_for_option_ends_a_real_process_cleanly(start_runcron: StartProcess) -> None:
    node = start_runcron("--for", "0.5")
    assert node.wait() == 0
    assert no_node_or_lease_is_left()


def test_sigterm_drains_and_lets_running_runs_finish(start_runcron: StartProcess) -> None:
    """A run that waits for a free thread isn't lost either: the next node gets it at once."""
    slow = make_idle_job(target="tests.app.tasks.slow", args=[1.0])
    due = make_run(slow)
    node = start_runcron("--embedded", "--name", "a")
    wait_until(lambda: Run.objects.filter(state="running").exists(), what="the run to start")
    node.terminate()
    assert node.wait() == 0
    due.refresh_from_db()
    assert due.state == "succeeded"
    assert no_node_or_lease_is_left()
    assert f"node stopping: node=a running=1 jobs={slow.name};" in node.log


def test_second_signal_ends_the_node_at_once(start_runcron: StartProcess) -> None:
    stuck = make_run(make_idle_job(target="tests.app.tasks.slow", args=[300.0]))
    node = start_runcron("--embedded", "--name", "a")
    wait_until(lambda: Run.objects.filter(state="running").exists(), what="the run to start")
    node.terminate()
    wait_until(no_node_or_lease_is_left, what="the drain to wait for the running run")
    assert node.running

    def ended() -> bool:
        # This is repeated because two signals in quick succession count as one.
        node.send(signal.SIGINT)
        return not node.running

    wait_until(ended, what="the node to exit", interval=0.2)
    assert node.exit_code == 3
    assert "node exits at once: node=a" in node.log
    stuck.refresh_from_db()
    assert stuck.state == "running", "the run is rescued later, as after a kill"


def test_shards_of_a_stopped_node_move_before_the_next_heartbeat(
    start_runcron: StartProcess,
) -> None:
    """The next regular heartbeat would be due in 20 seconds."""
    long_lease = {"DCRON_TEST_SETTINGS": '{"LEASE": 60}'}
    a, b = (start_runcron("--embedded", "--name", name, env=long_lease) for name in "ab")
    wait_until(
        lambda: a.log.count("shards changed: ") and b.log.count("shards changed: "),
        30,
        what="both nodes to lead shards",
    )
    b.terminate()
    assert b.wait() == 0
    wait_until(
        lambda: "shards=64/64" in a.log.splitlines()[-1],
        10,
        what="the other node to lead all shards",
    )
    a.terminate()
    assert a.wait() == 0


def test_runcron_once_logs_that_another_node_leads_all_shards(
    start_runcron: StartProcess, settings: Settings
) -> None:
    """The other node doesn't beat meanwhile, so it doesn't share its shards with the new node."""
    settings.DCRON_LEASE = timedelta(hours=1)
    other = Membership("a", "", DatabaseLock(), ClusterClock())
    other.register()
    assert len(other.shards) == dcron.SHARDS
    once = start_runcron("--embedded", "--once", "--name", "cron")
    assert once.wait() == 0
    assert "no shards led, other nodes do the work: node=cron" in once.log
    assert "tick report" not in once.log


def test_node_serves_only_its_namespace(start_runcron: StartProcess) -> None:
    served, other = make_job(namespace="shop"), make_job(namespace="billing")
    node = start_runcron("--embedded", "--namespace", "shop")
    wait_until(lambda: succeeded() >= 1, what="a succeeded run")
    assert Node.objects.get().namespace == "shop"
    node.terminate()
    assert node.wait() == 0
    assert served.runs.exists()
    assert not other.runs.exists()


def test_node_does_not_start_on_an_unmigrated_database(start_process: StartProcess) -> None:
    node = start_process(
        "runcron", "-m", "django", "runcron", env={"DCRON_TEST_DATABASE_NAME": _empty_database()}
    )
    assert node.wait() == 1
    assert "CommandError: can't start: " in node.log
    assert "manage.py migrate" in node.log.rpartition("can't start: ")[2]


def _empty_database() -> str:
    return {"sqlite": ":memory:", "postgresql": "postgres", "mariadb": "mysql"}[
        django_settings.DATABASE
    ]


def test_no_run_starts_before_its_due_time(start_runcron: StartProcess) -> None:
    make_job()
    node = start_runcron("--embedded")
    wait_until(lambda: succeeded() >= 2, what="two succeeded runs")
    node.terminate()
    assert node.wait() == 0
    # A process knows the database's clock to within half a round trip and some milliseconds.
    tolerance = timedelta(milliseconds=20)
    for run in Run.objects.filter(state="succeeded"):
        assert run.started_at is not None
        assert run.started_at >= run.due_at - tolerance


@pytest.mark.parametrize(("text", "seconds"), [("0.5", 0.5), ("90s", 90), ("1h30m", 5400)])
def test_duration_is_seconds_or_text(text: str, seconds: float) -> None:
    parser = CommandParser(prog="runcron")
    node_arguments.define(parser)
    assert parser.parse_args(["--for", text]).seconds == seconds
