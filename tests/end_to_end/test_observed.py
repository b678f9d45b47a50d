"""The logs and traces of real nodes and workers: every line and every span names its run."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from django_dcron.models import Run
from tests.conftest import StartProcess
from tests.factories import make_idle_job, make_run
from tests.waiting import TIMEOUT, wait_until


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_logs_and_spans_of_a_run_name_the_run(
    start_runcron: StartProcess, start_worker: StartProcess, tmp_path: Path
) -> None:
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.end_to_end.settings_observed",
        "DCRON_TEST_OBSERVED": str(tmp_path),
    }
    job = make_idle_job(
        target="tests.app.tasks.log_and_fail", max_attempts=2, retry_backoff=timedelta(seconds=1)
    )
    run = make_run(job)
    start_worker(env=env, wait=False)
    node = start_runcron("--name", "a", env=env)
    wait_until(
        lambda: Run.objects.get(pk=run.pk).state == "failed", TIMEOUT, what="its last attempt"
    )
    node.terminate()
    assert node.wait(TIMEOUT) == 0

    trace_id = run.pk.hex
    spans = [
        span for span in lines(tmp_path / "spans") if span["context"]["trace_id"] == f"0x{trace_id}"
    ]
    by_name: dict[str, list[Any]] = {}
    for span in spans:
        by_name.setdefault(span["name"], []).append(span)
    assert {name: len(found) for name, found in by_name.items()} == {
        "dcron.dispatch": 2,
        "run/django_dcron.execute": 2,
        "dcron.execute": 2,
    }
    origin = f"0x{trace_id[16:]}"
    for name in ("dcron.dispatch", "run/django_dcron.execute"):
        assert {span["parent_id"] for span in by_name[name]} == {origin}
    assert {span["parent_id"] for span in by_name["dcron.execute"]} == {
        span["context"]["span_id"] for span in by_name["run/django_dcron.execute"]
    }, "instrumented Celery joins the trace"
    assert [span["attributes"]["dcron.attempt"] for span in by_name["dcron.execute"]] == [1, 2]

    log = lines(tmp_path / "log")
    own = [entry for entry in log if entry["logger"] == "tests.app.tasks"]
    assert [(entry["message"], entry["attempt"]) for entry in own] == [
        ("about to fail", 1),
        ("about to fail", 2),
    ]
    ended = [entry for entry in log if entry.get("event") == "attempt_ended"]
    for entry in [*own, *ended]:
        assert (entry["job"], entry["run"], entry["trace_id"]) == (
            str(job),
            str(run.pk),
            trace_id,
        )
        assert "node" not in entry
    assert [entry["outcome"] for entry in ended] == ["failed", "failed"]
    (started,) = (entry for entry in log if entry.get("event") == "started")
    assert (started["node"], started["level"]) == ("a", "INFO")
    of_node = [entry for entry in log if entry["logger"] == "django_dcron.scheduler"]
    assert {entry["node"] for entry in of_node} == {"a"}
