"""Test runs over HTTP: filters, orders, pages, attempts and logs.

Every filter and order uses an index.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dcron.contrib.rest import pagination
from django_dcron.models import Attempt, Job, Run
from tests.contrib.rest.conftest import Api, problem
from tests.factories import make_idle_job, make_run

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
LOGIN_QUERIES = 2
"""The number of queries for the session and the user."""
NO_RUN = "a59b7cc1-df2a-4a2c-a29d-9c6c35b70959"


@pytest.fixture
def jobs(db: None) -> dict[str, Job]:
    return {
        "a": make_idle_job(name="a", tags=["x"]),
        "b": make_idle_job(name="b", namespace="other"),
    }


def _run(job: Job, hours: int, **values: Any) -> Run:
    at = NOON + hours * HOUR
    return make_run(job, **{"scheduled_at": at, "due_at": at, **values})


@pytest.fixture
def runs(jobs: dict[str, Job]) -> dict[str, Run]:
    a, b = jobs.values()
    return {
        "1": _run(a, 1, state="succeeded"),
        "2": _run(a, 2, state="failed", trigger="manual"),
        "3": _run(b, 2, state="failed"),
        "4": _run(b, 3, state="succeeded", trigger="backfill", due_at=NOON),
        "5": _run(a, 5, state="failed", due_at=NOON + 9 * HOUR),
    }


def _pages(api: Api, **query: Any) -> Iterator[Any]:
    response = api.get("runs/", **query)
    while True:
        assert response.status_code == 200, response.content
        page = response.json()
        yield page
        if page["next"] is None:
            return
        response = api.get(page["next"])


def _found(api: Api, runs: dict[str, Run], **query: Any) -> str:
    names = {str(run.pk): name for name, run in runs.items()}
    return "".join(names[each["id"]] for page in _pages(api, **query) for each in page["results"])


FOUND = [
    ({}, {"54321", "54231"}),
    ({"ordering": "scheduled_at"}, {"12345", "13245"}),
    ({"job": "a"}, {"521"}),
    ({"job": "a", "ordering": "scheduled_at"}, {"125"}),
    ({"job": "a", "state": "failed"}, {"52"}),
    ({"job": "a", "trigger": "manual"}, {"2"}),
    ({"state": "failed"}, {"532", "523"}),
    ({"state": "succeeded"}, {"14"}),
    ({"state": "succeeded", "ordering": "due_at"}, {"41"}),
    ({"state": "succeeded", "ordering": "scheduled_at"}, {"14"}),
    ({"state": "succeeded", "ordering": "-scheduled_at"}, {"41"}),
    ({"state": "running"}, {""}),
    ({"trigger": "backfill"}, {"4"}),
    ({"state": "failed", "trigger": "manual"}, {"2"}),
    ({"namespace": "other"}, {"43"}),
    ({"tag": "x"}, {"521"}),
    ({"tag": "x", "namespace": "other"}, {""}),
    ({"tag": "x", "state": "failed"}, {"52"}),
    ({"since": "2026-03-01T14:00:00Z"}, {"5432", "5423"}),
    ({"until": "2026-03-01T14:00:00Z"}, {"1"}),
    ({"since": "2026-03-01T15:00:00+01:00", "until": "2026-03-01T15:00:01Z"}, {"432", "423"}),
    ({"state": "succeeded", "until": "2026-03-01T12:00:01Z"}, {"4"}),
    ({"state": "succeeded", "until": "2026-03-01T14:00:00Z", "ordering": "-scheduled_at"}, {"1"}),
    ({"job": "a", "since": "2026-03-01T14:00:00Z"}, {"52"}),
]


def test_rerun_that_queues_like_a_backfill_is_found_and_shown_as_a_rerun(
    api: Api, runs: dict[str, Run]
) -> None:
    values = {"trigger": "backfill", "state": "waiting", "rerun_of": runs["2"]}
    runs["6"] = _run(runs["2"].job, 6, **values)
    assert _found(api, runs, trigger="rerun") == "6"
    assert _found(api, runs, trigger="backfill") == "4"
    assert [each["trigger"] for each in api.get("runs/", state="waiting").json()["results"]] == [
        "rerun"
    ]
    assert api.get(f"runs/{runs['6'].pk}/").json()["trigger"] == "rerun"


@pytest.mark.parametrize(("limit", "read_limit"), [(50, 10_000), (50, 1), (1, 10_000), (2, 2)])
def test_filters_and_orders_are_correct_at_any_page_size(
    limit: int,
    read_limit: int,
    api: Api,
    jobs: dict[str, Job],
    runs: dict[str, Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The result doesn't depend on the page size or on the number of rows that a page examines."""
    monkeypatch.setattr(pagination, "READ_LIMIT", read_limit)
    for query, found in FOUND:
        parameters = query | ({"job": jobs[str(query["job"])].pk} if "job" in query else {})
        assert _found(api, runs, limit=limit, **parameters) in found, query


def test_runs_with_equal_times_appear_once_across_pages(api: Api) -> None:
    runs = {str(number): _run(make_idle_job(), 1, state="failed") for number in range(5)}

    for query in (
        {},
        {"ordering": "scheduled_at"},
        {"state": "failed"},
        {"ordering": "due_at", "state": "failed"},
    ):
        assert sorted(_found(api, runs, limit=2, **query)) == ["0", "1", "2", "3", "4"], query


def test_rows_added_or_deleted_between_pages_do_not_shift_others(
    api: Api, jobs: dict[str, Job], runs: dict[str, Run]
) -> None:
    whole = [each["id"] for page in _pages(api) for each in page["results"]]
    pages = _pages(api, limit=2)
    seen = [each["id"] for each in next(pages)["results"]]

    _run(jobs["b"], 8)
    runs["5"].delete()

    assert seen + [each["id"] for page in pages for each in page["results"]] == whole


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"state": "happy"}, "state"),
        ({"state": ""}, "state"),
        ({"trigger": "x"}, "trigger"),
        ({"job": "x"}, "job"),
        ({"job": 0}, "job"),
        ({"job": 2**63}, "job"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-03-01"}, "since"),
        ({"until": "0001-01-01T00:00:00Z"}, "until"),
        ({"until": "9999-12-31T23:59:59Z"}, "until"),
        ({"ordering": "state"}, "ordering"),
        ({"ordering": "due_at"}, "ordering"),
        ({"ordering": "due_at", "state": "failed", "job": 1}, "ordering"),
        ({"cursor": "nonsense"}, "cursor"),
        # ["-scheduled_at", "2026-03-01T12:00:00Z", null]
        ({"cursor": "WyItc2NoZWR1bGVkX2F0IiwgIjIwMjYtMDMtMDFUMTI6MDA6MDBaIiwgbnVsbF0"}, "cursor"),
        ({"limit": 10_000}, "limit"),
        ({"tag": "\0"}, "tag"),
        ({"stat": "failed"}, "stat"),
    ],
)
def test_invalid_query_parameter_is_refused(query: dict[str, Any], field: str, api: Api) -> None:
    assert [*problem(api.get("runs/", **query), 400)["errors"]] == [field]


def test_cursor_is_valid_only_for_its_ordering(api: Api, runs: dict[str, Run]) -> None:
    cursor = api.get("runs/", limit=1).json()["next"].partition("cursor=")[2].partition("&")[0]

    assert api.get("runs/", cursor=cursor).status_code == 200
    refused = problem(api.get("runs/", cursor=cursor, ordering="scheduled_at"), 400)
    assert "scheduled_at" in refused["errors"]["cursor"][0]


# --- query costs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "queries"),
    [
        ({}, 2),
        ({"state": "failed"}, 2),
        ({"job": "a"}, 2),
        ({"trigger": "manual"}, 3),
        ({"tag": "x"}, 4),
    ],
)
def test_page_needs_few_queries_and_no_large_columns(
    query: dict[str, Any], queries: int, api: Api, jobs: dict[str, Job], runs: dict[str, Run]
) -> None:
    parameters = query | ({"job": jobs["a"].pk} if "job" in query else {})
    api.get("runs/")

    with CaptureQueriesContext(connection) as captured:
        response = api.get("runs/", **parameters)

    assert response.json()["results"]
    assert len(captured) == LOGIN_QUERIES + queries, [each["sql"] for each in captured]
    sql = " ".join(each["sql"] for each in captured)
    assert "COUNT(" not in sql
    assert "OFFSET" not in sql.replace(f"OFFSET {pagination.READ_LIMIT - 1}", "")
    for column in ("kwargs", "args", "log", "traceback", "result", "message"):
        assert f'"{column}"' not in sql.replace("`", '"'), column


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "query",
    [
        {},
        {"ordering": "scheduled_at"},
        {"since": "2026-01-01T00:00:00Z"},
        {"state": "failed"},
        {"state": "failed", "since": "2026-01-01T00:00:00Z"},
        {"state": "failed", "ordering": "-scheduled_at"},
        {"job": "a"},
        {"job": "a", "state": "failed"},
        {"trigger": "manual"},
        {"tag": "x"},
        {"namespace": "default"},
    ],
    ids=str,
)
def test_page_queries_use_an_index_and_do_not_sort(
    query: dict[str, Any], api: Api, jobs: dict[str, Job], runs: dict[str, Run]
) -> None:
    """SQLite plans by rule, without statistics.

    It uses the same plan for five rows as for a million.
    """
    parameters = query | ({"job": jobs["a"].pk} if "job" in query else {})
    first = api.get("runs/", limit=1, **parameters).json()
    with CaptureQueriesContext(connection) as captured:
        assert api.get("runs/", **parameters).status_code == 200
        assert not first["next"] or api.get(first["next"]).status_code == 200

    looked = [each["sql"] for each in captured if 'FROM "django_dcron_run"' in each["sql"]]
    assert looked
    for sql in looked:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            plan = [(parent, step) for _id, parent, _unused, step in cursor.fetchall()]
        for parent, step in plan:
            assert "SCAN django_dcron_run" not in step or "USING" in step, (sql, plan)
            # Keys within one instant may be sorted, and the tags of a job, but not all rows.
            assert parent or "TEMP B-TREE FOR ORDER BY" not in step, (sql, plan)


# --- read -----------------------------------------------------------------------------------------


def _attempt(run: Run, number: int, **values: Any) -> Attempt:
    given = {"token": uuid4(), "worker": "celery@web-1", "started_at": NOON}
    return Attempt.objects.create(run=run, number=number, **given | values)


def test_run_includes_its_attempts_without_logs(api: Api) -> None:
    run = make_run(make_idle_job(), "succeeded", args=[1], attempt=2)
    _attempt(
        run,
        1,
        outcome="failed",
        exception_class="ValueError",
        message="m" * 1_001,
        log="l" * 10,
        traceback="t",
    )
    _attempt(
        run,
        2,
        outcome="succeeded",
        result="{}",
        progress_done=3,
        progress_total=4,
        progress_note="rows",
    )
    api.get("runs/")

    with CaptureQueriesContext(connection) as captured:
        shown = api.get(f"runs/{run.pk}/").json()

    assert len(captured) == LOGIN_QUERIES + 2
    assert "traceback" not in captured[-1]["sql"]
    assert (shown["args"], shown["kwargs"], shown["rerun_of"]) == ([1], None, None)
    first, second = shown["attempts"]
    assert (first["number"], first["outcome"], first["exception_class"]) == (
        1,
        "failed",
        "ValueError",
    )
    assert first["message"] == "m" * 1_000
    assert (second["progress_done"], second["progress_total"], second["progress_note"]) == (
        3,
        4,
        "rows",
    )
    assert {*first} & {"log", "traceback", "result", "token"} == set()


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({}, "second, ünlike <b>the first</b>"),
        ({"attempt": 1}, "first"),
        ({"attempt": 1, "text": "traceback"}, "Traceback"),
        ({"text": "result"}, ""),
    ],
)
def test_log_is_returned_as_plain_text(query: dict[str, Any], text: str, api: Api) -> None:
    run = make_run(make_idle_job(), "failed")
    _attempt(run, 1, log="first", traceback="Traceback")
    _attempt(run, 2, log="second, ünlike <b>the first</b>")

    response = api.get(f"runs/{run.pk}/log/", **query)

    assert response.content.decode() == text
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["X-Content-Type-Options"] == "nosniff"


def test_log_of_a_run_without_attempts_is_not_found(api: Api) -> None:
    run = make_run(make_idle_job())

    assert "attempt" in problem(api.get(f"runs/{run.pk}/log/"), 404)["detail"]
    problem(api.get(f"runs/{run.pk}/log/", attempt="9" * 100), 400)
    problem(api.get(f"runs/{run.pk}/log/", text="token"), 400)


@pytest.mark.parametrize("key", ["1", "x", NO_RUN, "%00", f"{{{NO_RUN}}}x"])
def test_unknown_run_is_not_found(key: str, api: Api) -> None:
    problem(api.get(f"runs/{key}/"), 404)
    problem(api.get(f"runs/{key}/log/"), 404)
    problem(api.post(f"runs/{key}/cancel/"), 404)
