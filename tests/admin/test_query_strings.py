"""Test that no query string of a list causes a server error or a query of unbounded cost."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import escape

from django_dcron.admin.lists import filters, time_filter
from django_dcron.admin.runs.admin import JOB_ARGUMENTS_NOTE
from django_dcron.admin.runs.listing import TRIGGER_TITLE
from django_dcron.models import Attempt, Job
from tests.admin.conftest import (
    NOON,
    StaffWith,
    list_url,
    make_attempt,
    make_job,
    make_run,
    run_url,
)

JOB_KEYS = {"30 digits": "9" * 30, "5,000 digits": "9" * 5_000, "no number": "x"}
MANY_WORDS = "+".join(["report"] * 1_200)


def _export_url(model: str) -> str:
    return reverse(f"admin:django_dcron_{model}_export", args=["csv"])


def _is_refused(response: Any) -> bool:
    """Return whether Django redirected to the unfiltered list because of an invalid filter."""
    return response.status_code == 302 and response["Location"].endswith("/?e=1")


@pytest.fixture
def attempt(db: None) -> Attempt:
    return make_attempt(make_run(make_job()))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(
    ("model", "query"),
    [
        ("attempt", "started_at__lt=9999-12-31T23:59:59"),
        ("attempt", "started_at__gte=0001-01-01T00:00"),
        ("run", "scheduled_at__lt=9999-12-31T23:59Z"),
        ("run", "scheduled_at__gte=0001-01-01T00:00Z"),
        ("run", "scheduled_at__gte=1969-12-31"),
        ("run", "scheduled_at__lt=2200-01-01"),
        ("run", "when=1h&scheduled_at__lt=9999-12-31T23:59Z"),
        ("run", "when=1h&scheduled_at__lt=nonsense"),
        ("run", "due_at__year=99999"),
    ],
)
def test_unsupported_or_invalid_time_is_refused(
    admin_client: Client, attempt: Attempt, settings: Any, zone: str, model: str, query: str
) -> None:
    settings.TIME_ZONE = zone

    assert _is_refused(admin_client.get(f"{list_url(model)}?{query}"))


def test_time_unsupported_by_some_databases_causes_no_error(
    admin_client: Client, attempt: Attempt
) -> None:
    response = admin_client.get(f"{list_url('run')}?due_at__gte=0001-01-01T00:00%2B05:00")

    assert response.status_code == 200 or _is_refused(response)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("time", ["1970-01-01T00:00", "2199-12-31T23:59:59"])
def test_first_and_last_supported_times_are_accepted(
    admin_client: Client, attempt: Attempt, settings: Any, zone: str, time: str
) -> None:
    settings.TIME_ZONE = zone
    for model, column in (("run", "scheduled_at"), ("attempt", "started_at")):
        for bound in ("gte", "lt"):
            page = admin_client.get(f"{list_url(model)}?{column}__{bound}={time}").content.decode()
            assert f'value="{time}"' in page


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("run", "namespace"),
        ("run", "tag"),
        ("run", "state__exact"),
        ("job", "namespace"),
        ("job", "tag"),
        ("attempt", "worker"),
        ("node", "state"),
    ],
)
def test_nul_character_is_refused(
    admin_client: Client, attempt: Attempt, model: str, name: str
) -> None:
    assert _is_refused(admin_client.get(f"{list_url(model)}?{name}=a%00b"))
    if model in ("run", "job"):
        assert _is_refused(admin_client.get(f"{_export_url(model)}?{name}=a%00b"))


@pytest.mark.parametrize("sees", [["view_run"], ["view_run", "view_job"]])
@pytest.mark.parametrize("key", JOB_KEYS.values(), ids=JOB_KEYS)
def test_invalid_job_key_finds_nothing(
    staff_with: StaffWith, attempt: Attempt, key: str, sees: list[str]
) -> None:
    response = staff_with(*sees).get(f"{list_url('run')}?job__id__exact={key}")

    assert _is_refused(response) or list(response.context["cl"].result_list) == []
    assert _is_refused(response) or "view_job" not in sees


@pytest.mark.parametrize("model", ["run", "attempt", "job", "node"])
def test_search_with_many_words_causes_no_error(
    admin_client: Client, attempt: Attempt, model: str
) -> None:
    assert admin_client.get(f"{list_url(model)}?q={MANY_WORDS}").status_code == 200


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("run_changelist", "q"),
        ("run_changelist", "job_name"),
        ("job_suggestions", "job_name"),
        ("attempt_changelist", "q"),
    ],
)
def test_search_for_a_long_word_causes_no_error(
    admin_client: Client, attempt: Attempt, page: str, name: str
) -> None:
    url = reverse(f"admin:django_dcron_{page}")
    assert admin_client.get(url, {name: "x" * 60_000}).status_code == 200


def test_attempt_search_needs_same_number_of_queries_for_any_words(
    admin_client: Client, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_attempt(make_run(make_job("invoices", namespace="shop")), exception_class="KeyError")
    url = f"{list_url('attempt')}?q="

    def search(words: str) -> tuple[int, set[str]]:
        with CaptureQueriesContext(connection) as queries:
            found = admin_client.get(url + words).context["cl"].result_list
        return len(queries), {each.run.job.name for each in found}

    one, found = search("shop")
    assert found == {"invoices"}
    assert search("shop+invo+voices+key+celery") == (one, {"invoices"})
    assert search("shop+report")[1] == set()
    monkeypatch.setattr(filters, "MAX_JOB_IDS", 1)
    assert search("shop+e") == (one, {"invoices"})


def test_run_pages_hide_jobs_without_view_job_permission(staff_with: StaffWith) -> None:
    job = make_job("ran", namespace="shop", tags=["secret-tag"])
    Job.objects.filter(pk=job.pk).update(kwargs={"city": "hunter2"}, args=["launch-code"])
    make_job("never-ran", namespace="secret-namespace")
    run = make_run(job)
    own = make_run(job, NOON + timedelta(hours=1), args=["its own"])
    secrets = ["secret-tag", "never-ran", "secret-namespace", "hunter2", "launch-code"]
    urls = [list_url("run"), run_url(run), run_url(own)]

    def shown(*permissions: str) -> list[str]:
        client = staff_with(*permissions)
        pages = "".join(client.get(url).content.decode() for url in urls)
        assert "its own" in pages
        assert str(escape(JOB_ARGUMENTS_NOTE)) in pages
        return [secret for secret in secrets if secret in pages]

    assert shown("view_run") == []
    assert shown("view_run", "view_job") == secrets


def test_runs_are_filtered_by_a_text_in_their_error_or_reason(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_filter, "RUNS_SEARCHED", 3)
    job = make_job()
    texts = ["HTTP Error 503", "disk full", "", "http error 502", "HTTP Error 500"]
    runs = [
        make_run(job, NOON + timedelta(hours=hour), state="failed", reason=text)
        for hour, text in enumerate(texts)
    ]

    def found(query: str) -> list[Any]:
        response = admin_client.get(f"{list_url('run')}?{query}")
        assert response.status_code == 200
        return list(response.context["cl"].result_list)

    text = "reason__icontains=+HTTP+error+"
    assert found(text) == [runs[4], runs[3]], "only the latest three runs are searched"
    assert found(f"{text}&state__exact=failed&scheduled_at__lt=2026-03-01T15:00") == [runs[0]]
    assert found("reason__icontains=") == runs[::-1]
    page = admin_client.get(f"{list_url('run')}?{text}&state__exact=failed").content.decode()
    assert '<input type="hidden" name="state__exact" value="failed">' in page
    assert 'name="reason__icontains" value="HTTP error"' in page
    assert admin_client.get(f"{list_url('run')}?reason__icontains=a%00b").status_code == 302


def test_trigger_filter_searches_latest_runs(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_filter, "RUNS_SEARCHED", 3)
    job, other = make_job(), make_job("other")
    runs = [
        make_run(
            job if hour % 2 else other,
            NOON + timedelta(hours=hour),
            trigger="manual",
            state="succeeded",
        )
        for hour in range(8)
    ]
    waiting = make_run(job, NOON - timedelta(days=1), trigger="manual", state="waiting")

    def found(query: str) -> list[Any]:
        return list(admin_client.get(f"{list_url('run')}?{query}").context["cl"].result_list)

    assert found("trigger__exact=manual") == runs[:4:-1]
    assert found("trigger__exact=manual&scheduled_at__lt=2026-03-01T16:00") == runs[3:0:-1]
    assert found("trigger__exact=manual&state__exact=succeeded") == runs[:4:-1]
    assert found("trigger__exact=manual&state__exact=waiting") == [waiting]
    assert found(f"trigger__exact=manual&job__id__exact={other.pk}") == runs[6::-2]
    assert found("") == [*runs[::-1], waiting]
    assert "100,000" in TRIGGER_TITLE
    assert str(TRIGGER_TITLE) in admin_client.get(list_url("run")).content.decode()


def test_links_of_old_run_find_its_attempts(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_run(make_job(), state="failed", attempt=14)
    tries = [
        make_attempt(old, n, worker="old-worker", started_at=NOON + timedelta(minutes=n))
        for n in range(1, 15)
    ]
    later = make_run(Job.objects.get(), NOON + timedelta(days=1))
    for number in range(1, 8):
        make_attempt(later, number)
    monkeypatch.setattr(time_filter, "ATTEMPTS_SEARCHED", 5)
    page = admin_client.get(run_url(old)).context["page"]

    of_run = admin_client.get(f"{list_url('attempt')}?q={old.pk}").context["cl"].result_list
    by_worker = admin_client.get(dict(page.facts)["worker"].split('"')[1].replace("&amp;", "&"))

    assert list(of_run) == tries[::-1]
    assert next(iter(by_worker.context["cl"].result_list)) == tries[-1]
