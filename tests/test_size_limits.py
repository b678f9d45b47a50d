"""Every text and JSON column of a job has a size limit, wherever its value comes from.

Values come from the model, the admin, the REST API, the command line, imports and code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import models

from django_dcron import targets
from django_dcron.admin.action_forms import InstantField, UntilField
from django_dcron.jobs import portable, sync
from django_dcron.models import Calendar, Job, Run
from django_dcron.targets import cron
from django_dcron.utils.durations import parse_duration_text
from django_dcron.utils.time_parsing import parse_datetime, parse_duration
from tests.admin.conftest import action_url, add_url, as_rendered, errors, job_url
from tests.contrib.rest.conftest import Api, problem
from tests.factories import make_idle_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db

ECHO = "tests.app.tasks.echo"
LARGE = "x" * 70_000
"""Larger than ``DCRON_ARGUMENTS_LIMIT``."""
UNLIMITED = {"declared", "imported"}
"""Columns that only sync and the import write."""
BODY = {"name": "report", "target": ECHO, "schedule": "@never"}


def too_large(column: models.Field[Any, Any]) -> Any:
    """Return a value for the column with at least 70,000 characters."""
    match column.name:
        case "kwargs":
            return {"a": LARGE}
        case "after":
            return {f"job-{number}": "ended" for number in range(5_000)}
        case "alerts":
            return [{"on": "failed", "to": ["ops"]}] * 2_000
        case "args":
            return [LARGE]
        case _:
            return [LARGE] if isinstance(column, models.JSONField) else LARGE


COLUMNS = [
    (model, column)
    for model in (Job, Calendar)
    for column in model._meta.concrete_fields
    if isinstance(column, models.CharField | models.TextField | models.JSONField)
    and column.name not in UNLIMITED
]


@pytest.mark.parametrize(
    ("model", "column"),
    COLUMNS,
    ids=[f"{model.__name__}.{column.name}" for model, column in COLUMNS],
)
def test_every_column_has_a_size_limit(model: type[models.Model], column: Any) -> None:
    values = BODY if model is Job else {"name": "closed", "dates": "12-25"}
    model(**values).clean_fields()
    with pytest.raises(ValidationError) as refused:
        model(**values | {column.attname: too_large(column)}).clean_fields()
    assert set(refused.value.message_dict) == {column.name}


@pytest.mark.parametrize("name", ["args", "kwargs", "after", "tags", "retry_on", "never_retry_on"])
def test_error_quotes_only_a_part_of_a_long_value(name: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Job(**BODY, **{name: LARGE}).clean_fields()
    assert set(refused.value.message_dict) == {name}
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("value", ["北京", {"Zürich": "北京"}])
@pytest.mark.parametrize("name", ["args", "after", "tags"])
def test_error_quotes_a_value_as_it_was_typed(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        Job(**BODY, **{name: value}).clean_fields()
    assert "北京" in refused.value.message_dict[name][0]


@pytest.mark.parametrize("name", ["tags", "retry_on", "never_retry_on"])
def test_list_of_texts_has_a_size_limit(name: str) -> None:
    Job(**BODY, **{name: ["x" * 255] * 30}).clean_fields()
    for value in (["x" * 256], ["x" * 100] * 200):
        with pytest.raises(ValidationError) as refused:
            Job(**BODY, **{name: value}).clean_fields()
        assert set(refused.value.message_dict) == {name}


@pytest.mark.parametrize(
    ("parse", "short", "long"),
    [
        (parse_datetime, "2026-11-22T18:00 Z", f"2026-11-22T18:00{' ' * 64}Z"),
        (parse_duration, "1 00:00:01", f"{'0' * 64}1 00:00:01"),
        (parse_duration_text, "1d 1s", f"1d{' ' * 64}1s"),
        (InstantField().clean, "2026-11-22 18:00", f"{' ' * 64}2026-11-22 18:00"),
        (UntilField().clean, "18:00:00.0", f"18:00:00.{'0' * 64}"),
    ],
)
def test_text_beyond_its_limit_is_not_parsed(
    parse: Callable[[str], Any], short: str, long: str
) -> None:
    assert parse(short)
    with suppress(ValidationError):
        assert parse(long) is None


def test_admin_refuses_large_arguments(admin_client: Any) -> None:
    job = make_idle_job(target=ECHO)
    for url in (add_url(), job_url(job)):
        sent = {**as_rendered(admin_client.get(url)), **BODY, "args": json.dumps([LARGE])}
        assert "args" in errors(admin_client.post(url, sent))
    sent = {"args": "[]", "kwargs": json.dumps({"a": LARGE})}
    asked = admin_client.post(action_url(job, "run_with"), sent)
    assert set(asked.context["form"].errors) == {"kwargs"}
    assert not Run.objects.exists()


@pytest.mark.parametrize("arguments", [{"args": [LARGE]}, {"kwargs": {"a": LARGE}}])
def test_rest_api_refuses_large_arguments(admin_user: User, arguments: dict[str, Any]) -> None:
    api, job = Api(admin_user), make_idle_job(target=ECHO)
    (name,) = arguments
    version = {"If-Match": "*"}
    requests: list[Callable[[], Any]] = [
        lambda: api.post("jobs/", BODY | arguments),
        lambda: api.patch(f"jobs/{job.pk}/", arguments, **version),
        lambda: api.put(f"jobs/{job.pk}/", BODY | arguments, **version),
        lambda: api.post(f"jobs/{job.pk}/trigger/", arguments),
    ]
    for request in requests:
        assert set(problem(request(), 400)["errors"]) == {name}
    assert not Run.objects.exists()


def test_command_line_refuses_large_arguments(tmp_path: Path) -> None:
    job = make_idle_job(target=ECHO)
    document = json.loads(portable.write_document([job]))
    refused = call("run", str(job.pk), "--no-wait", "--args", json.dumps([LARGE]))
    assert refused.code == 2
    assert "DCRON_ARGUMENTS_LIMIT" in refused.err
    assert not Run.objects.exists()
    document["jobs"][0] |= {"name": "imported", "args": [LARGE]}
    (tmp_path / "jobs.json").write_text(json.dumps(document))
    refused = call("import", str(tmp_path / "jobs.json"))
    assert "DCRON_ARGUMENTS_LIMIT" in refused.out + refused.err
    assert not Job.objects.filter(name="imported").exists()


def test_large_arguments_of_declared_jobs_are_refused() -> None:
    with targets.isolated_registry():
        cron("@never", name="report", kwargs={"text": LARGE})(report)
        assert "DCRON_ARGUMENTS_LIMIT" in " ".join(map(str, sync.apply(sync.plan())))
    assert not Job.objects.filter(name="report").exists()


def report(text: str = "") -> None: ...
