"""Test the search of logs: what it finds, how far it reads, and what it costs."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from django_dcron.diagnosis import log_search
from django_dcron.diagnosis.log_search import (
    LogSearch,
    RunPosition,
    batches_of,
    find_in_lines,
    runs_older_than,
    search_logs,
)
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.models import Attempt, Job, Run
from django_dcron.models.run import new_run_id
from tests.admin.conftest import NOON, make_attempt, make_job, make_run

MINUTE = timedelta(minutes=1)


@pytest.fixture
def job(db: None) -> Job:
    return make_job()


def _logged(job: Job, *logs: str, minute: int = 0) -> Run:
    """Create a run with one attempt per log."""
    run = make_run(job, NOON + minute * MINUTE, state="succeeded", attempt=max(len(logs), 1))
    for number, log in enumerate(logs, 1):
        make_attempt(run, number, log=log)
    return run


def _search(text: str, runs: QuerySet[Run] | None = None) -> LogSearch:
    return search_logs(Run.objects.all() if runs is None else runs, text, EVERYTHING)


# --- Lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "wanted", "found"),
    [
        ("order 4711 was paid", "4711", ("order ", "4711", " was paid")),
        ("ORDER 4711", "order", ("", "ORDER", " 4711")),
        ("100% of it", "100%", ("", "100%", " of it")),
        ("100 of it", "100%", None),
        ("snake_case", "e_c", ("snak", "e_c", "ase")),
        ("snake-case", "e_c", None),
        ("a <b>bold</b>", "<B>", ("a ", "<b>", "bold</b>")),
        ("Zahlung über 5 €", "ÜBER 5", ("Zahlung ", "über 5", " €")),
        ("STRASSE 7", "straße", ("", "STRASSE", " 7")),
        ("Große Straße 7", "STRASSE", ("Große ", "Straße", " 7")),
        ("支付失败 订单", "失败", ("支付", "失败", " 订单")),
    ],
)
def test_text_is_found_in_any_case(
    line: str, wanted: str, found: tuple[str, str, str] | None
) -> None:
    assert find_in_lines(f"first\n{line}\nlast {line}\n", wanted.casefold()) == found


def test_text_is_found_in_one_line_only() -> None:
    assert find_in_lines("order\n4711\n", "order\n4711") is None


def test_long_line_is_cut_around_the_text() -> None:
    found = find_in_lines("a" * 500 + "needle" + "b" * 500, "needle")
    assert found is not None
    before, text, after = found
    assert text == "needle"
    assert before == "…" + "a" * log_search.SHOWN_BEFORE
    assert after == "b" * log_search.SHOWN_AFTER + "…"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([], []), ([1, 1], [2]), ([3, 1], [3, 1]), ([1, 2, 3], [3, 3]), ([9, 0, 0], [9, 0])],
)
def test_batch_ends_when_it_reaches_the_limit(sizes: list[int], expected: list[int]) -> None:
    runs = [(RunPosition(NOON, new_run_id()), size) for size in sizes]
    batches = list(batches_of(runs, 3))
    assert [size for _batch, size in batches] == expected
    assert [run for batch, _size in batches for run in batch] == [run for run, _size in runs]


# --- Runs -----------------------------------------------------------------------------------------


@pytest.mark.every_database
def test_latest_attempt_with_the_text_is_found(job: Job) -> None:
    run = _logged(job, "needle 1", "needle 2", "hay")
    _logged(job, "hay", minute=1)
    _logged(job, minute=2)
    search = _search("NEEDLE")
    assert [*search.matches] == [run.pk]
    match = search.matches[run.pk]
    assert (match.attempt, match.text, match.after) == (2, "needle", " 2")
    assert (search.searched, search.more) == (3, False)
    assert search.oldest == RunPosition(run.scheduled_at, run.pk)


def test_search_without_runs(job: Job) -> None:
    assert _search("needle") == LogSearch()


def test_only_the_end_of_a_long_log_is_searched(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_search, "LOG_CHARACTERS_READ", 10)
    run = _logged(job, "needle" + "x" * 20 + "end")
    assert not _search("needle").matches
    assert [*_search("xend").matches] == [run.pk]


@pytest.mark.parametrize(
    ("name", "limit"),
    [("RUNS_READ", 2), ("MAX_MATCHES", 2), ("CHARACTERS_READ", 12), ("CHARACTERS_READ", 7)],
)
def test_limited_searches_find_each_run_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    """Also runs with the same time, of which a limit separates one from the others."""
    monkeypatch.setattr(log_search, name, limit)
    monkeypatch.setattr(log_search, "BATCH_CHARACTERS", 1)
    others = [make_job(f"other-{number}") for number in range(3)]
    for each in [job, *others]:
        _logged(each, "needle")
    _logged(job, "needle", minute=1)
    found: list[Any] = []
    runs: QuerySet[Run] = Run.objects.all()
    while (search := _search("needle", runs)).more:
        assert search.searched == 2
        assert search.oldest is not None
        found += search.matches
        runs = runs_older_than(Run.objects.all(), search.oldest)
    found += search.matches
    assert found == list(Run.objects.order_by("-scheduled_at", "-pk").values_list("pk", flat=True))


def test_logs_outside_the_scope_are_not_searched(job: Job) -> None:
    _logged(job, "needle", "hay")
    rows = {Attempt: Attempt.objects.filter(number=2)}
    scope = Scope(lambda model: rows.get(model))  # type: ignore[call-overload]
    assert not search_logs(Run.objects.all(), "needle", scope).matches
    assert search_logs(Run.objects.all(), "hay", scope).matches


def test_queries_are_bounded_and_join_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_search, "CHUNK_SIZE", 2)
    monkeypatch.setattr(log_search, "BATCH_CHARACTERS", 12)
    for minute in range(4):
        _logged(job, "needle", minute=minute)
    with CaptureQueriesContext(connection) as captured:
        assert len(_search("needle").matches) == 4
    statements = [each["sql"] for each in captured]
    assert len(statements) == 5, "the runs; for each chunk, the sizes and one batch of logs"
    assert "LIMIT" in statements[0]
    assert all(" IN (" in sql for sql in statements[1:])
    assert not any("JOIN" in sql for sql in statements)
