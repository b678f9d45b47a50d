"""``control.save`` accepts the values that ``@cron`` accepts, and explains the others by field."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from celery.schedules import crontab
from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext_lazy

from django_dcron import control, cron, targets
from django_dcron.exceptions import BulkSaveError
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.models import Calendar, Job
from tests.app import tasks
from tests.factories import make_job

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
TENANT = UUID("8b7d2f0e-5c1a-4e57-9a43-1f6f0c3a9d21")


class Unrelated(Exception):
    """An exception of a project."""


def errors_of(**fields: Any) -> dict[str, list[str]]:
    with pytest.raises(ValidationError) as caught:
        make_job(**fields)
    assert not Job.objects.exists()
    return caught.value.message_dict


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("timeout", 30, 30 * SECOND),
        ("timeout", 0.5 * 3, 1.5 * SECOND),
        ("timeout", 30 * SECOND, 30 * SECOND),
        ("timeout", "00:00:30", 30 * SECOND),
        ("timeout", None, None),
        ("jitter", 0, timedelta()),
        ("keep_for", 86_400, timedelta(days=1)),
        ("retry_on", [ConnectionError, "TimeoutError"], ["ConnectionError", "TimeoutError"]),
        ("retry_on", ConnectionError, ["ConnectionError"]),
        ("retry_on", "TimeoutError", ["TimeoutError"]),
        ("never_retry_on", (Unrelated,), [f"{__name__}.Unrelated"]),
        ("tags", "billing", ["billing"]),
        ("tags", ("a", "b"), ["a", "b"]),
        ("tags", {"a"}, ["a"]),
        ("args", (), []),
        ("kwargs", MappingProxyType({}), {}),
        ("alerts", ({"on": "failed", "to": ["ops"]},), [{"on": "failed", "to": ["ops"]}]),
        (
            "alerts",
            [{"on": "late", "within": 90 * SECOND, "to": ["ops"]}],
            [{"on": "late", "within": "1m30s", "to": ["ops"]}],
        ),
        ("timezone", None, django_settings.TIME_ZONE),
        ("schedule", gettext_lazy("@daily"), "@daily"),
        ("target", tasks.ok, "tests.app.tasks.ok"),
        ("starts_at", "2030-01-01T00:00Z", datetime(2030, 1, 1, tzinfo=UTC)),
    ],
)
def test_values_are_stored_as_those_of_cron(
    field: str, value: object, stored: object, settings: Any
) -> None:
    settings.DCRON_ALERT_CHANNELS = {"ops": {"mail": ["a@example.com"]}}
    job = make_job(**{field: value})
    job.refresh_from_db()
    assert getattr(job, field) == stored


def test_function_with_cron_is_a_target() -> None:
    with targets.isolated_registry():

        @cron("@never")
        def sync_tenant() -> None: ...

        (declaration,) = targets.declarations()
        assert make_job(target=sync_tenant).target == declaration.target


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("timeout", [30], ["[30]", "timedelta"]),
        ("timeout", True, ["True", "timedelta"]),
        ("timeout", float("nan"), ["nan", "timedelta"]),
        ("starts_at", datetime(2030, 1, 1), ["2030, 1, 1", "aware"]),  # noqa: DTZ001
        ("starts_at", "2026-12-01T00:00", ["2026-12-01T00:00:00", "aware"]),
        ("starts_at", date(2030, 1, 1), ["2030, 1, 1", "aware"]),
        ("ends_at", 5, ["5", "aware"]),
        ("paused_until", datetime(2030, 1, 1), ["2030, 1, 1", "aware"]),  # noqa: DTZ001
        ("retry_on", [object], ["object", "exception classes"]),
        ("tags", ["a", TENANT], ["tags[1]", "UUID", "str(value)"]),
        ("kwargs", {"tenant": TENANT}, ["kwargs['tenant']", "UUID", "str(value)"]),
        ("kwargs", {"days": [{"first": date(2030, 1, 1)}]}, ["['days'][0]['first']", "isoformat"]),
        ("kwargs", {TENANT: 1}, ["key of type UUID", "text"]),
        ("kwargs", {"amount": Decimal("1.5")}, ["kwargs['amount']", "Decimal", "str(value)"]),
        ("args", (b"bytes",), ["args[0]", "bytes", "decode"]),
        ("args", [SECOND], ["args[0]", "timedelta", "total_seconds"]),
        ("args", [{1}], ["args[0]", "set", "list"]),
        ("args", [object], ["args[0]", "type", "list or a dict"]),
        ("args", [Calendar(name="holidays")], ["args[0]", "Calendar", "value.pk"]),
        ("after", {"other": TENANT}, ["after['other']", "UUID"]),
        ("alerts", [{"on": "failed", "to": {"ops"}}], ["alerts[0]['to']", "set"]),
        ("schedule", crontab(minute="*/5"), ["*/5 * * * *"]),
        ("schedule", 300 * SECOND, ["@every 5m"]),
        ("target", 5, ["5", "@cron"]),
        ("target", datetime.now, ["method now", "@cron"]),
        ("target", errors_of, [f"{__name__}.errors_of", "cron.py"]),
    ],
)
def test_other_values_are_explained(field: str, value: object, named: list[str]) -> None:
    enabled = field != "paused_until"
    (found,) = errors_of(enabled=enabled, **{field: value}).items()
    assert found[0] == field
    assert [text for text in named if text not in found[1][0]] == [], found


def test_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["again"] = value
    assert errors_of(kwargs=value).keys() == {"kwargs"}


def test_all_errors_are_reported_at_once() -> None:
    found = errors_of(timeout=[1], kwargs={"tenant": TENANT}, schedule="x", name="a/b")
    assert found.keys() == {"timeout", "kwargs", "schedule", "name"}


def test_values_that_json_has_keep_the_message_of_the_model() -> None:
    """It is translated, because users can enter such values."""
    values: Mapping[str, Any] = {"tags": 5, "retry_on": [1], "args": "x", "kwargs": [], "after": []}
    assert "JSON" in "".join(text for texts in errors_of(**values).values() for text in texts)


def test_saved_batch_accepts_the_same_values() -> None:
    control.save_many(
        Job(name=f"sync-{number}", target=tasks.ok, schedule="@daily", timeout=number + 1)
        for number in range(3)
    )
    assert sorted(Job.objects.values_list("timeout", flat=True)) == [SECOND, 2 * SECOND, 3 * SECOND]
    with pytest.raises(BulkSaveError) as caught:
        control.save_many([Job(name="bad", target=tasks.ok, schedule="@daily", timeout=[1])])
    (error,) = caught.value.errors.values()
    assert isinstance(error, ValidationError)
    assert error.message_dict.keys() == {"timeout"}


ODD: tuple[Any, ...] = (
    *(None, object(), b"x", 5, -1, 1.5, float("nan"), float("inf"), True, "x", "", "a\x00"),
    *((), [], [1], [None], [[]], {}, {1: 2}, {"x": object()}, {1}, (1, "x"), range(2), TENANT),
    *(date(2030, 1, 1), datetime(2030, 1, 1), datetime.max, SECOND, timedelta.max, ValueError),  # noqa: DTZ001, DTZ901
)


@pytest.mark.parametrize("field", [name for name, each in JOB_FIELDS.items() if each.writable])
def test_no_value_raises_another_error(field: str) -> None:
    given = {"name": "job", "target": tasks.ok, "schedule": "@daily"}
    for value in ODD:
        job = Job(**(given | {JOB_FIELDS[field].attname: value}))
        try:
            with transaction.atomic():
                control.save(job)
                transaction.set_rollback(True)
        except ValidationError:
            pass
        except Exception as error:
            pytest.fail(f"{field}={value!r}: {error!r}")
