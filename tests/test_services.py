"""The servers and processes the other tests stand on."""

import signal

import pytest
from django.db import connection
from django_redis import get_redis_connection

from tests import services
from tests.app import tasks
from tests.app.models import Witness
from tests.conftest import StartProcess
from tests.waiting import wait_until


def test_waiting_ends_with_the_answer_or_says_what_it_waited_for():
    answers = iter([0, None, "here"])
    assert wait_until(lambda: next(answers)) == "here"
    with pytest.raises(AssertionError, match="in vain for: Godot"):
        wait_until(lambda: False, timeout=0.05, what="Godot")


def test_redis_can_be_killed_and_started_again(redis_server: services.Server):
    redis = get_redis_connection("default")
    redis.set("a", 1)
    redis_server.kill()
    assert not redis_server.running
    redis_server.start()
    assert redis.get("a") is None


@pytest.mark.django_db(transaction=True)
def test_a_worker_process_runs_what_is_published(start_worker: StartProcess):
    worker = start_worker()
    tasks.echo.apply_async(args=["to the worker"])
    worker.wait_for_log("succeeded")
    worker.terminate()
    assert worker.wait() == 0


@pytest.mark.django_db(transaction=True)
def test_a_process_of_the_test_sees_the_test_database(start_process: StartProcess):
    statement = "from tests.app.models import Witness; print('rows:', Witness.objects.count())"
    Witness.objects.create(run_id="1", job="j", scheduled_at="2026-01-01T00:00Z", attempt=1, worker_pid=1)
    process = start_process("shell", "-m", "django", "shell", "-c", statement)
    process.wait_for_log("rows: 1")
    assert process.wait() == 0


@pytest.mark.django_db(transaction=True)
def test_a_frozen_process_goes_on_when_thawed(start_process: StartProcess):
    process = start_process("counter", "-c", "for n in iter(int, 1): print('still here')")
    process.wait_for_log("still here")
    process.freeze()
    wait_until(lambda: services.psutil.Process(process.pid).status() == "stopped")
    process.thaw()
    size = len(process.log)
    wait_until(lambda: len(process.log) > size, what="more output")
    process.kill()
    assert process.exit_code == -signal.SIGKILL


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_postgresql_skips_locked_rows():
    assert connection.features.has_select_for_update_skip_locked


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_the_database_server_can_be_restarted(database_server: services.Server):
    database_server.restart()
    connection.close()
    assert Witness.objects.count() == 0
