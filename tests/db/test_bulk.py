"""Bulk statements write and read what the ORM writes and reads."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, models
from django.test.utils import isolate_apps

from django_dcron.db.bulk import fetch_rows, insert_new, update_by_key, with_keys
from django_dcron.db.statements import Placeholder, Select
from django_dcron.models import Cursor, Job, Run
from django_dcron.models.run import new_run_id
from tests.factories import make_idle_job

pytestmark = pytest.mark.django_db

T = datetime(2026, 3, 1, 12, 0, 0, 250, tzinfo=UTC)
REASONS = ["", "plain", "\"a\" and 'b'", r"a \\ and {b, c}", "每日 täglich", "NULL"]


def columns(jobs: list[Job], **given: list[Any]) -> dict[str, list[Any]]:
    times = [T + timedelta(seconds=number) for number in range(len(jobs))]
    return {
        "id": [new_run_id() for _ in jobs],
        "job_id": [job.pk for job in jobs],
        "scheduled_at": times,
        "due_at": times,
        "claimed_at": [T] * len(jobs),
        **given,
    }


def by_the_orm(values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the rows after the ORM has inserted them, and delete them again."""
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    Run.objects.bulk_create([Run(**row) for row in rows])
    stored = list(Run.objects.order_by("id").values())
    Run.objects.all().delete()
    return stored


@pytest.mark.parametrize("number", [1, 6])
def test_inserted_rows_are_those_of_the_orm(number: int) -> None:
    jobs = [make_idle_job() for _ in range(number)]
    values = columns(
        jobs,
        reason=REASONS[:number],
        node=["a node"] * number,
        missed_before=list(range(number)),
        missed_from=[None, *[T - timedelta(days=1)] * (number - 1)],
        finished_at=[None] * number,
    )
    expected = by_the_orm(values)
    assert insert_new(Run, values, "default") == number
    assert list(Run.objects.order_by("id").values()) == expected


def test_rows_that_conflict_are_omitted_and_not_counted() -> None:
    jobs = [make_idle_job() for _ in range(4)]
    first, second = columns(jobs[:2], node=["a", "a"]), columns(jobs, node=["b"] * 4)
    assert insert_new(Run, first, "default") == 2
    assert insert_new(Run, second, "default") == 2
    assert list(Run.objects.order_by("scheduled_at").values_list("node", flat=True)) == [*"aabb"]


OTHER_FIELDS: dict[str, tuple[Any, tuple[Any, Any]]] = {
    "binary": (models.BinaryField(null=True), (b"\x00\\a", b"b")),
    "boolean": (models.BooleanField(null=True), (True, False)),
    "date": (models.DateField(null=True), (T.date(), date(1999, 12, 31))),
    "decimal": (
        models.DecimalField(null=True, max_digits=9, decimal_places=3),
        (Decimal("-1.5"), Decimal("2.125")),
    ),
    "duration": (models.DurationField(null=True), (timedelta(days=-1), timedelta(microseconds=1))),
    "float": (models.FloatField(null=True), (1.5, -2e300)),
    "address": (models.GenericIPAddressField(null=True), ("192.0.2.1", "2001:db8::1")),
    "json": (models.JSONField(null=True), ({"a": ["\"b'", None]}, [1, True, 1.5])),
    "number": (models.JSONField(null=True), (1, True)),
    "small": (models.SmallIntegerField(null=True), (-1, 7)),
    "time": (models.TimeField(null=True), (T.time(), time(23, 59, 59))),
    "uuid": (models.UUIDField(null=True), (new_run_id(), new_run_id())),
}


@pytest.fixture
def other_model(transactional_db: None) -> Iterator[type[models.Model]]:
    """Return a model with fields of types that the package's columns don't have, too."""
    with isolate_apps("tests.app"):
        options = type("Meta", (), {"app_label": "sample", "db_table": "bulk_of_any_type"})
        own = {"Meta": options, "__module__": __name__, "id": models.IntegerField(primary_key=True)}
        fields = {name: field.clone() for name, (field, _) in OTHER_FIELDS.items()}
        model = type("AnyType", (models.Model,), own | fields)
        with connection.schema_editor() as editor:
            editor.create_model(model)
        yield model
        with connection.schema_editor() as editor:
            editor.delete_model(model)


@pytest.mark.django_db(transaction=True)
def test_inserted_column_may_have_any_type(other_model: Any) -> None:
    values: dict[str, list[Any]] = {"id": [1, 2, 3, 4]}
    values |= {name: [*two, two[0], None] for name, (_, two) in OTHER_FIELDS.items()}
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    other_model.objects.bulk_create([other_model(**row) for row in rows])
    expected = list(other_model.objects.order_by("id").values())
    other_model.objects.all().delete()

    assert insert_new(other_model, values, "default") == 4
    assert list(other_model.objects.order_by("id").values()) == expected
    other_model.objects.update(**{name: two[1] for name, (_, two) in OTHER_FIELDS.items()})
    update_by_key(other_model, values, "default")
    assert list(other_model.objects.order_by("id").values()) == expected


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("values", [([1], [True]), ({"a": 0}, {"a": False}), ((1,), (True,))])
def test_json_values_that_are_equal_in_python_are_kept_apart(other_model: Any, values: Any) -> None:
    insert_new(other_model, {"id": [1, 2], "json": [*values]}, "default")
    stored = other_model.objects.order_by("id").values_list("json", flat=True)
    assert [json.dumps(value) for value in stored] == [json.dumps(value) for value in values]


@pytest.mark.postgresql
def test_text_that_is_too_long_is_not_shortened() -> None:
    jobs = [make_idle_job() for _ in range(2)]
    with pytest.raises(Exception, match="too long"):
        insert_new(Run, columns(jobs, state=["pending", "x" * 11]), "default")


@pytest.mark.parametrize(
    "times",
    [
        [T, T + timedelta(days=1), None, T],
        [T, T, T, T],
        [None, None, None, None],
        [T],
    ],
    ids=["different", "equal", "null", "one"],
)
def test_rows_are_updated_by_their_key(times: list[datetime | None]) -> None:
    jobs = [make_idle_job() for _ in times]
    other = make_idle_job()
    before = Cursor.objects.filter(pk=other.pk).values().get()
    update_by_key(
        Cursor,
        {"job_id": [job.pk for job in jobs], "next_at": times, "previous_at": [T] * len(times)},
        "default",
    )
    stored = {cursor.pk: cursor for cursor in Cursor.objects.all()}
    assert [stored[job.pk].next_at for job in jobs] == times
    assert {stored[job.pk].previous_at for job in jobs} == {T}
    assert Cursor.objects.filter(pk=other.pk).values().get() == before


def test_fetched_rows_are_those_of_the_orm() -> None:
    for jitter in (0, 0, 90):
        make_idle_job(
            target="tests.app.tasks.echo", jitter=timedelta(seconds=jitter), args=[jitter]
        )
    jobs = Job.objects.order_by("pk").values_list("pk", "name", "jitter", "created_at", "args")
    query = Select(Job, lambda: jobs.filter(target=Placeholder(Job, "target")))
    assert len(jobs) == 3
    for _ in range(2):  # compiled, and from the cache
        assert list(fetch_rows(query, target="tests.app.tasks.echo")) == list(jobs)
        assert list(fetch_rows(query, target="tests.app.tasks.nothing")) == []


# --- keys ---------------------------------------------------------------------------------------


def test_rows_are_those_with_the_keys() -> None:
    job = make_idle_job()
    jobs = [job] * 5
    values = columns(jobs)
    insert_new(Run, values, "default")
    first, second, third, *_ = values["id"]
    runs = Run.objects.filter(job=job).exclude(pk=third)
    wanted = [second, third, first, first, new_run_id()]
    assert set(with_keys(runs, wanted).values_list("pk", flat=True)) == {first, second}
    assert with_keys(runs, wanted).update(reason="changed") == 2
    assert Run.objects.filter(reason="changed").count() == 2
    assert not with_keys(runs, [])
