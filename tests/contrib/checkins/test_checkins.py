"""Test check-ins: the requests that Healthchecks and Sentry receive about a real run."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import sentry_sdk
from celery.signals import worker_process_shutdown
from pytest_django import Settings
from sentry_sdk.transport import Transport

import django_dcron.tasks  # noqa: F401 (connects the signal of a worker's process)
from django_dcron.contrib import checkins
from django_dcron.execution.executor import execute
from django_dcron.models import Job, Run
from django_dcron.utils.threads import DcronThread
from tests.factories import make_idle_job, make_run
from tests.logs import logged
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

MIDDLEWARE = [
    "django_dcron.execution.log_capture.capture_log",
    "django_dcron.execution.time_limit.limit_time",
    "django_dcron.contrib.checkins.check_in_healthchecks",
    "django_dcron.contrib.checkins.check_in_sentry",
]


class Pings:
    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        """The path and body of each request."""
        self.status = 200
        pings = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                pings.requests.append((self.path, body))
                self.send_response(pings.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self.thread.start()

    @property
    def paths(self) -> list[str]:
        assert checkins.sender.flush(30)
        return [urlsplit(path).path for path, _ in self.requests]


@pytest.fixture
def pings(settings: Settings) -> Iterator[Pings]:
    pings = Pings()
    settings.DCRON_MIDDLEWARE = MIDDLEWARE
    settings.DCRON_HEALTHCHECKS_URL = f"http://127.0.0.1:{pings.server.server_port}/key"
    yield pings
    pings.server.shutdown()
    pings.thread.join()
    pings.server.server_close()


def run_once(job: Job) -> Run:
    run = make_run(job, "queued")
    assert execute(run.pk, 1, worker="w")
    run.refresh_from_db()
    return run


def test_success_is_reported_with_the_run_id(pings: Pings) -> None:
    run = run_once(make_idle_job(name="Grind beans", namespace="shop", tags=["healthchecks"]))
    assert pings.paths == ["/key/shop-grind-beans/start", "/key/shop-grind-beans"]
    assert {parse_qs(urlsplit(path).query)["rid"][0] for path, _ in pings.requests} == {str(run.pk)}
    assert {parse_qs(urlsplit(path).query)["create"][0] for path, _ in pings.requests} == {"1"}


def test_job_without_the_tag_is_not_reported(pings: Pings) -> None:
    run_once(make_idle_job(tags=["sentry-like"]))
    assert pings.paths == []


def test_failure_is_reported_only_for_the_last_attempt(pings: Pings) -> None:
    again = {"max_attempts": 2, "retry_backoff": timedelta()}
    job = make_idle_job(name="roast", tags=["healthchecks"], target="tests.app.tasks.fail", **again)
    run = run_once(job)
    assert run.state == "pending"
    assert pings.paths == ["/key/roast/start", "/key/roast/log"]
    pings.requests.clear()
    assert execute(run.pk, 2, worker="w")
    run.refresh_from_db()
    assert run.state == "failed"
    assert pings.paths == ["/key/roast/start", "/key/roast/fail"]
    assert ": " in pings.requests[1][1]


def test_failing_or_unreachable_service_does_not_affect_the_run(
    pings: Pings, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_idle_job(name="grind", tags=["healthchecks"])
    pings.status = 503
    assert run_once(job).state == "succeeded"
    assert (
        pings.paths
        == ["/key/grind/start"] * checkins.MAX_TRIES + ["/key/grind"] * checkins.MAX_TRIES
    )
    assert len(logged(caplog, "check_in_lost", "HTTP Error 503")) == 2
    settings.DCRON_HEALTHCHECKS_URL = "http://127.0.0.1:9/key"
    assert run_once(job).state == "succeeded"


class Envelopes(Transport):
    """Records the check-ins that Sentry's SDK would send, after all its own processing."""

    def __init__(self) -> None:
        super().__init__()
        self.check_ins: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.check_ins += [item.payload.json for item in envelope if item.type == "check_in"]


@pytest.fixture
def sentry(settings: Settings) -> Iterator[Envelopes]:
    settings.DCRON_MIDDLEWARE = MIDDLEWARE
    envelopes = Envelopes()
    with sentry_sdk.isolation_scope() as scope:
        scope.set_client(
            sentry_sdk.Client(
                "https://key@sentry.example/1", transport=envelopes, default_integrations=False
            )
        )
        yield envelopes


def test_all_attempts_of_a_run_share_one_sentry_check_in(sentry: Envelopes) -> None:
    job = make_idle_job(
        name="roast",
        tags=["sentry"],
        target="tests.app.tasks.fail",
        max_attempts=2,
        retry_backoff=timedelta(),
        timezone="Europe/Berlin",
    )
    run = make_run(job, "queued")
    assert execute(run.pk, 1, worker="w")
    assert execute(run.pk, 2, worker="w")
    assert checkins.sender.flush(30)
    assert [each["status"] for each in sentry.check_ins] == ["in_progress", "in_progress", "error"]
    assert {each["check_in_id"] for each in sentry.check_ins} == {run.pk.hex}
    assert {each["monitor_slug"] for each in sentry.check_ins} == {"roast"}
    config = sentry.check_ins[0]["monitor_config"]
    assert config == {
        "schedule": {"type": "crontab", "value": "0 0 1 1 *"},
        "timezone": "Europe/Berlin",
    }


@pytest.mark.parametrize(
    "schedule",
    [
        "@every 5m",
        "* * * * * *",
        "0 0 L * *",
        "0 0 l * *",
        "0 0 lw * *",
        "0 0 * * FRIL",
        "H 3 * * *",
        "h(0-29) 3 * * *",
        "0 0 * * 5#2",
        "0 0 ? * 1",
        "0 0 wd#1 * *",
        "0 0 1 * *\n0 0 15 * *",
    ],
)
def test_schedule_unsupported_by_sentry_is_not_reported(schedule: str) -> None:
    assert checkins._monitor(Job(schedule=schedule)) is None


@pytest.mark.parametrize(
    "schedule", ["*/5 8-18/2 1,15 * *", "0 9 * * MON-THU", "0 9 * * wed,thu", "0 0 1 JUL *"]
)
def test_plain_schedule_is_reported_to_sentry(schedule: str) -> None:
    config = checkins._monitor(Job(schedule=schedule))
    assert config is not None
    assert config["schedule"] == {"type": "crontab", "value": schedule}


@pytest.mark.parametrize(
    ("namespace", "name", "slug"),
    [
        ("default", "grind beans", "grind-beans"),
        ("shop", "import", "shop-import"),
        ("default", "备份", r"job-[0-9a-f]{8}"),
        ("default", "a.b", r"ab-[0-9a-f]{8}"),
        ("default", "2024", r"2024-[0-9a-f]{8}"),
        ("shop", "x" * 120, r"shop-x{36}-[0-9a-f]{8}"),
    ],
)
def test_slug_has_the_format_that_services_accept(namespace: str, name: str, slug: str) -> None:
    found = checkins._slug(Job(namespace=namespace, name=name))
    assert re.fullmatch(slug, found)
    assert len(found) <= checkins.SLUG_LIMIT


def test_different_names_have_different_slugs() -> None:
    names = ("备份", "报告", "a.b", "ab", "a:b", "x" * 119, "x" * 120)
    assert len({checkins._slug(Job(name=name)) for name in names}) == len(names)


def test_missing_sentry_sdk_is_logged_and_does_not_affect_the_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_MIDDLEWARE = MIDDLEWARE
    monkeypatch.setitem(sys.modules, "sentry_sdk.crons", None)
    assert run_once(make_idle_job(tags=["sentry"])).state == "succeeded"
    assert checkins.sender.flush(30)
    assert "pip install django-dcron[sentry]" in caplog.text


def test_invalid_url_is_not_logged(
    pings: Pings, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_HEALTHCHECKS_URL = "secret-key"
    assert run_once(make_idle_job(tags=["healthchecks"])).state == "succeeded"
    assert checkins.sender.flush(30)
    assert len(logged(caplog, "check_in_lost", "ValueError")) == 2
    assert "secret-key" not in caplog.text


def test_old_and_excess_check_ins_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkins, "QUEUE_LIMIT", 2)
    monkeypatch.setattr(checkins, "atexit", SimpleNamespace(register=lambda *args: None))
    sender, started, resume = checkins.Sender(), threading.Event(), threading.Event()
    sent: list[int] = []

    def hangs() -> None:
        started.set()
        resume.wait(TIMEOUT)

    sender.put(hangs)
    assert started.wait(TIMEOUT)
    for number in range(3):
        sender.put(partial(sent.append, number))
    assert len(logged(caplog, "check_in_lost")) == 1
    assert not sender.flush(0.01)
    monkeypatch.setattr(checkins, "MAX_AGE", 0.0)
    resume.set()
    assert sender.flush(60)
    assert sent == []
    assert len(logged(caplog, "check_in_lost", f"{checkins.MAX_AGE:g} s")) == 2


def test_check_in_is_sent_later_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job isn't affected, although the system has too many threads for a while."""
    monkeypatch.setattr(checkins, "atexit", SimpleNamespace(register=lambda *args: None))
    sender, sent = checkins.Sender(), list[int]()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as crowded:
        crowded.setattr(DcronThread, "start", refuse)
        sender.put(partial(sent.append, 1))
        # The end of the process isn't delayed: without a thread, there is nothing to wait for.
        crowded.setattr(sender._waiting.all_tasks_done, "wait_for", pytest.fail)
        assert not sender.flush(TIMEOUT)
    sender.put(partial(sent.append, 2))
    assert sender.flush(TIMEOUT)
    assert sent == [1, 2]


def test_worker_process_flushes_check_ins_at_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []
    monkeypatch.setattr(checkins.sender, "flush", timeouts.append)
    worker_process_shutdown.send(sender="worker")
    assert timeouts == [checkins.EXIT_TIMEOUT]


HANGS = """
import socket, sys
import django
django.setup()
from django_dcron.contrib import checkins
silent = socket.socket()
silent.bind(("127.0.0.1", 0))
silent.listen()
checkins.TIMEOUT = 300
checkins.EXIT_TIMEOUT = 0.1
for _ in range(5):
    port = silent.getsockname()[1]
    checkins.sender.put(lambda: checkins._send(f"http://127.0.0.1:{port}/key", ""))
"""


def test_process_exits_without_waiting_for_a_hanging_service() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], timeout=TIMEOUT, env=os.environ, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


FORKS = """
import os, sys
import django
django.setup()
from django_dcron.contrib import checkins
sent = []
checkins.sender.put(lambda: sent.append("parent"))
assert checkins.sender.flush(30)
pid = os.fork()
if pid == 0:
    checkins.sender.put(lambda: sent.append("child"))
    os._exit(0 if checkins.sender.flush(30) and sent == ["parent", "child"] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_forked_process_has_its_own_sender() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], timeout=TIMEOUT, env=os.environ, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
