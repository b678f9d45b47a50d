"""Test jobs over HTTP: create, read, replace, change and delete.

Each change names the version it is based on.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_dcron import control
from django_dcron.contrib.rest.concurrency import check_match
from django_dcron.contrib.rest.jobs import viewset
from django_dcron.db import clock
from django_dcron.db.now import database_now
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.jobs.representation import to_json
from django_dcron.models import Calendar, Cursor, Job, Limit, Run, Statistics
from django_dcron.models.job_states import DECLARED_DISABLED
from tests.admin.conftest import as_rendered, errors
from tests.contrib.rest.conftest import Api, problem
from tests.factories import make_idle_job, make_job, make_run

JOB = {"name": "report", "target": "tests.app.tasks.echo", "schedule": "30 3 * * *"}


def _address(job: Job) -> str:
    return f"jobs/{job.pk}/"


# --- create ---------------------------------------------------------------------------------------


def test_job_is_created_with_all_fields(api: Api) -> None:
    given = {
        "timezone": "Europe/Berlin",
        "args": [1],
        "timeout": "1m30.5s",
        "jitter": "0s",
        "tags": ["x"],
    }
    given["starts_at"] = "2026-01-01T00:00:00+01:00"

    response = api.post("jobs/", JOB | given)

    assert response.status_code == 201
    job = Job.objects.get()
    assert (job.timezone, job.args, job.tags) == ("Europe/Berlin", [1], ["x"])
    assert job.timeout == timedelta(seconds=90.5)
    assert job.cursor.next_at is not None
    assert response["ETag"] == '"1"'
    assert response["Location"] == f"/dcron/jobs/{job.pk}/"
    shown = api.get(response["Location"]).json()
    assert shown == response.json()
    assert shown.items() >= (JOB | given | {"starts_at": "2025-12-31T23:00:00Z"}).items()


def test_job_with_lines_runs_once_when_the_excluded_time_ends(api: Api) -> None:
    control.save_calendar(Calendar(name="maintenance", dates="02:00-04:00"))
    lines = "*/20 2 * * *\n@rrule 2026-01-02T02:30 FREQ=WEEKLY;INTERVAL=2;BYDAY=FR"
    given = {"schedule": lines, "calendar": "maintenance", "calendar_policy": "window_end"}
    made = api.post("jobs/", JOB | given)
    assert made.status_code == 201
    assert made.json().items() >= given.items()
    shown = api.post("jobs/preview/", given | {"count": 3, "timezone": "UTC"}).json()
    assert [each["at"][10:16] for each in shown["occurrences"]] == ["T04:00"] * 3
    refused = problem(
        api.post("jobs/", JOB | {"name": "other", "schedule": "@daily\n@every 1h"}), 400
    )
    assert [*refused["errors"]] == ["schedule"]


def test_job_with_a_calendar_is_created_changed_and_previewed(api: Api) -> None:
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    made = api.post("jobs/", JOB | {"calendar": "closed", "calendar_policy": "next_day"})
    assert made.status_code == 201
    assert (made.json()["calendar"], Job.objects.get().calendar_id) == ("closed", "closed")
    changed = api.patch(made["Location"], {"calendar": None}, if_match=made["ETag"])
    assert (changed.status_code, changed.json()["calendar"]) == (200, None)
    preview = {"schedule": "0 9 24,25 12 *", "calendar": "closed", "count": 3}
    shown = api.post("jobs/preview/", preview).json()
    assert {each["at"][5:10] for each in shown["occurrences"]} == {"12-24"}
    refused = problem(api.post("jobs/preview/", preview | {"schedule": "@every 1h"}), 400)
    assert [*refused["errors"]] == ["calendar"]


@pytest.mark.parametrize(
    ("field", "sent", "typed"),
    [
        ("schedule", "61 * * * *", "61 * * * *"),
        ("timezone", "Mars/Olympus", "Mars/Olympus"),
        ("target", "nothing.such", "nothing.such"),
        ("target", "", ""),
        ("name", "two  spaces", "two  spaces"),
        ("name", "x" * 121, "x" * 121),
        ("queue", "a b", "a b"),
        ("max_attempts", 0, "0"),
        ("max_attempts", 10**30, str(10**30)),
        ("priority", 10, "10"),
        ("misfire_grace", "0s", "0s"),
        ("timeout", "3153600001s", "3153600001s"),
        ("retry_jitter", 1.5, "1.5"),
        ("retry_on", [1], "[1]"),
        ("kwargs", [], "[]"),
        ("paused_until", "2020-01-01T00:00:00Z", "2020-01-01"),
    ],
)
def test_field_errors_are_the_same_as_in_the_admin(
    field: str, sent: Any, typed: str, api: Api, admin_client: Client
) -> None:
    paused = {"enabled": False} if field == "paused_until" else {}

    refused = problem(api.post("jobs/", JOB | paused | {field: sent}), 400)

    assert [*refused["errors"]] == [field]
    assert refused["detail"].startswith(f"{field}: ")
    url = reverse("admin:django_dcron_job_add")
    form = (
        as_rendered(admin_client.get(url))
        | {name: str(value) for name, value in JOB.items()}
        | {field: typed}
    )
    if paused:
        form |= {"paused_until_0": typed, "paused_until_1": "00:00"}
        del form["enabled"]
    assert refused["errors"] == errors(admin_client.post(url, form))
    assert not Job.objects.exists()


def test_error_of_a_new_job_without_a_target_is_that_of_an_empty_target(api: Api) -> None:
    without = {name: value for name, value in JOB.items() if name != "target"}
    texts = [
        problem(api.post("jobs/", each), 400)["errors"] for each in (without, JOB | {"target": ""})
    ]
    assert texts[0] == texts[1]
    assert "shop.tasks.import_orders" in texts[0]["target"][0]


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (JOB | {"shedule": "x"}, "shedule"),
        (JOB | {"enabled": "yes"}, "enabled"),
        (JOB | {"max_attempts": "3"}, "max_attempts"),
        (JOB | {"max_attempts": 2.5}, "max_attempts"),
        (JOB | {"max_attempts": True}, "max_attempts"),
        (JOB | {"timeout": 90}, "timeout"),
        (JOB | {"timeout": "1 day ago"}, "timeout"),
        (JOB | {"timeout": 10**400}, "timeout"),
        (JOB | {"retry_jitter": 10**400}, "retry_jitter"),
        (JOB | {"name": 5}, "name"),
        (JOB | {"name": None}, "name"),
        (JOB | {"name": "a\0b"}, "name"),
        (JOB | {"description": "a\0b"}, "description"),
        (JOB | {"description": "\ud800"}, "description"),
        (JOB | {"starts_at": "2026-01-01T00:00:00"}, "starts_at"),
        (JOB | {"starts_at": "9999-12-31T23:59:59-12:00"}, "starts_at"),
        (JOB | {"starts_at": "0001-01-01T00:00:00+12:00"}, "starts_at"),
        (JOB | {"starts_at": "2026-02-30T00:00:00Z"}, "starts_at"),
        (JOB | {"starts_at": 5}, "starts_at"),
        (JOB | {"calendar": "none"}, "calendar"),
        (JOB | {"calendar": 5}, "calendar"),
        (JOB | {"calendar": ["none"]}, "calendar"),
        (JOB | {"calendar": "a\0b"}, "calendar"),
        (JOB | {"calendar": "\ud800"}, "calendar"),
        (JOB | {"calendar_policy": "later"}, "calendar_policy"),
        (JOB | {"args": {}}, "args"),
        (JOB | {"args": "[]"}, "args"),
        (JOB | {"args": ["a\0b"]}, "args"),
        (JOB | {"args": ["\udc00"]}, "args"),
        (JOB | {"args": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}, "args"),
        (JOB | {"tags": ["a", 5]}, "tags"),
        (["no", "object"], "non_field_errors"),
        ("no object", "non_field_errors"),
        (5, "non_field_errors"),
        ({}, "name"),
    ],
)
def test_invalid_body_is_refused(sent: Any, field: str, api: Api) -> None:
    refused = problem(api.post("jobs/", sent), 400)

    assert field in refused["errors"]
    assert not Job.objects.exists()


def test_json_of_the_maximum_depth_is_stored(api: Api) -> None:
    deep: Any = "bottom"
    for _level in range(30):
        deep = [deep]

    response = api.post("jobs/", JOB | {"args": deep})

    assert response.status_code == 201
    assert Job.objects.get().args == deep


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b'{"name": NaN}', "application/json", 400),
        (b'{"name": "\xff"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"1" * 5_000, "application/json", 400),
        (b"name=x", "application/x-www-form-urlencoded", 415),
        (b"name: x", "application/yaml", 415),
        (b"x", "", 415),
        (b"x", "application/json; charset=nonsense", 400),
        (b" " * 3_000_000, "application/json", 413),
    ],
)
def test_unreadable_body_is_refused(body: bytes, content_type: str, status: int, api: Api) -> None:
    problem(api.client.generic("POST", "/dcron/jobs/", body, content_type=content_type), status)


def test_duplicate_name_is_refused(api: Api) -> None:
    make_idle_job(name="report")

    refused = problem(api.post("jobs/", JOB), 400)

    assert "already exists" in refused["errors"]["non_field_errors"][0]
    assert refused["code"] == "already_exists"
    assert Job.objects.count() == 1
    assert problem(api.post("jobs/", JOB | {"schedule": "bad"}), 400)["code"] == "invalid"


# --- change ---------------------------------------------------------------------------------------


def test_change_with_a_matching_etag_is_applied(api: Api) -> None:
    job = make_idle_job(target="tests.app.tasks.echo", args=[1])
    tag = api.get(_address(job))["ETag"]

    changed = api.patch(_address(job), {"schedule": "0 4 * * *"}, if_match=tag)

    assert changed.status_code == 200
    assert changed["ETag"] == '"2"' != tag
    assert (changed.json()["schedule"], changed.json()["args"]) == ("0 4 * * *", [1])
    assert Cursor.objects.get(pk=job.pk).schedule == "0 4 * * *"


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 428),
        ('"1"', 412),
        ('"7", "8"', 412),
        ('W/"1"', 412),
        ("2", 400),
        ("nonsense", 400),
        ('"2"', 200),
        ('W/"2"', 200),
        ('"1", "2"', 200),
        ("*", 200),
    ],
)
def test_if_match_prevents_lost_updates(
    method: str, header: str | None, status: int, api: Api
) -> None:
    job = make_idle_job(target="tests.app.tasks.echo", description="first")
    job.description = "second"
    control.save(job)
    body = None if method == "DELETE" else JOB | {"description": "third"}

    headers = {} if header is None else {"if_match": header}
    response = api.send(method, _address(job), body, **headers)

    if status == 200:
        assert response.status_code == (204 if method == "DELETE" else 200)
        assert not Job.objects.filter(description="second").exists()
    else:
        problem(response, status)
        assert Job.objects.get().description == "second"


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_concurrent_change_is_not_overwritten(
    method: str, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_idle_job()

    def check_match_then_change(request: Any, read: Job) -> None:
        check_match(request, read)
        Job.objects.filter(pk=job.pk).update(description="other", version=2)

    monkeypatch.setattr(viewset, "check_match", check_match_then_change)

    body = None if method == "DELETE" else JOB | {"description": "new"}
    problem(api.send(method, _address(job), body, if_match='"1"'), 412)

    assert Job.objects.values_list("description", "version").get() == ("other", 2)


def test_replacement_resets_omitted_fields_to_their_defaults(api: Api) -> None:
    job = make_idle_job(
        target="tests.app.tasks.echo", args=[1], tags=["x"], max_attempts=3, description="old"
    )

    replaced = api.put(_address(job), JOB, if_match="*").json()

    assert (replaced["name"], replaced["args"], replaced["tags"]) == ("report", [], [])
    assert (replaced["max_attempts"], replaced["description"]) == (1, "")
    assert replaced["id"] == job.pk


def test_replacement_that_enables_the_job_clears_its_pause(api: Api) -> None:
    """A replacement without ``enabled`` enables the job, because that is the default."""
    job = make_idle_job()
    control.pause(job, "deploy", datetime(2150, 1, 1, tzinfo=UTC))

    replaced = api.put(_address(job), JOB | {"pause_reason": "holidays"}, if_match="*").json()

    assert (replaced["enabled"], replaced["pause_reason"], replaced["paused_until"]) == (
        True,
        "",
        None,
    )


def test_representation_can_be_sent_back(api: Api) -> None:
    job = make_idle_job(
        target="tests.app.tasks.echo", args=[1], timeout=timedelta(minutes=5), tags=["x"]
    )
    read = api.get(_address(job))

    sent_back = api.put(_address(job), read.json(), if_match=read["ETag"]).json()

    unlike = {name for name in sent_back if sent_back[name] != read.json()[name]}
    assert unlike == {"version", "updated_at"}


def test_refused_change_writes_nothing(api: Api) -> None:
    job = make_idle_job()

    refused = problem(
        api.patch(_address(job), {"description": "x", "schedule": "nonsense"}, if_match="*"), 400
    )

    assert [*refused["errors"]] == ["schedule"]
    assert Job.objects.values_list("description", "version").get() == ("", 1)


@pytest.mark.parametrize(
    ("method", "body", "invalid"),
    [
        ("PATCH", {"timeout": 5, "enabled": True}, {"timeout", "ends_at"}),
        ("PATCH", {"timeout": 5, "schedule": "nonsense", "colour": "red"}, {"schedule", "colour"}),
        ("PUT", JOB | {"timeout": 5}, set()),
        ("PUT", {"timeout": 5, "queue": "a b"}, {"name", "target", "schedule", "queue"}),
        ("PUT", [], {"non_field_errors"}),
    ],
)
def test_wrong_types_and_other_errors_are_reported_at_once(
    api: Api, method: str, body: Any, invalid: set[str]
) -> None:
    """A field that a replacement omits gets its default, so its stored value is no error."""
    job = make_idle_job(enabled=False, ends_at=datetime(2020, 1, 1, tzinfo=UTC))
    wrong = {"timeout"} if "timeout" in body else set()
    refused = problem(api.send(method, _address(job), body, if_match="*"), 400)
    assert {*refused["errors"]} == wrong | invalid


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_names_in_a_change_with_a_wrong_type_are_looked_up_once(api: Api, method: str) -> None:
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    control.save_limit(Limit(name="narrow", max_running=1))
    job = make_idle_job(calendar_id="closed", limit_id="narrow")
    body = JOB | {"timeout": 5}
    names = {"calendar": "closed", "limit": "narrow"}
    counts = []
    for sent in (body, body, body | names):  # the first request fills the caches
        with CaptureQueriesContext(connection) as queries:
            problem(api.send(method, _address(job), sent, if_match="*"), 400)
        counts.append(len(queries))
    assert counts[2] - counts[1] == len(names)


def test_enabling_a_job_clears_its_pause(api: Api) -> None:
    job = make_idle_job()
    control.pause(job, "deploy", database_now("default") + timedelta(hours=1))

    shown = api.patch(_address(job), {"enabled": True}, if_match="*").json()

    assert (shown["enabled"], shown["pause_reason"], shown["paused_until"]) == (True, "", None)


@pytest.mark.parametrize("reason", [{}, {"pause_reason": "deploy"}])
def test_end_of_a_pause_is_refused_if_a_sync_disabled_the_job(
    api: Api, reason: dict[str, str]
) -> None:
    job = make_idle_job(enabled=False, pause_reason=DECLARED_DISABLED)
    change = {"paused_until": "2090-01-01T00:00:00Z", **reason}
    refused = problem(api.patch(_address(job), change, if_match="*"), 400)
    assert [*refused["errors"]] == ["paused_until"]


@pytest.mark.parametrize("pauses", [True, False])
def test_new_schedule_of_a_finished_job_enables_it_unless_it_is_paused(
    api: Api, pauses: bool
) -> None:
    job = make_job(schedule="@at 2083-01-01T00:00Z")
    disable_exhausted([job.pk], "default")
    change: dict[str, Any] = {"schedule": "@daily"} | ({"enabled": False} if pauses else {})

    shown = api.patch(_address(job), change, if_match="*").json()

    assert (shown["enabled"], shown["pause_reason"]) == (not pauses, "")
    assert not Job.objects.get(pk=job.pk).is_finished


def test_finished_job_stays_finished_if_its_timing_stays(api: Api) -> None:
    job = make_job(schedule="@at 2083-01-01T00:00Z")
    disable_exhausted([job.pk], "default")
    api.patch(_address(job), {"enabled": False, "description": "x"}, if_match="*")
    assert Job.objects.get(description="x").is_finished


def test_job_with_an_expired_pause_can_be_changed(api: Api) -> None:
    job = make_idle_job()
    control.pause(job, "deploy", database_now("default") + timedelta(hours=1))
    Job.objects.update(paused_until=database_now("default") - timedelta(hours=1))

    assert api.patch(_address(job), {"description": "x"}, if_match="*").status_code == 200


@pytest.mark.parametrize("erase", [False, True])
def test_deleting_a_job_keeps_its_runs_unless_they_are_erased(api: Api, erase: bool) -> None:
    job, other = make_idle_job(), make_idle_job()
    run = make_run(job, "running")
    kept = make_run(other, "failed")
    address = f"{_address(job)}?erase={str(erase).lower()}"

    assert api.delete(address, if_match='"1"').status_code == 204

    assert [*Job.objects.all()] == [other]
    assert {*Run.objects.all()} == ({kept} if erase else {kept, run})
    problem(api.get(_address(job)), 404)
    problem(api.delete(_address(job), if_match="*"), 404)
    with timezone.override("Europe/Berlin"):  # times are in UTC all the same
        results = api.get(f"runs/?job={job.pk}").json()["results"]
    for found in results:
        assert (found["id"], found["state"]) == (str(run.pk), "cancelled")
        assert found["job"]["name"].endswith(f"(deleted {job.pk})")
        assert found["job"]["deleted_at"] == to_json(Job.with_deleted.get(pk=job.pk).deleted_at)


# --- list -----------------------------------------------------------------------------------------


def _names(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [job["name"] for job in response.json()["results"]]


def test_list_shows_the_status_of_each_job(api: Api, django_assert_num_queries: Any) -> None:
    for number in range(3):
        make_idle_job(name=f"job {number}", description="d" * 100)
    Job.objects.bulk_create([Job(name="without cursor", target="t", schedule="* * * * *")])
    api.get("jobs/")

    with django_assert_num_queries(4):  # the session, the user, the jobs and the database's time
        shown = api.get("jobs/").json()

    assert shown["next"] is None
    assert [job["name"] for job in shown["results"]] == [
        "job 0",
        "job 1",
        "job 2",
        "without cursor",
    ]
    status = shown["results"][0]["status"]
    assert status["next_at"].endswith("-01-01T00:00:00Z")
    assert (status["problem"], status["last_state"]) == ("", "")
    assert shown["results"][3]["status"]["next_at"] is None


def test_next_occurrence_follows_the_clock_of_the_database(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_idle_job()
    slow = database_now("default") - timedelta(days=800)
    monkeypatch.setattr(clock, "now", lambda: slow)

    (listed,) = api.get("jobs/").json()["results"]
    stats = api.get(f"jobs/{job.pk}/stats/").json()

    next_at = Cursor.objects.get().next_at
    assert next_at is not None
    assert listed["status"]["next_at"] == stats["next_at"] == f"{next_at:%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"namespace": "other"}, ["d", "e"]),
        ({"tag": "billing"}, ["a", "b"]),
        ({"state": "paused"}, ["b"]),
        ({"state": "enabled"}, ["a", "d"]),
        ({"state": "quarantined"}, ["c"]),
        ({"state": "finished"}, ["e"]),
        ({"state": "running"}, ["a"]),
        ({"state": "failing"}, ["d"]),
        ({"search": "A"}, ["a"]),
        ({"tag": "billing", "state": "paused"}, ["b"]),
        ({"tag": "nothing such"}, []),
        ({"ordering": "-name"}, ["e", "d", "c", "b", "a"]),
        ({"ordering": "-id", "limit": 2}, ["e", "d"]),
    ],
)
def test_list_is_filtered_and_ordered(query: dict[str, Any], found: list[str], api: Api) -> None:
    make_run(make_idle_job(name="a", tags=["billing", "x"]), "running")
    make_idle_job(name="b", tags=["billing"], enabled=False)
    broken = make_idle_job(name="c")
    failing = make_idle_job(name="d", namespace="other")
    Statistics.objects.filter(job=failing).update(consecutive_failures=1)
    disable_exhausted([make_idle_job(name="e", namespace="other").pk], "default")
    Cursor.objects.filter(pk=broken.pk).update(problem="cannot be read")

    assert _names(api.get("jobs/", **query)) == found


@pytest.mark.usefixtures("routes")
def test_list_is_filtered_by_queue_of_the_runs(api: Api) -> None:
    make_idle_job(name="named", queue="reports")
    make_idle_job(name="routed", target="tests.app.tasks.echo")
    make_idle_job(name="default")
    assert _names(api.get("jobs/", queue="reports")) == ["named", "routed"]
    assert _names(api.get("jobs/", queue="celery")) == ["default"]


@pytest.mark.parametrize("ordering", ["name", "-name", "id", "-id"])
def test_each_job_appears_once_across_pages(ordering: str, api: Api) -> None:
    for number in range(5):
        make_idle_job(name=f"job {number}", namespace=f"n{number % 2}")
    whole = _names(api.get("jobs/", ordering=ordering))
    assert len(whole) == 5

    found, page = [], api.get("jobs/", ordering=ordering, limit=2)
    while page is not None:
        found += _names(page)
        following = page.json()["next"]
        page = api.get(following) if following else None

    assert found == whole


def test_cursor_with_the_longest_names_is_accepted(api: Api) -> None:
    character = "\U00020000"
    for number in range(3):
        make_idle_job(namespace=character * 64, name=character * 119 + str(number))
    found, following = [], "jobs/?limit=1"
    while following:
        page = api.get(following)
        assert page.status_code == 200
        found += _names(page)
        following = page.json()["next"]
    assert [name[-1] for name in found] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 501},
        {"limit": "many"},
        {"limit": "9" * 5000},
        {"cursor": "nonsense"},
        {"cursor": "é"},
        {"cursor": "W10"},
        {"cursor": "WyJuYW1lIiwgImEiXQ"},
        {"cursor": "WyJuYW1lIiwgIlx1MDAwMCIsICJhIl0"},
        {"cursor": ""},
        {"ordering": "schedule"},
        {"state": "happy"},
        {"search": "a\0b"},
        {"namespace": "\0"},
        {"tag": "\0"},
        {"shedule": "x"},
        {"format": "api"},
    ],
)
def test_invalid_query_parameter_is_refused(query: dict[str, Any], api: Api) -> None:
    make_idle_job()

    refused = problem(api.get("jobs/", **query), 400)

    assert [*refused["errors"]] == [*query]


def test_all_invalid_query_parameters_are_reported(api: Api) -> None:
    errors = problem(api.get("jobs/?shedule=x&state=happy&limit=0"), 400)["errors"]
    assert {*errors} == {"shedule", "state", "limit"}
    assert all(state in errors["state"][0] for state in ("enabled", "paused", "quarantined"))


def test_name_filter_is_exact(api: Api) -> None:
    for name, namespace in (("report", "default"), ("report", "shop"), ("report-2", "shop")):
        make_idle_job(name=name, namespace=namespace)
    assert len(api.get("jobs/", name="report").json()["results"]) == 2
    assert api.get("jobs/", name="repor").json()["results"] == []


def test_invalid_choice_and_unknown_field_are_reported_together(api: Api) -> None:
    job = {"name": "a", "target": "tests.app.tasks.ok", "schedule": "@daily"}
    refused = problem(api.post("jobs/", job | {"overlap_policy": "skipp", "tagz": []}), 400)
    assert {*refused["errors"]} == {"overlap_policy", "tagz"}
    assert "queue_one" in refused["errors"]["overlap_policy"][0]


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("max_retries", "max_attempts, which includes the first attempt"),
        ("interval", 'the schedule "@every 5m"'),
        ("disabled", "enabled, with the opposite value"),
        ("task", "target"),
    ],
)
def test_field_of_another_scheduler_is_refused_with_the_field_to_use(
    name: str, use: str, api: Api
) -> None:
    job = {"name": "a", "target": "tests.app.tasks.ok", "schedule": "@daily", name: 3}
    [message] = problem(api.post("jobs/", job), 400)["errors"][name]
    assert message == f"Unknown field. Use {use}."


def test_repeated_query_parameter_is_refused(api: Api) -> None:
    assert [*problem(api.get("jobs/?state=paused&state=enabled"), 400)["errors"]] == ["state"]


@pytest.mark.parametrize(
    "key",
    ["0", "-1", "99999999999999999999", "9" * 5000, "x", "1.5", "%00", "%F0%9F%98%80", "%D9%A1"],
)
def test_unknown_job_is_not_found(key: str, api: Api) -> None:
    for path in ("", "preview/", "stats/"):
        problem(api.get(f"jobs/{key}/{path}"), 404)
    problem(api.post(f"jobs/{key}/pause/", {}), 404)
