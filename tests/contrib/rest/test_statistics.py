"""Test nodes and statistics over HTTP."""

from datetime import timedelta
from typing import Any

import pytest

from django_dcron.db.now import database_now
from django_dcron.models import Node, Statistics
from django_dcron.targets.shadow import NOT_EXECUTED
from tests.contrib.rest.conftest import Api, problem
from tests.factories import make_idle_job, make_run


def test_nodes_are_listed_with_their_liveness(api: Api) -> None:
    now = database_now("default")
    given: dict[str, Any] = {
        "host": "h",
        "pid": 1,
        "version": "1",
        "started_at": now,
        "shard_count": 64,
    }
    Node.objects.create(
        id="a-1", name="a", heartbeat_at=now, ticked_at=now, skew=timedelta(seconds=-2), **given
    )
    Node.objects.create(
        id="b-1", name="b", heartbeat_at=now - timedelta(hours=1), namespace="other", **given
    )

    shown = api.get("nodes/").json()["results"]

    assert [(node["id"], node["live"], node["stalled"], node["skew"]) for node in shown] == [
        ("a-1", True, False, -2.0),
        ("b-1", False, False, 0.0),
    ]
    assert [node["id"] for node in api.get("nodes/", namespace="shop").json()["results"]] == ["a-1"]
    problem(api.get("nodes/", namespace="\0"), 400)


def test_statistics_cover_all_jobs(api: Api) -> None:
    job = make_idle_job()
    make_idle_job(enabled=False)
    now = database_now("default")
    make_run(job, "running")
    make_run(job, "failed", started_at=now, finished_at=now)
    make_run(job, "succeeded")
    make_run(job, "queued", missed_before=3)

    shown = api.get("stats/").json()

    assert (shown["jobs"]["total"], shown["jobs"]["enabled"], shown["jobs"]["paused"]) == (2, 1, 1)
    assert shown["runs"]["running"] == {"count": 1, "truncated": False}
    assert shown["runs"]["success_rate"] == {
        "succeeded": 1,
        "failed": 1,
        "percent": 50.0,
        "sampled": False,
    }
    assert shown["runs"]["missed_occurrences"] == 3
    assert {*shown["runs"]["start_delay"]} == {"p50", "p95", "p99"}


def test_job_statistics_cover_only_that_job(api: Api) -> None:
    job = make_idle_job()
    running = make_run(job, "running")
    make_run(job, "failed")
    make_run(job, "succeeded", reason=NOT_EXECUTED)  # a shadow run
    make_run(make_idle_job(), "succeeded")
    Statistics.objects.filter(pk=job.pk).update(
        succeeded=7, failed=3, consecutive_failures=2, last_state="failed"
    )

    shown = api.get(f"jobs/{job.pk}/stats/").json()

    assert shown["finished_by_state"] == {
        "succeeded": 7,
        "failed": 3,
        "skipped": 0,
        "missed": 0,
        "cancelled": 0,
    }
    assert (shown["consecutive_failures"], shown["last_state"]) == (2, "failed")
    assert shown["success_rate"]["percent"] == 70.0
    assert shown["latest_success_rate"]["percent"] == 0.0
    assert shown["running"] == [str(running.pk)]
    assert shown["next_at"].endswith("-01-01T00:00:00Z")


@pytest.mark.parametrize("path", ["stats/", "nodes/"])
def test_statistics_and_nodes_are_read_only(path: str, api: Api) -> None:
    refused = api.post(path, {})

    problem(refused, 405)
    assert refused["Allow"] == "GET, HEAD"
