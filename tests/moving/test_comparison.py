"""What is found against what is there: the diff, what is written, and what is refused."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from django_dcron import control
from django_dcron.models import Job
from django_dcron.moving.comparison import MoveKind, compare
from django_dcron.moving.found import Found
from django_dcron.moving.names import clean, distinct
from django_dcron.moving.writing import carry_out
from tests.factories import make_idle_job, make_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db

VALUES: dict[str, Any] = {
    "target": "tests.app.tasks.echo",
    "schedule": "@daily",
    "timezone": "UTC",
    "enabled": True,
    "pause_reason": "",
}


def found(name: str = "a", **values: Any) -> Found:
    return Found(f"row {name}", name, VALUES | values)


def move(name: str = "a", *, disabled: bool = False, **values: Any) -> Any:
    (one,) = compare([found(name, **values)], disabled=disabled)
    return one


def apply(*entries: Found, **options: Any) -> list[Any]:
    return list(carry_out(compare(entries, **options)))


def test_a_new_job() -> None:
    assert move().kind is MoveKind.CREATE
    assert not Job.objects.exists()
    apply(found())
    job = Job.objects.get()
    assert (job.namespace, job.name, job.schedule) == ("default", "a", "@daily")
    assert job.cursor.next_at


def test_only_what_the_source_has_is_compared() -> None:
    apply(found())
    job = Job.objects.get()
    job.max_attempts = 5
    control.save(job)
    assert move().kind is MoveKind.SAME
    changed = move(schedule="@hourly")
    assert (changed.kind, dict(changed.changes)) == (MoveKind.CHANGE, {"schedule": ("@daily", "@hourly")})
    apply(found(schedule="@hourly"))
    job.refresh_from_db()
    assert (job.schedule, job.max_attempts, job.version) == ("@hourly", 5, 3)


def test_it_arrives_paused() -> None:
    apply(found(), disabled=True)
    job = Job.objects.get()
    assert (job.enabled, job.pause_reason) == (False, "imported with --disabled")
    assert move(disabled=True).kind is MoveKind.SAME
    assert dict(move().changes) == {
        "enabled": (False, True),
        "pause_reason": ("imported with --disabled", ""),
    }
    apply(found())
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (True, "")
    assert move(disabled=True).kind is MoveKind.SAME  # those that run are not paused by it


def test_somebodys_reason_for_a_pause_stays() -> None:
    apply(found(enabled=False, pause_reason="was disabled"))
    control.pause(Job.objects.get(), "ask Ann")
    assert move(enabled=False, pause_reason="was disabled").kind is MoveKind.SAME


def test_a_job_that_code_declares_is_a_conflict() -> None:
    make_job(name="a", declared={"schedule": "@weekly"}, schedule="@weekly")
    assert move().kind is MoveKind.CONFLICT
    assert "the code declares it" in move().reasons[0]
    apply(found())
    assert Job.objects.get().schedule == "@weekly"


def test_one_that_is_refused_stops_no_other() -> None:
    moves = apply(found("a", schedule="61 * * * *"), found("b"), found("c", queue="with space"))
    assert [each.kind for each in moves] == [MoveKind.REFUSED, MoveKind.CREATE, MoveKind.REFUSED]
    assert moves[0].reasons[0].startswith("schedule: minute: 61 is out of range")
    assert moves[2].reasons[0].startswith("queue: ")
    assert list(Job.objects.values_list("name", flat=True)) == ["b"]


def test_what_somebody_changes_meanwhile_is_not_overwritten() -> None:
    apply(found())
    moves = compare([found(schedule="@hourly")])
    job = Job.objects.get()
    job.schedule = "@weekly"
    control.save(job)
    (done,) = carry_out(moves)
    assert done.kind is MoveKind.REFUSED
    assert "Import once more." in done.reasons[0]
    assert Job.objects.get().schedule == "@weekly"


def test_what_somebody_creates_meanwhile_is_not_overwritten() -> None:
    moves = compare([found()])
    make_job(name="a", schedule="@weekly")
    (done,) = carry_out(moves)
    assert done.kind is MoveKind.REFUSED
    assert Job.objects.get().schedule == "@weekly"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nightly report", "nightly report"),
        ("send (daily) / Ulm", "send daily - Ulm"),
        ("tasks.a:b@c", "tasks.a:b@c"),
        ("  ", "job"),
        ("日本", "日本"),
    ],
)
def test_names(text: str, name: str) -> None:
    assert clean(text) == name
    Job(name=name).clean_fields(exclude={field.name for field in Job._meta.fields} - {"name"})


def test_another_name_is_said() -> None:
    (one,) = distinct([Found("row 1", "a (b)")])
    assert one.warnings == ("there it is called 'a (b)'",)


def test_long_names_are_cut_and_told_apart() -> None:
    long = [f"{'x' * 150}{n}" for n in range(2)]
    names = {each.name for each in distinct(Found(name, name) for name in long)}
    assert len(names) == 2
    assert {len(name) for name in names} == {120}


def test_names_that_become_the_same() -> None:
    one, two = distinct([Found("row 1", "a/b"), Found("row 2", "a-b")])
    assert one.name != two.name
    assert [each.name for each in distinct([Found("row 2", "a-b"), Found("row 1", "a/b")])] == [
        two.name,
        one.name,
    ]


# --- Our own format -----------------------------------------------------------------------------------------


def test_an_export_comes_back(tmp_path: Path) -> None:
    make_job(name="a", namespace="shop", schedule="0 4 * * MON", max_attempts=4, tags=["x"])
    make_idle_job(name="b")
    for suffix in ("json", "yaml"):
        file = tmp_path / f"jobs.{suffix}"
        assert call("export", "--output", str(file)).code == 0
        assert call("import", str(file)).out == "2 same.\n"
        before = call("export").out
        Job.objects.all().delete()
        assert call("import", str(file), "--apply").code == 0
        assert call("export").out == before


def test_a_field_that_is_not_mentioned_is_at_its_default(tmp_path: Path) -> None:
    job = make_idle_job(name="a", max_attempts=4)
    file = tmp_path / "jobs.json"
    fields = {"name": "a", "target": job.target, "schedule": job.schedule, "enabled": job.enabled}
    file.write_text(json.dumps({"format": "django-dcron", "version": 1, "jobs": [fields]}))
    assert "change a max_attempts: 4 -> 1" in call("import", str(file)).out


def test_an_export_goes_into_another_namespace(tmp_path: Path) -> None:
    make_idle_job(name="a", namespace="shop")
    file = tmp_path / "jobs.json"
    call("export", "--output", str(file))
    assert call("import", str(file), "--namespace", "copy", "--apply").code == 0
    assert set(Job.objects.values_list("namespace", "name")) == {("shop", "a"), ("copy", "a")}


def test_what_code_declares_is_left_to_sync(tmp_path: Path) -> None:
    make_idle_job(name="a", declared={"schedule": "@daily"})
    file = tmp_path / "jobs.json"
    call("export", "--output", str(file))
    Job.objects.all().delete()
    done = call("import", str(file), "--apply")
    assert (done.code, Job.objects.count()) == (0, 0)
    assert "left out a code declares it" in done.out


def test_an_export_with_problems(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    good = {"name": "good", "target": "tests.app.tasks.ok", "schedule": "@daily"}
    file.write_text(
        json.dumps(
            {"format": "django-dcron", "version": 1, "jobs": [good, {"name": "bad", "max_attemps": 1}]}
        )
    )
    done = call("import", str(file), "--apply")
    assert done.code == 1
    assert "did you mean max_attempts?" in done.out
    assert "target is missing" in done.out
    assert list(Job.objects.values_list("name", flat=True)) == ["good"]
    file.write_text("[]")
    assert (call("import", str(file)).code, call("import", str(file)).out) == (2, "")


# --- What is written ----------------------------------------------------------------------------------------


def test_the_json_document(tmp_path: Path) -> None:
    make_job(name="b", schedule="@weekly", target="tests.app.tasks.ok", enabled=True)
    file = tmp_path / "jobs.json"
    jobs = [
        {
            "name": name,
            "target": "tests.app.tasks.ok",
            "schedule": "@daily",
            "starts_at": "2027-01-01T00:00:00Z",
        }
        for name in ("a", "b")
    ]
    file.write_text(json.dumps({"format": "django-dcron", "version": 1, "jobs": jobs}))
    document = call("import", str(file), "--json").json
    assert document["applied"] is False
    assert document["counts"] == {
        "create": 1,
        "change": 1,
        "same": 0,
        "left out": 0,
        "conflict": 0,
        "refused": 0,
    }
    created, changed = document["jobs"]
    assert created["changes"]["starts_at"] == {"from": None, "to": "2027-01-01T00:00:00Z"}
    assert changed["changes"]["schedule"] == {"from": "@weekly", "to": "@daily"}
    assert Job.objects.count() == 1
    assert call("import", str(file), "--json", "--apply").json["applied"] is True
    assert Job.objects.get(name="b").starts_at == datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("source", ["django-celery-beat", "django-q2", "django-apscheduler"])
def test_a_scheduler_that_is_not_installed(source: str) -> None:
    answer = call("import", source)
    assert answer.code == 2
    assert f"{source} is not there" in answer.err


def test_options_that_do_not_go_together() -> None:
    assert "for files" in call("import", "redbeat", "--timezone", "UTC").err
    assert call("import", "redbeat", "--namespace", "no way!").code == 2
