"""A real node's HTTP responses: when it is healthy, when a part of it fails, and at its end."""

import json
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from django.db import connection

from django_dcron.models import Node
from tests import services
from tests.conftest import StartProcess
from tests.factories import make_idle_job, make_run
from tests.waiting import TIMEOUT, wait_until

QUICK = {"TICK": 0.1, "LEASE": 2, "HANG_AFTER": 3}


def quick(**more: float) -> dict[str, str]:
    return {"DCRON_TEST_SETTINGS": json.dumps(QUICK | more)}


Get = Callable[[str], tuple[int, str]]


def url_of(node: services.Process) -> str:
    node.wait_for_log("address=http://", TIMEOUT)
    found = re.search(r" address=(http://127\.0\.0\.1:\d+)", node.log)
    assert found
    return found[1]


def http_client(node: services.Process) -> Get:
    url = url_of(node)

    def get(path: str) -> tuple[int, str]:
        try:
            with urlopen(f"{url}{path}", timeout=TIMEOUT) as response:  # noqa: S310 (our own)
                return response.status, response.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return get


def codes(get: Get) -> tuple[int, int, int]:
    livez, readyz, health = (get(path)[0] for path in ("/livez", "/readyz", "/health"))
    return livez, readyz, health


def shown(get: Get) -> Any:
    return json.loads(get("/health")[1])


def wait_for_codes(get: Get, livez: int, readyz: int, health: int) -> None:
    wait_until(
        lambda: codes(get) == (livez, readyz, health), TIMEOUT, what=f"{livez}, {readyz}, {health}"
    )


def test_node_answers_until_it_stops(start_runcron: StartProcess, tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    node = start_runcron("--embedded", "--name", "a", "--http", "0", "--health-file", str(path))
    get = http_client(node)
    wait_for_codes(get, 200, 200, 200)
    wait_until(lambda: shown(get)["leases"] == 64, TIMEOUT, what="the node to hold all leases")
    message = shown(get)
    assert (message["status"], message["name"], message["shards"], message["pid"]) == (
        "ok",
        "a",
        64,
        node.pid,
    )
    assert message["id"] == Node.objects.get().pk
    assert message.keys() == json.loads(path.read_text()).keys() - {"interval"}
    host, port = url_of(node).removeprefix("http://").split(":")
    second = start_runcron("--embedded", "--name", "b", "--http", port)
    assert second.wait(TIMEOUT) == 1
    assert f"127.0.0.1:{port}: Address already in use" in second.log
    with closing(socket.create_connection((host, int(port)))) as idle:
        node.terminate()
        assert node.wait(TIMEOUT) == 0, "an idle connection doesn't delay the exit"
        assert idle.recv(1) == b""
    with pytest.raises(URLError):
        get("/livez")


def test_node_is_degraded_without_redis(
    start_runcron: StartProcess, redis_server: services.Server
) -> None:
    node = start_runcron("--name", "a", "--http", "0", env=quick())
    get = http_client(node)
    wait_for_codes(get, 200, 200, 200)
    redis_server.stop()
    wait_until(lambda: shown(get)["lock_degraded"], TIMEOUT, what="a degraded node")
    make_run(make_idle_job())
    wait_until(
        lambda: shown(get)["broker_unreachable"] and shown(get)["lag"] > 0,
        TIMEOUT,
        what="a waiting run",
    )
    assert codes(get) == (200, 200, 200)
    message = shown(get)
    assert (message["status"], len(message["reasons"])) == ("degraded", 2)
    redis_server.start()
    wait_until(
        lambda: (shown(get)["status"], shown(get)["lag"]) == ("ok", 0.0),
        TIMEOUT,
        what="the node to be ok",
    )


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_node_without_database_is_not_ready_and_then_unfit(
    start_runcron: StartProcess, database_server: services.Server
) -> None:
    node = start_runcron("--name", "a", "--http", "0", env=quick(DATABASE_GRACE=4))
    get = http_client(node)
    wait_for_codes(get, 200, 200, 200)
    connection.close()
    database_server.stop()
    try:
        wait_until(lambda: get("/readyz")[0] == 503, TIMEOUT, what="a node that is not ready")
        assert "the database has been unusable since " in get("/readyz")[1]
        wait_for_codes(get, 200, 503, 503)
        assert shown(get)["status"] == "unfit"
    finally:
        database_server.start()
    wait_for_codes(get, 200, 200, 200)


def test_node_with_a_hanging_thread_is_not_alive(
    start_runcron: StartProcess, tmp_path: Path
) -> None:
    """The thread hangs in the project's router."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    stuck = {
        "DJANGO_SETTINGS_MODULE": "tests.end_to_end.settings_with_a_stuck_router",
        "DCRON_TEST_PIPE": str(pipe),
    }
    node = start_runcron("--name", "a", "--http", "0", env=quick() | stuck)
    get = http_client(node)
    wait_for_codes(get, 200, 200, 200)
    make_run(make_idle_job())
    wait_for_codes(get, 503, 503, 503)
    assert get("/livez")[1].startswith("a is unfit: the tick thread hangs: no activity for ")
    threading.Thread(target=lambda: pipe.write_bytes(b""), daemon=True).start()
    wait_for_codes(get, 200, 200, 200)
