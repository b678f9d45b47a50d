"""Test that ``DCRON_AUTOSTART`` starts nodes in the processes of web servers only."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.db import OperationalError
from pytest_django import Settings

from django_dcron import autostart, checks
from django_dcron.autostart import AutostartState
from django_dcron.conf import settings as dcron
from tests.conftest import StartProcess
from tests.docs.test_documents import ROOT
from tests.end_to_end.new_project import NewProject
from tests.waiting import TIMEOUT, wait_until

STATE = "from django_dcron.autostart import autostart; print(autostart.state.value)"
TESTS = """
from django.test import LiveServerTestCase

class BakeryTests(LiveServerTestCase):
    def test_idle(self):
        import bakery.asgi, bakery.wsgi
        from django.core.wsgi import get_wsgi_application
        from django_dcron.autostart import autostart
        get_wsgi_application()
        self.assertEqual(autostart.state.value, "idle")
"""
PREFORK = """
import os, signal, sys

from bakery.wsgi import application
from django_dcron.autostart import autostart

children = []
for _ in range(2):
    if not (child := os.fork()):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            while True:
                signal.pause()
        finally:
            sys.exit(0)
    children.append(child)
print("children", *children, autostart.state.value, flush=True)
signal.signal(signal.SIGTERM, lambda *_: [os.kill(child, signal.SIGTERM) for child in children])
for child in children:
    os.waitpid(child, 0)
"""
SERVER = """
import sys
from wsgiref.simple_server import make_server

from bakery.wsgi import application

make_server("127.0.0.1", int(sys.argv[1]), application).serve_forever()
"""
FORKS = """
import ctypes, json, os, signal, subprocess, sys, threading

from django.conf import settings

settings.configure(DCRON_AUTOSTART=True, INSTALLED_APPS=[], USE_TZ=True)

from django_dcron import autostart
from django_dcron.autostart import AutostartState as State

autostart.GRACE = 3600.0
node = threading.Event()
starter = autostart.Autostart(lambda _: node.set())
os.register_at_fork(
    before=starter.before_fork,
    after_in_parent=starter.after_fork_in_parent,
    after_in_child=starter.after_fork_in_child,
)
gunicorn = {"__name__": "gunicorn.arbiter", "os": os}
exec("def spawn_worker(): return os.fork()", gunicorn)
handler = lambda: signal.getsignal(signal.SIGTERM)

def in_child(check, fork=os.fork):
    if not (child := fork()):
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def is_waiting():
    return starter.state is State.PRELOADED and starter._thread is None

def is_armed():
    return starter.state is State.ARMED and starter._thread.is_alive()

def starts():
    starter.request()
    return node.wait(180) and starter.state is State.STARTED

starter._arm()
before_fork = handler()
subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: None)
seen = {
    "a helper gets no node": in_child(is_waiting),
    "SIGTERM ends a helper": in_child(lambda: handler() is signal.SIG_DFL),
    "a forked server gets a node": in_child(starts),
    "a worker of gunicorn gets a node": in_child(
        lambda: is_armed() and handler() is before_fork,
        gunicorn["spawn_worker"],
    ),
    "a worker that C forks gets a node": in_child(starts, ctypes.PyDLL(None).fork),
    "the parent still waits": is_armed(),
    "the parent handles SIGTERM": callable(before_fork) and handler() is before_fork,
    "the parent gets a node": starts(),
    "a later helper gets no node": in_child(lambda: starter.state is State.IDLE),
    "a child that C forks leaves the parent's node alone when it ends": in_child(
        lambda: starter.stop() or not starter.stopping.is_set(), ctypes.PyDLL(None).fork
    ),
    "a worker that C forks later gets a node": in_child(
        lambda: node.clear() or starts(), ctypes.PyDLL(None).fork
    ),
}
print(json.dumps(seen))
"""
UVICORN = """
import signal

from django.conf import settings

settings.configure()

from django_dcron.autostart import _exit_on_sigterm

class Server:
    should_exit = captured = False

    def handle_exit(self, *_):
        self.should_exit = self.captured = True

Server.__module__ = "uvicorn.server"
server = Server()
signal.signal(signal.SIGTERM, server.handle_exit)
_exit_on_sigterm()
signal.raise_signal(signal.SIGTERM)
print(server.should_exit, server.captured)
"""


GRIND = """
import threading
from django_dcron import cron

@cron("* * * * * *")
def grind():
    threading.Event().wait()
"""

LEAVES = """
import sys, threading
from django.conf import settings

settings.configure(DCRON_AUTOSTART=True, INSTALLED_APPS=[], USE_TZ=True)

from django_dcron import autostart

class Node(threading.Thread):
    def join(self, timeout=None):
        if {interrupted}:
            raise KeyboardInterrupt

autostart.RUNSERVER_STOP_TIMEOUT = autostart.QUIET_STOP
starter = autostart.Autostart(print)
starter._thread = Node(target=threading.Event().wait)
starter._thread.start()
starter.running_jobs = lambda: "running=1 jobs=grind"
starter._in_runserver = {in_runserver}
autostart._at_exit(starter.stop)
sys.exit(3)
"""


@pytest.fixture
def project(tmp_path: Path) -> NewProject:
    project = NewProject.create(tmp_path)
    project.add_setting("DCRON_AUTOSTART = True")
    return project


@pytest.fixture
def migrated(project: NewProject) -> NewProject:
    project.manage("migrate", "--verbosity", "0")
    return project


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def pids(project: NewProject) -> set[int]:
    return {int(name.rsplit("-", 1)[1]) for name in project.nodes()}


def run_script(script: str) -> str:
    """Run ``script`` in a process that may fork."""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_runserver_with_autoreload_starts_a_node_only_in_the_child(
    migrated: NewProject, start_process: StartProcess
) -> None:
    manage = str(migrated.directory / "manage.py")
    server = start_process("runserver", manage, "runserver", free_port(), env=migrated.env)
    wait_until(migrated.succeeded, what="a succeeded run")
    [child] = pids(migrated)
    assert child != server.pid
    server.wait_for_log("node started: node=")
    os.kill(child, signal.SIGTERM)
    assert server.wait() == 0
    assert pids(migrated) == set(), "the node left cleanly"
    assert migrated.rows("SELECT * FROM django_dcron_run WHERE state = 'running'") == []


@pytest.mark.nightly
def test_runserver_without_autoreload_starts_a_node(
    migrated: NewProject, start_process: StartProcess
) -> None:
    manage = str(migrated.directory / "manage.py")
    server = start_process(
        "runserver", manage, "runserver", "--noreload", free_port(), env=migrated.env
    )
    wait_until(migrated.succeeded, what="a succeeded run")
    assert pids(migrated) == {server.pid}
    server.terminate()
    assert server.wait() == 0
    assert pids(migrated) == set()


@pytest.mark.nightly
def test_code_change_moves_the_node_to_the_new_child(
    migrated: NewProject, start_process: StartProcess
) -> None:
    manage = str(migrated.directory / "manage.py")
    server = start_process("runserver", manage, "runserver", free_port(), env=migrated.env)
    wait_until(migrated.succeeded, what="a succeeded run")
    [first] = pids(migrated)
    with (migrated.directory / "bakery" / "cron.py").open("a") as source:
        source.write("\n# changed\n")
    wait_until(lambda: pids(migrated) - {first}, what="the node of the new child")
    assert first not in pids(migrated), "the old child left before it exited"
    assert server.pid not in pids(migrated)
    [child] = pids(migrated)
    os.kill(child, signal.SIGTERM)
    server.wait()
    assert pids(migrated) == set()


@pytest.mark.nightly
def test_long_job_does_not_prevent_a_reload(
    migrated: NewProject, start_process: StartProcess
) -> None:
    source = migrated.directory / "bakery" / "cron.py"
    source.write_text(GRIND)
    manage = str(migrated.directory / "manage.py")
    server = start_process("runserver", manage, "runserver", free_port(), env=migrated.env)
    running = "SELECT * FROM django_dcron_run WHERE state = 'running'"
    wait_until(lambda: migrated.rows(running), what="a running run")
    [first] = pids(migrated)
    source.write_text(GRIND.replace("grind", "knead"))
    wait_until(lambda: pids(migrated) - {first}, what="the node of the new child")
    server.wait_for_log("attempts are lost: running=1 jobs=grind")
    assert "Traceback" not in server.log
    [child] = pids(migrated)
    os.kill(child, signal.SIGTERM)
    assert server.wait() == 0


@pytest.mark.nightly
def test_preloading_server_starts_nodes_only_in_its_workers(
    migrated: NewProject, start_process: StartProcess
) -> None:
    """Like gunicorn with ``preload_app``, the module loads the application and then forks."""
    script = migrated.directory / "prefork.py"
    script.write_text(PREFORK)
    start = f"import runpy; runpy.run_path({str(script)!r}, run_name='gunicorn.arbiter')"
    server = start_process("prefork", "-c", start, env=migrated.env)
    server.wait_for_log("children")
    _, first, second, state = server.log.split()[:4]
    assert state == AutostartState.PRELOADED.value
    wait_until(lambda: len(pids(migrated)) == 2, what="two nodes")
    assert pids(migrated) == {int(first), int(second)}
    wait_until(migrated.succeeded, what="a succeeded run")
    server.terminate()
    assert server.wait() == 0
    assert pids(migrated) == set()


@pytest.mark.nightly
def test_wsgi_server_starts_a_node_without_any_request(
    migrated: NewProject, start_process: StartProcess
) -> None:
    script = migrated.directory / "server.py"
    script.write_text(SERVER)
    server = start_process("server", str(script), free_port(), env=migrated.env)
    wait_until(migrated.succeeded, what="a succeeded run")
    server.terminate()
    assert server.wait() == 0
    assert pids(migrated) == set()


def test_other_processes_start_no_node(project: NewProject) -> None:
    (project.directory / "bakery" / "tests.py").write_text(TESTS)
    project.manage("test")
    shell = project.manage("shell", "-v0", "-c", f"import bakery.wsgi, bakery.asgi; {STATE}")
    assert shell.split()[-1] == AutostartState.IDLE.value
    setup = f"import django; django.setup(); {STATE}"
    done = project.python("-c", f"{setup}; import bakery.asgi; {STATE}")
    assert done.stdout.split() == [AutostartState.IDLE.value, AutostartState.ARMED.value], (
        done.stderr
    )


def test_only_forked_servers_and_workers_start_a_node() -> None:
    seen = json.loads(run_script(FORKS))
    assert seen
    assert [what for what, is_so in seen.items() if not is_so] == []


def test_uvicorn_exits_normally_after_sigterm() -> None:
    """Otherwise it raises the signal again, and the node wouldn't drain."""
    assert run_script(UVICORN).split() == ["True", "False"]


def test_node_stops_at_exit_even_in_a_python_without_the_private_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[object] = []
    monkeypatch.delattr(threading, "_register_atexit")
    monkeypatch.setattr(autostart.atexit, "register", registered.append)
    autostart._at_exit(print)
    assert registered == [print]


@pytest.mark.parametrize("in_runserver", [False, True])
def test_server_logs_that_it_waits_for_its_node(
    in_runserver: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reload of ``runserver`` waits for running jobs. Without a warning, it seems to hang."""
    monkeypatch.setattr(autostart, "QUIET_STOP", 0.0)
    ended = threading.Event()
    caplog.handler.addFilter(lambda record: ended.set() or True)
    starter = autostart.Autostart(lambda _: None)
    starter._thread = threading.Thread(target=ended.wait, args=[TIMEOUT])
    starter._thread.start()
    starter.running_jobs = lambda: "running=1 jobs=grind"
    starter._in_runserver = in_runserver
    starter.stop()
    assert not starter._thread.is_alive()
    assert [record.__dict__["event"] for record in caplog.records] == ["autostart_stopping"]
    assert "jobs=grind" in caplog.text
    assert ("kills" in caplog.text) is not in_runserver
    starter.stop()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("interrupted", [False, True])
def test_runserver_exits_without_jobs_that_do_not_end(interrupted: bool) -> None:
    """It keeps the exit code, because 3 makes ``runserver`` reload."""
    script = LEAVES.format(interrupted=interrupted, in_runserver=True)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    assert len(lines) == (1 if interrupted else 2), "no traceback"
    assert "attempts are lost: running=1 jobs=grind" in lines[-1]


def test_ctrl_c_ends_the_wait_of_another_server_for_its_jobs() -> None:
    script = LEAVES.format(interrupted=True, in_runserver=False)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert "KeyboardInterrupt" in done.stderr


@pytest.mark.parametrize(
    ("in_runserver", "is_logged", "is_printed"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_start_of_a_node_is_printed_in_runserver_unless_it_is_logged(
    in_runserver: bool,
    is_logged: bool,
    is_printed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(autostart.logger, "isEnabledFor", lambda level: is_logged)
    starter = autostart.Autostart(lambda _: None)
    starter._in_runserver = in_runserver
    starter.announce_start("web-1")
    assert capsys.readouterr().err == "node started: node=web-1\n" * is_printed


@pytest.mark.parametrize("is_closed", [False, True])
def test_node_starts_without_stderr(is_closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autostart.logger, "isEnabledFor", lambda level: False)
    starter = autostart.Autostart(lambda _: None)
    starter._in_runserver = True
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed if is_closed else None)
    starter.announce_start("web-1")


@pytest.mark.parametrize("forks", [False, True])
def test_process_that_forks_starts_its_node_later(
    monkeypatch: pytest.MonkeyPatch, forks: bool
) -> None:
    monkeypatch.setattr(autostart, "_at_exit", lambda stop: None)
    monkeypatch.setattr(autostart, "_exit_on_sigterm", lambda: None)
    forked, waits, started = threading.Event(), [], []

    class Requested(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            forked.wait(TIMEOUT)
            return False

    starter = autostart.Autostart(started.append)
    starter._requested = Requested()
    starter._arm()
    if forks:
        starter.before_fork()
        starter.after_fork_in_parent()
    forked.set()
    wait_until(lambda: started == [starter], what="the node")
    assert waits == [autostart.GRACE, autostart.FORK_GRACE][: 1 + forks]


def test_fork_before_the_application_is_created_does_not_delay_the_node() -> None:
    starter = autostart.Autostart(lambda _: None)
    starter.before_fork()
    starter.after_fork_in_parent()
    assert not starter._has_forked


def test_restart_pauses_grow_and_are_reset_after_a_long_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, pauses = 0.0, []
    durations = [0.0] * 8 + [autostart.LONGEST_PAUSE + 1, 0.0]

    def run() -> int:
        nonlocal now
        now += durations[len(pauses)]
        if len(pauses) % 2:
            raise RuntimeError("the database is unreachable")
        return 1

    stopping = threading.Event()

    def wait(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == len(durations):
            stopping.set()

    monkeypatch.setattr(autostart, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(stopping, "wait", wait)
    autostart.restart_until_stopped(run, stopping, "web-1")
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]
    records = [record for record in caplog.records if record.__dict__.get("event")]
    assert {record.__dict__["event"] for record in records} == {"autostart_restart"}
    assert [record.__dict__["restart_in"] for record in records] == pauses


def test_restart_after_a_database_error_logs_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stopping = threading.Event()

    def run() -> int:
        raise OperationalError("no such table: django_dcron_job")

    monkeypatch.setattr(stopping, "wait", lambda _pause: stopping.set())
    autostart.restart_until_stopped(run, stopping, "web-1")
    assert "Run manage.py migrate." in caplog.text


@pytest.mark.parametrize("fails", [False, True])
def test_stopped_node_is_not_restarted(caplog: pytest.LogCaptureFixture, fails: bool) -> None:
    stopping = threading.Event()
    runs = []

    def run() -> int:
        runs.append(stopping.is_set())
        stopping.set()
        if fails:
            raise RuntimeError("interrupted")
        return 0

    autostart.restart_until_stopped(run, stopping, "web-1")
    assert (runs, caplog.records) == ([False], [])


def test_application_in_a_test_starts_no_node(settings: Settings) -> None:
    settings.DCRON_AUTOSTART = True
    autostart._arm_on_creation(Application)
    Application()
    assert autostart.autostart.state is AutostartState.IDLE


class Application(WSGIHandler):
    def __init__(self) -> None:
        """Load no middleware."""


@pytest.mark.parametrize(
    ("modules", "serves"),
    [
        ({"django.core.wsgi", "bakery.wsgi", "gunicorn.workers.base"}, True),
        ({"django.core.asgi", "bakery.asgi", "uvicorn.importer"}, True),
        ({"django.core.management", "django.core.management.commands.runserver"}, True),
        ({"django.contrib.staticfiles.management.commands.runserver"}, True),
        ({"django.core.wsgi", "django.core.management.base"}, False),
        ({"django.core.wsgi", "celery.bin.worker"}, False),
        ({"django.test.testcases"}, False),
    ],
)
def test_processes_that_serve_requests_are_recognized_by_modules(
    monkeypatch: pytest.MonkeyPatch, modules: set[str], serves: bool
) -> None:
    assert not autostart.serves_requests(modules), "tests don't serve requests"
    monkeypatch.setattr(autostart, "is_test", lambda: False)
    assert autostart.serves_requests(modules) is serves


def test_gunicorn_master_starts_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    preloading = {"gunicorn.arbiter", "gunicorn.app.base", "django.core.wsgi"}
    started = []
    starter = autostart.Autostart(started.append)
    monkeypatch.setattr(autostart, "is_test", lambda: False)
    monkeypatch.setattr(autostart, "_modules_on_stack", lambda: iter(preloading))
    starter.arm()
    assert starter.state is AutostartState.PRELOADED
    assert not autostart._is_gunicorn_master({*preloading, "gunicorn.workers.base"})
    assert not started


@pytest.mark.parametrize(
    ("master", "worker", "state"),
    [(7, 0, AutostartState.PRELOADED), (7, 1, AutostartState.ARMED), (0, 0, AutostartState.ARMED)],
    ids=["master", "lazy_apps", "no_master"],
)
def test_uwsgi_master_starts_no_node(
    monkeypatch: pytest.MonkeyPatch, master: int, worker: int, state: AutostartState
) -> None:
    uwsgi = SimpleNamespace(masterpid=lambda: master, worker_id=lambda: worker)
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    monkeypatch.setattr(autostart, "GRACE", 3600.0)
    monkeypatch.setattr(autostart, "_exit_on_sigterm", lambda: None)
    monkeypatch.setattr(autostart, "serves_requests", lambda modules: True)
    starter = autostart.Autostart(lambda _: None)
    starter.arm()
    assert starter.state is state
    starter.stop()


def test_first_request_starts_the_node_of_a_preloaded_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autostart, "GRACE", 3600.0)
    monkeypatch.setattr(autostart, "_at_exit", lambda stop: None)
    monkeypatch.setattr(autostart, "_exit_on_sigterm", lambda: None)
    started = []
    starter = autostart.Autostart(started.append)
    starter.request()
    assert starter.state is AutostartState.IDLE
    starter.state = AutostartState.PRELOADED
    starter.request()
    wait_until(lambda: started == [starter], what="the node")
    starter.stop()
    assert starter.state is AutostartState.STARTED


def test_autostart_changes_default_lock_and_dispatcher(settings: Settings) -> None:
    assert (dcron.LOCK, dcron.DISPATCHER) == ("redis", "celery")
    settings.DCRON_AUTOSTART = True
    assert (dcron.LOCK, dcron.DISPATCHER) == ("database", "thread")
    settings.DCRON_DISPATCHER = "celery"
    assert (dcron.LOCK, dcron.DISPATCHER) == ("database", "celery")
    settings.DCRON_AUTOSTART = "yes"
    assert [message.id for message in checks.check_settings(None)] == ["django_dcron.E001"]
    assert (dcron.LOCK, sys.modules["django_dcron.autostart"]) == ("redis", autostart)
