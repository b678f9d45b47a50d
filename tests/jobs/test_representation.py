"""Reading a job's document restores the job, and every interface shows the same document."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import translation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_dcron import control
from django_dcron.jobs import portable
from django_dcron.jobs.audit.entries import read_change
from django_dcron.jobs.representation import (
    CONFIDENTIAL,
    FIELDS,
    JOB_FIELDS,
    InvalidField,
    ValueFormat,
    document_of,
    portable_document,
    read_fields,
    redact_document,
    summary_of,
    unknown_field,
)
from django_dcron.models import AuditEntry, Calendar, Job, Limit
from django_dcron.targets import MASK
from tests.factories import entries_by_users
from tests.jobs.test_portable import FULL
from tests.management.calling import call

SECRET = "hunter2-hunter2"
TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), max_size=20
)
SAFE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES: dict[ValueFormat, st.SearchStrategy[Any]] = {
    ValueFormat.TEXT: TEXT,
    ValueFormat.NAME: TEXT,
    ValueFormat.BOOLEAN: st.booleans(),
    ValueFormat.INTEGER: st.integers(),
    ValueFormat.NUMBER: st.floats(allow_nan=False, allow_infinity=False),
    ValueFormat.DURATION: st.timedeltas(timedelta(days=-1), timedelta(days=36_500)),
    ValueFormat.TIME: st.datetimes(
        datetime(1970, 1, 2),  # noqa: DTZ001 (Hypothesis adds the time zone)
        datetime(2199, 12, 30),  # noqa: DTZ001
        timezones=st.timezones(),
        # Python compares times of a repeated or skipped hour in two zones as different.
    ).map(lambda time: time.astimezone(UTC)),
    ValueFormat.JSON: st.lists(SAFE | TEXT, max_size=3)
    | st.dictionaries(TEXT, SAFE | TEXT | st.lists(SAFE, max_size=3), max_size=3),
}
JOBS = st.fixed_dictionaries(
    {
        field.attname: VALUES[field.format] | (st.none() if field.nullable else st.nothing())
        for field in JOB_FIELDS.values()
    }
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(values=JOBS)
def test_document_restores_the_job(values: dict[str, Any]) -> None:
    job = Job(**values)
    document = json.loads(json.dumps(document_of(job)))
    parsed = read_fields(document, list(JOB_FIELDS.values()), ())
    again = Job(**{JOB_FIELDS[name].attname: value for name, value in parsed.values.items()})
    assert not parsed.errors
    assert {name: getattr(again, name) for name in values} == values
    assert document_of(again) == document
    assert all(
        field.is_same(field.value_of(job), field.value_of(again)) for field in JOB_FIELDS.values()
    )


@given(value=st.sampled_from([None, True, 1, 1.5, "x", [], {}, "1h30m", "2026-12-01T09:00:00Z"]))
def test_each_format_accepts_only_its_json_type(value: Any) -> None:
    kinds: dict[ValueFormat, Any] = {
        ValueFormat.TEXT: str,
        ValueFormat.NAME: str,
        ValueFormat.BOOLEAN: bool,
        ValueFormat.INTEGER: int,
        ValueFormat.NUMBER: (int, float),
        ValueFormat.DURATION: str,
        ValueFormat.TIME: str,
        ValueFormat.JSON: (str, int, float, list, dict, bool),
    }
    for field in JOB_FIELDS.values():
        is_right = isinstance(value, kinds[field.format])
        if isinstance(value, bool) and field.format in (ValueFormat.INTEGER, ValueFormat.NUMBER):
            is_right = False
        if not is_right and not (value is None and field.nullable):
            with pytest.raises(InvalidField) as error:
                field.read(value)
            assert error.value.code == ("null" if value is None else "invalid")


@pytest.mark.parametrize("text", ["", " ", "10", "1.5", "2,5", "3 10"])
def test_duration_that_is_blank_or_has_no_unit_is_refused(text: str) -> None:
    with pytest.raises(InvalidField):
        JOB_FIELDS["jitter"].read(text)


@pytest.mark.parametrize("text", ["0", "0.0", "00:00:00", "PT0S"])
def test_duration_of_zero_needs_no_unit(text: str) -> None:
    assert JOB_FIELDS["jitter"].read(text) == timedelta()


def test_text_for_a_person_keeps_all_letters() -> None:
    assert JOB_FIELDS["kwargs"].text({"city": "Zürich", "name": "北京"}) == (
        '{"city": "Zürich", "name": "北京"}'
    )


def test_true_and_one_are_different_json_values() -> None:
    assert not JOB_FIELDS["kwargs"].is_same({"dry_run": True}, {"dry_run": 1})
    assert JOB_FIELDS["retry_jitter"].is_same(1, 1.0)


def test_fields_are_marked_read_only_local_or_confidential() -> None:
    read_only = {name for name, field in JOB_FIELDS.items() if not field.writable}
    imported = {"import_source", "import_key", "imported"}
    times = {"created_at", "updated_at", "deleted_at"}
    assert read_only == {"id", "version", "declared", *times, *imported}
    local = {name for name, field in JOB_FIELDS.items() if not field.portable}
    assert local == read_only - {"declared"}
    assert {name for name, field in JOB_FIELDS.items() if field.confidential} == {*CONFIDENTIAL}
    assert list(FIELDS[Calendar]) == ["name", "description", "dates", "version"]


# --- every interface ----------------------------------------------------------------------------


@pytest.fixture
def job(db: None) -> Job:
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    control.save_limit(Limit(name="api", max_running=3))
    control.save(Job(name="plain", target="tests.app.tasks.ok", schedule="@never"))
    secret = {"password": SECRET}
    given = FULL | {"args": [f"--token={SECRET}"], "kwargs": secret, "declared": {"kwargs": secret}}
    return Job.objects.get(pk=control.save(Job(**given | {"after": {"plain": "failed"}})).pk)


def exported(client: Client, form: str) -> Any:
    url = reverse("admin:django_dcron_job_export", args=[form])
    response: Any = client.get(url, {"q": "full"})
    return b"".join(response.streaming_content).decode()


def test_rest_cli_and_export_show_the_same_document(job: Job, admin_client: Client) -> None:
    whole, listed = document_of(job), summary_of(job)
    assert SECRET not in json.dumps(redact_document(whole))
    key = f"{job.namespace}/{job.name}"

    assert admin_client.get(f"/dcron/jobs/{job.pk}/").json() == whole
    (row,) = admin_client.get("/dcron/jobs/", {"search": "full"}).json()["results"]
    status = row.pop("status")
    assert row == listed

    shown = call("show", key, "--json").json["job"]
    assert shown == redact_document(whole) | {"status": status}
    (row,) = call("list", "--search", "full", "--json").json["jobs"]
    assert row == listed | {"status": status}

    (row,) = json.loads(exported(admin_client, "json"))["jobs"]
    assert row == redact_document(whole)
    document = json.loads(call("export", key).out)
    (row,) = document["jobs"]
    assert row == portable_document(job) == {name: whole[name] for name in row}
    assert document["calendars"] == [portable_document(Calendar.objects.get())]

    (entry,) = portable.read_document(json.dumps(document)).entries
    assert portable_document(entry.job()) == row


def test_history_has_the_values_of_the_document(job: Job, admin_client: Client) -> None:
    before = document_of(job)
    blank = Job(name="full job", target="tests.app.tasks.ok", schedule="@never", enabled=False)
    fields = [field for field in JOB_FIELDS.values() if field.writable]
    url = f"/dcron/jobs/{job.pk}/"
    sent = {field.name: field.json_of(blank) for field in fields}
    changed = admin_client.put(
        url, json.dumps(sent), content_type="application/json", headers={"If-Match": "*"}
    )
    assert changed.status_code == 200, changed.content
    change = read_change(entries_by_users().get())
    differing = [field for field in fields if before[field.name] != sent[field.name]]
    assert [each.field for each in change.fields] == [field.name for field in differing]
    assert len(differing) > 30
    for field, logged in zip(differing, change.fields, strict=True):
        for value, written in ((logged.old, before[field.name]), (logged.new, sent[field.name])):
            expected = field.redacted(written)
            is_text = field.format is ValueFormat.JSON and expected is not None
            assert (json.loads(value) if is_text else value) == expected, field.name
    entries = AuditEntry.objects.values_list("before", "after")
    assert SECRET not in str(list(entries))


def test_declared_secret_is_redacted(job: Job, admin_client: Client) -> None:
    for text in (call("show", str(job.pk), "--json").out, exported(admin_client, "json")):
        assert SECRET not in text
        assert MASK in text
    assert SECRET not in exported(admin_client, "csv")


def test_document_can_be_sent_back_unchanged(job: Job, admin_client: Client) -> None:
    Job.objects.filter(pk=job.pk).update(description="  indented\n")
    url = f"/dcron/jobs/{job.pk}/"
    read = admin_client.get(url)
    replaced = admin_client.put(
        url, read.content, content_type="application/json", headers={"If-Match": read["ETag"]}
    )
    assert replaced.status_code == 200, replaced.content
    unlike = {name for name, value in replaced.json().items() if value != read.json()[name]}
    assert unlike == {"version", "updated_at"}


def test_times_are_written_in_utc_and_durations_in_short_form() -> None:
    job = Job(starts_at=datetime(2026, 12, 1, 9, tzinfo=UTC), timeout=timedelta(minutes=90))
    assert JOB_FIELDS["starts_at"].json_of(job) == "2026-12-01T09:00:00Z"
    assert JOB_FIELDS["timeout"].json_of(job) == "1h30m"
    assert JOB_FIELDS["timeout"].read("PT90M") == timedelta(minutes=90)


def test_hint_for_an_unknown_field_is_translated_except_for_the_field_to_use() -> None:
    for name, field in (("tz", "timezone"), ("disabled", "enabled"), ("retry", "max_attempts")):
        error = unknown_field(name, JOB_FIELDS)
        with translation.override("de"):
            translated = error.translate(translation)
        assert field in translated
        assert not {"Use", "with", "which"} & {*translated.split()}
