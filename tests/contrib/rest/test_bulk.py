"""Create, change, pause, resume or run many jobs in one request, and cancel many runs."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.contrib.rest.jobs import bulk_views, selecting
from django_dcron.contrib.rest.jobs.bulk import MAX_JOBS
from django_dcron.contrib.rest.runs import cancelling
from django_dcron.db.now import database_now
from django_dcron.jobs.sync import NO_LONGER_DECLARED
from django_dcron.models import AuditEntry, Calendar, Cursor, Job, Limit, Link, Run, Statistics
from django_dcron.models.job_states import HANDED_BACK
from tests.contrib.rest.conftest import Api, ApiWith, problem
from tests.factories import entries_by_users, make_idle_job, make_job, make_run

pytestmark = pytest.mark.django_db

RUN = UUID(int=1)


def item(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "target": "tests.app.tasks.ok", "schedule": "@daily"} | fields


def create(api: Api, *items: Any) -> Any:
    return api.post("jobs/bulk/", {"jobs": list(items)})


def change(api: Api, *items: Any) -> Any:
    return api.patch("jobs/bulk/", {"jobs": list(items)})


def test_all_jobs_are_created(api: Api) -> None:
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    response = create(
        api, item("one", calendar="closed"), item("two", after={"one": "ended"}, timeout="5m")
    )
    assert response.status_code == 201
    one, two = Job.objects.order_by("pk")
    assert response.json() == {
        "results": [
            {"id": job.pk, "version": 1, "namespace": "default", "name": job.name}
            for job in (one, two)
        ]
    }
    assert (one.calendar_id, Link.objects.get().job_id) == ("closed", two.pk)
    assert Cursor.objects.count() == 2
    entries = entries_by_users().values_list("object_id", "action")
    assert list(entries) == [(str(one.pk), "create"), (str(two.pk), "create")]


def test_fields_of_all_jobs_are_changed(api: Api) -> None:
    jobs = [make_idle_job(description="kept") for _ in range(2)]
    response = change(api, *({"id": job.pk, "version": 1, "tags": ["t"]} for job in jobs))
    assert response.status_code == 200
    assert [result["version"] for result in response.json()["results"]] == [2, 2]
    assert list(Job.objects.values_list("tags", "description")) == [(["t"], "kept")] * 2
    assert entries_by_users().filter(action="change").count() == 2


@pytest.mark.parametrize(
    ("items", "errors"),
    [
        ([item("a"), item("b", schedule="61 3 * * *")], {"jobs.1.schedule"}),
        ([item("a", timeout=5), {"name": "b"}], {"jobs.0.timeout", "jobs.1.target"}),
        (
            [item("a", timeout=5, timezone="x"), item("b", schedule="61 3 * * *"), item("c")],
            {"jobs.0.timeout", "jobs.0.timezone", "jobs.1.schedule"},
        ),
        ([item("taken"), item("a"), item("a")], {"jobs.0.non_field_errors", "jobs.2"}),
        ([item("a", after={"nobody": "ended"})], {"jobs.0.after"}),
        ([item("a", colour="red")], {"jobs.0.colour"}),
        ([item("a"), "b"], {"jobs.1.non_field_errors"}),
        ([], {"jobs"}),
        ([item("a")] * (MAX_JOBS + 1), {"jobs"}),
    ],
)
def test_no_job_is_created_if_one_is_invalid(api: Api, items: list[Any], errors: set[str]) -> None:
    make_idle_job(name="taken")
    found = problem(create(api, *items), 400)["errors"]
    assert all(any(name.startswith(each) for name in found) for each in errors), found
    assert Job.objects.count() == 1
    assert not entries_by_users().exists()


def test_name_that_another_job_has_is_a_code_of_its_own(api: Api) -> None:
    fields = {"target": "tests.app.tasks.ok", "schedule": "@daily"}
    make_idle_job(name="report")
    body = {"jobs": [fields | {"name": "report"}, fields | {"name": "new"}]}
    refused = problem(api.post("jobs/bulk/", body), 400)
    assert refused["code"] == "already_exists"
    twice = {"jobs": [fields | {"name": "new"}, fields | {"name": "new"}]}
    assert problem(api.post("jobs/bulk/", twice), 400)["code"] != "already_exists"
    assert refused["errors"].keys() == {"jobs.0.non_field_errors"}
    body["jobs"][1]["schedule"] = "bad"
    assert problem(api.post("jobs/bulk/", body), 400)["code"] == "invalid"


def test_jobs_are_paused_and_resumed_in_few_queries(api: Api) -> None:
    ContentType.objects.get_for_model(Job)  # which is cached from its first use on
    counts = []
    for number in (2, 30):
        jobs = [make_idle_job() for _ in range(number)]
        ids = [job.pk for job in jobs]
        for action, body in (("pause", {"reason": "deploy"}), ("resume", {})):
            with CaptureQueriesContext(connection) as queries:
                response = api.post(f"jobs/bulk/{action}/", {"ids": ids} | body)
            assert response.status_code == 200
            assert [each["id"] for each in response.json()["results"]] == ids
            counts.append(len(queries))
            states = Job.objects.filter(pk__in=ids).values_list("enabled", "pause_reason")
            paused = (False, "deploy (admin)")
            assert set(states) == {paused if action == "pause" else (True, "")}
        assert entries_by_users().filter(object_id__in=[*map(str, ids)]).count() == 2 * number
    assert counts[:2] == counts[2:]


def test_refused_job_does_not_stop_the_others(api: Api) -> None:
    good, expired = make_idle_job(), make_job(schedule="@at 2020-01-01T00:00", enabled=False)
    control.pause(good)
    response = api.post("jobs/bulk/resume/", {"ids": [expired.pk, 10**12, good.pk, good.pk]}).json()
    assert [each["id"] for each in response["results"]] == [good.pk]
    assert [each["id"] for each in response["refused"]] == [expired.pk, 10**12]
    assert Job.objects.get(enabled=True) == good
    assert entries_by_users().count() == 1


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (IntegrityError("duplicate key: secret-value"), None),
        (ValueError("secret-value"), None),
        (ValidationError(["Not now.", "Ask Ada."]), "Not now. Ask Ada."),
    ],
)
def test_reason_of_a_refusal_shows_no_text_of_unexpected_errors(
    api: Api, request: pytest.FixtureRequest, error: Exception, shown: str | None
) -> None:
    good, bad = make_idle_job(), make_idle_job()

    def fail(instance: Job, **_: Any) -> None:
        if instance.pk == bad.pk:
            raise error

    post_save.connect(fail, sender=Job)
    request.addfinalizer(lambda: post_save.disconnect(fail, sender=Job))
    response = api.post("jobs/bulk/pause/", {"ids": [good.pk, bad.pk]}).json()
    assert [each["id"] for each in response["results"]] == [good.pk]
    (refused,) = response["refused"]
    assert refused["id"] == bad.pk
    assert refused["detail"] == shown or shown is None
    assert refused["detail"]
    assert "secret-value" not in refused["detail"]


def test_log_entries_of_many_jobs_reach_the_receivers_of_signals(
    api: Api, request: pytest.FixtureRequest
) -> None:
    jobs, forwarded = [make_idle_job() for _ in range(3)], []

    def forward(instance: AuditEntry, created: bool, **_: Any) -> None:
        forwarded.append((instance.object_id, created))

    post_save.connect(forward, sender=AuditEntry)
    request.addfinalizer(lambda: post_save.disconnect(forward, sender=AuditEntry))
    api.post("jobs/bulk/pause/", {"ids": [job.pk for job in jobs]})
    assert forwarded == [(str(job.pk), True) for job in jobs]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"ids": []}, "ids"),
        ({"ids": [1] * (MAX_JOBS + 1)}, "ids"),
        ({"ids": [1], "until": "2020-01-01T00:00:00Z"}, "until"),
        ({"ids": ["a"]}, "ids"),
        ({"reason": "deploy"}, "non_field_errors"),
        ({"all": False}, "non_field_errors"),
        ({"all": True, "namespace": "shop"}, "non_field_errors"),
        ({"ids": [1], "tags": ["t"]}, "non_field_errors"),
        ({"namespace": ""}, "namespace"),
        ({"tags": []}, "tags"),
        ({"pattern": "shop/*a*b*"}, "pattern"),
        ({"state": "broken"}, "state"),
    ],
)
def test_invalid_bulk_pause_is_refused(api: Api, body: Any, field: str) -> None:
    assert [*problem(api.post("jobs/bulk/pause/", body), 400)["errors"]] == [field]


def test_job_changed_after_the_read_is_a_conflict(api: Api) -> None:
    fresh, stale = make_idle_job(), make_idle_job()
    control.save(Job.objects.get(pk=stale.pk))
    items = [{"id": job.pk, "version": 1, "description": "new"} for job in (fresh, stale)]
    refused = problem(change(api, *items), 409)
    assert (refused["code"], [*refused["errors"]]) == ("conflict", ["jobs.1.version"])
    items.append({"id": fresh.pk, "version": 1, "schedule": "61 3 * * *"})
    assert {*problem(change(api, *items), 400)["errors"]} == {"jobs.1.version", "jobs.2.schedule"}
    assert set(Job.objects.values_list("description", flat=True)) == {""}


def test_a_job_that_is_named_twice_is_a_conflict(api: Api) -> None:
    job = make_idle_job()
    items = [{"id": job.pk, "version": 1, "description": text} for text in ("one", "two")]
    assert [*problem(change(api, *items), 409)["errors"]] == ["jobs.1.version"]


def test_change_must_name_the_job_and_its_version(api: Api) -> None:
    job = make_idle_job()
    found = problem(change(api, {"id": job.pk}, {"version": 1}, {"id": "x", "version": 1}), 400)
    assert {*found["errors"]} == {"jobs.0.version", "jobs.1.id", "jobs.2.id"}
    bad = {"id": job.pk, "version": 1, "schedule": "61 3 * * *"}
    found = problem(change(api, {"id": job.pk}, bad), 400)
    assert {*found["errors"]} == {"jobs.0.version", "jobs.1.schedule"}
    found = problem(change(api, {"id": job.pk + 1, "version": 1}), 400)
    assert {*found["errors"]} == {"jobs.0.id"}


def test_number_of_statements_does_not_grow_with_the_jobs(api: Api) -> None:
    def statements(number: int) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert create(api, *(item(f"{number}-{n}") for n in range(number))).status_code == 201
        return len(queries)

    statements(2)  # fills the caches
    assert statements(30) - statements(3) < 5  # SQLite limits the rows of an INSERT


@pytest.mark.parametrize("change_of_others", [{"tags": ["t"]}, {"timeout": 5}])
def test_queries_of_a_refused_change_do_not_grow_with_the_jobs(
    api: Api, change_of_others: dict[str, Any]
) -> None:
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    control.save_limit(Limit(name="narrow", max_running=1))
    invalid = {"id": make_idle_job().pk, "version": 1, "timezone": 5}
    counts = []
    for number in (1, 2, 20):  # the first request fills the caches
        jobs = [make_idle_job(calendar_id="closed", limit_id="narrow") for _ in range(number)]
        others = [{"id": job.pk, "version": 1, **change_of_others} for job in jobs]
        with CaptureQueriesContext(connection) as queries:
            problem(change(api, invalid, *others), 400)
        counts.append(len(queries))
    assert counts[1] == counts[2]


SELECTIONS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "all": ({"all": True}, {"import", "export", "other", "broken"}),
    "namespace": ({"namespace": "shop"}, {"import", "export"}),
    "pattern": ({"pattern": "sh?p/*port"}, {"import", "export"}),
    "pattern without namespace": ({"pattern": "*"}, {"other", "broken"}),
    "pattern in namespace": ({"pattern": "*ort", "namespace": "shop"}, {"import", "export"}),
    "tags": ({"tags": ["t", "u"]}, {"import"}),
    "search": ({"search": "PORT", "namespace": "shop"}, {"import", "export"}),
    "source": ({"source": "crontab"}, {"export"}),
    "queue": ({"queue": "reports"}, {"import"}),
    "running": ({"state": "running"}, {"export"}),
    "failing": ({"state": "failing"}, {"broken"}),
    "nothing": ({"namespace": "nowhere"}, set()),
}


@pytest.fixture
def shop() -> dict[str, Job]:
    jobs = {
        "import": make_idle_job(name="import", namespace="shop", tags=["t", "u"]),
        "export": make_idle_job(name="export", namespace="shop", tags=["t"]),
        "other": make_idle_job(name="other"),
        "broken": make_idle_job(name="broken"),
    }
    Job.objects.filter(name="import").update(queue="reports")
    Job.objects.filter(name="export").update(import_source="crontab /etc/crontab")
    Statistics.objects.filter(job=jobs["broken"]).update(consecutive_failures=1)
    make_run(jobs["export"], "running")
    return jobs


@pytest.mark.parametrize("action", ["pause", "trigger", "cancel"])
@pytest.mark.parametrize(("selection", "names"), SELECTIONS.values(), ids=SELECTIONS)
def test_filters_select_the_jobs_that_they_select_on_the_command_line(
    api: Api, shop: dict[str, Job], action: str, selection: dict[str, Any], names: set[str]
) -> None:
    selected = {shop[name].pk for name in names}
    if action == "cancel":
        runs = {make_run(job).pk: job.pk for job in shop.values()}
        body = api.post("runs/bulk/cancel/", {"jobs": selection, "reason": "incident"}).json()
        cancelled = Run.objects.filter(reason="incident (admin)", state="cancelled")
        assert {*cancelled.values_list("job", flat=True)} == selected
        ended = [each["id"] for each in body["results"] if each["state"] == "cancelled"]
        assert {runs[UUID(pk)] for pk in ended} == selected
    else:
        body = api.post(f"jobs/bulk/{action}/", selection).json()
        key = "id" if action == "pause" else "job"
        assert {each[key] for each in body["results"]} == selected
        changed = (
            Job.objects.filter(enabled=False).values_list("pk", flat=True)
            if action == "pause"
            else Run.objects.filter(trigger="manual").values_list("job", flat=True)
        )
        assert sorted(changed) == sorted(selected)
    assert (body["refused"], body["next"]) == ([], None)


def test_filters_skip_jobs_to_which_the_action_does_not_apply(
    api: Api, shop: dict[str, Job]
) -> None:
    control.pause(shop["import"], "broken")
    control.pause(shop["other"], NO_LONGER_DECLARED)
    shop["waits"] = make_idle_job(name="waits", import_source="redbeat")
    control.pause(shop["waits"], HANDED_BACK)
    for action, skipped, changed in (
        ("pause", {"import", "other", "waits"}, {"export", "broken"}),
        ("resume", {"other", "waits"}, {"import", "export", "broken"}),
    ):
        body = api.post(f"jobs/bulk/{action}/", {"all": True}).json()
        assert {each["name"] for each in body["results"]} == changed
        assert {each["id"] for each in body["skipped"]} == {shop[name].pk for name in skipped}
        assert all(each["detail"] for each in body["skipped"])
    named = [shop["other"].pk, shop["waits"].pk]
    body = api.post("jobs/bulk/resume/", {"ids": named}).json()
    assert (len(body["results"]), body["skipped"]) == (2, [])


@pytest.mark.parametrize(
    ("body", "is_replaced"), [({}, False), ({"reason": ""}, True), ({"until": None}, True)]
)
def test_pause_by_id_replaces_a_pause_only_with_a_reason_or_end(
    body: dict[str, Any], is_replaced: bool, api: Api
) -> None:
    until = database_now("default") + timedelta(hours=5)
    paused = control.pause(make_idle_job(), "data provider down", until)
    other = make_idle_job()
    response = api.post("jobs/bulk/pause/", {"ids": [paused.pk, other.pk]} | body).json()
    results, skipped = ([each["id"] for each in response[key]] for key in ("results", "skipped"))
    paused.refresh_from_db()
    if is_replaced:
        assert (results, skipped) == ([paused.pk, other.pk], [])
        assert (paused.pause_reason, paused.paused_until) == ("by admin", None)
    else:
        assert (results, skipped) == ([other.pk], [paused.pk])
        assert (paused.pause_reason, paused.paused_until) == ("data provider down", until)
    assert response["refused"] == []


def test_pause_by_id_replaces_the_wait_for_a_handover(api: Api) -> None:
    waits = control.pause(make_idle_job(name="waits", import_source="redbeat"), HANDED_BACK)
    paused = control.pause(make_idle_job(), "data provider down")
    body = {"ids": [paused.pk, waits.pk]}
    response = api.post("jobs/bulk/pause/", body).json()
    results, skipped = ([each["id"] for each in response[key]] for key in ("results", "skipped"))
    assert (results, skipped, response["refused"]) == ([waits.pk], [paused.pk], [])
    waits.refresh_from_db()
    assert (waits.pause_reason, waits.awaits_handover) == ("by admin", False)


@pytest.mark.parametrize("by_id", [False, True])
def test_pause_keeps_a_pause_from_another_request_at_the_same_time(
    by_id: bool, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with ids and without a reason replaces only the wait for a handover."""
    paused, other = make_idle_job(import_source="redbeat"), make_idle_job()
    if by_id:
        control.pause(paused, HANDED_BACK)
        body: dict[str, Any] = {"ids": [paused.pk, other.pk]}
    else:
        body = {"all": True, "reason": "deploy"}

    def select_before_another_request(*args: Any) -> selecting.SelectedJobs:
        selected = selecting.select_jobs(*args)
        control.pause(Job.objects.get(pk=paused.pk), "data provider down")
        return selected

    monkeypatch.setattr(bulk_views, "select_jobs", select_before_another_request)
    response = api.post("jobs/bulk/pause/", body).json()
    assert [each["id"] for each in response["results"]] == [other.pk]
    assert [each["id"] for each in response["skipped"]] == [paused.pk]
    paused.refresh_from_db()
    assert paused.pause_reason == "data provider down"


def test_requests_after_the_first_continue_where_it_ended(
    api: Api, shop: dict[str, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selecting, "MAX_JOBS", 3)
    monkeypatch.setattr(cancelling, "MAX_RUNS", 3)
    first = api.post("jobs/bulk/trigger/", {"all": True}).json()
    assert len(first["results"]) == 3
    second = api.post("jobs/bulk/trigger/", {"all": True, "after": first["next"]}).json()
    assert (len(second["results"]), second["next"]) == (1, None)
    assert sorted(Run.objects.filter(trigger="manual").values_list("job", flat=True)) == sorted(
        job.pk for job in shop.values()
    )
    left, after = 5, {}
    for number in (3, 2):
        body = api.post("runs/bulk/cancel/", {"jobs": {"all": True}} | after).json()
        assert len(body["results"]) == number
        left -= number
        after = {"after": body["next"]}
    assert (left, body["next"]) == (0, None)
    assert Run.objects.filter(state="cancelled").count() == 4


def test_cancelling_continues_with_a_job_that_no_longer_runs(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page ends within a job, whose running run stops before the next request."""
    monkeypatch.setattr(cancelling, "MAX_RUNS", 2)
    one, two, idle = (make_idle_job() for _ in range(3))
    states = [(one, "running"), (two, "running"), *[(one, "queued"), (two, "queued")] * 2]
    for number, (job, state) in enumerate([*states, (idle, "queued")]):
        make_run(job, state, id=UUID(int=number))
    body: dict[str, Any] = {"jobs": {"state": "running"}}
    pages = []
    while not pages or pages[-1]["next"]:
        pages.append(api.post("runs/bulk/cancel/", body).json())
        Run.objects.filter(state="running", cancel_requested_at__isnull=False).update(
            state="cancelled"
        )
        body["after"] = pages[-1]["next"]
    assert [len(page["results"]) for page in pages] == [2, 2, 2]
    assert Run.objects.exclude(state="cancelled").get().job == idle


@pytest.mark.parametrize("by_ids", [True, False])
def test_cancelling_continues_after_a_job_that_was_erased(
    api: Api, monkeypatch: pytest.MonkeyPatch, by_ids: bool
) -> None:
    monkeypatch.setattr(cancelling, "MAX_RUNS", 1)
    jobs = [make_idle_job(), make_idle_job()]
    runs = [make_run(job) for job in jobs]
    body: dict[str, Any] = {"jobs": {"ids": [job.pk for job in jobs]} if by_ids else {"all": True}}
    first = api.post("runs/bulk/cancel/", body).json()
    assert [each["id"] for each in first["results"]] == [str(runs[0].pk)]
    control.delete(jobs[0], erase=True)
    second = api.post("runs/bulk/cancel/", body | {"after": first["next"]}).json()
    assert [each["id"] for each in second["results"]] == [str(runs[1].pk)]
    assert second["next"] is None


@pytest.mark.parametrize(
    "after", [str(RUN), f"0:{RUN}", f"{10**19}:{RUN}", f"+1:{RUN}", f"1:{RUN}x", "1", 17]
)
def test_invalid_place_to_continue_is_refused(
    api: Api, shop: dict[str, Job], after: object
) -> None:
    body = {"jobs": {"all": True}, "after": after}
    assert [*problem(api.post("runs/bulk/cancel/", body), 400)["errors"]] == ["after"]
    assert not Run.objects.filter(state="cancelled").exists()


@pytest.mark.parametrize("path", ["jobs/bulk/pause/", "jobs/bulk/trigger/", "runs/bulk/cancel/"])
def test_ids_and_a_place_to_continue_are_refused_together(api: Api, path: str) -> None:
    run = make_run(make_idle_job())
    body = {"ids": [str(run.pk)], "after": f"{run.job_id}:{run.pk}"}
    if path.startswith("jobs/"):
        body = {"ids": [run.job_id], "after": run.job_id}
    assert [*problem(api.post(path, body), 400)["errors"]] == ["after"]


def test_trigger_of_many_jobs_is_repeated_safely(api: Api, shop: dict[str, Job]) -> None:
    broken = shop["other"]
    Job.objects.filter(pk=broken.pk).update(target="nobody.has.this")
    body = {"namespace": "shop"}
    made = [
        api.post("jobs/bulk/trigger/", body, idempotency_key="release-1").json() for _ in range(2)
    ]
    assert made[0] == made[1]
    assert api.get(made[0]["results"][0]["url"]).json()["trigger"] == "manual"
    other = api.post(
        "jobs/bulk/trigger/", {"all": True, "kwargs": {}}, idempotency_key="release-1"
    ).json()
    assert {each["job"] for each in other["results"]} == {shop["broken"].pk}
    assert {each["id"] for each in other["refused"]} == {
        shop[name].pk for name in ("import", "export", "other")
    }
    assert Run.objects.filter(idempotency_key="release-1").count() == 3
    assert entries_by_users().filter(action="trigger").count() == 3


def test_trigger_of_many_jobs_with_other_arguments_needs_a_permission(api_with: ApiWith) -> None:
    echo = make_idle_job(target="tests.app.tasks.echo", args=[7])
    api = api_with("view_job", "trigger_job")
    equal = {"ids": [echo.pk], "args": [7]}
    assert api.post("jobs/bulk/trigger/", equal).status_code == 200
    problem(api.post("jobs/bulk/trigger/", equal | {"args": [8]}), 403)
    assert Run.objects.count() == 1


def test_filters_omit_runs_scheduled_in_the_future(api: Api) -> None:
    """Cancelling a backlog must not cancel a nightly job's next run, which was claimed ahead."""
    job, soon = make_idle_job(), database_now("default") + timedelta(hours=1)
    backlog, ahead = make_run(job, "queued"), make_run(job, scheduled_at=soon)
    for selection, run in (({"all": True}, backlog), ({"ids": [job.pk]}, ahead)):
        body = api.post("runs/bulk/cancel/", {"jobs": selection}).json()
        assert [each["id"] for each in body["results"]] == [str(run.pk)]
        assert (body["refused"], body["next"]) == ([], None)


def test_runs_are_cancelled_by_id(api: Api) -> None:
    job = make_idle_job(overlap_policy="allow")
    runs = [make_run(job, state) for state in ("pending", "running", "succeeded")]
    missing = uuid4()
    ids = [str(run.pk) for run in runs]
    body = api.post("runs/bulk/cancel/", {"ids": [*ids, str(missing)], "reason": "x"}).json()
    assert body["results"] == [
        {"id": ids[0], "job": job.pk, "state": "cancelled"},
        {"id": ids[1], "job": job.pk, "state": "running"},
    ]
    assert [each["id"] for each in body["refused"]] == [ids[2], str(missing)]
    assert all(each["detail"] for each in body["refused"])
    assert entries_by_users().filter(action="cancel").count() == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "non_field_errors"),
        ({"ids": [str(uuid4())], "jobs": {"all": True}}, "non_field_errors"),
        ({"jobs": {}}, "jobs"),
        ({"jobs": {"ids": [10**12]}}, "jobs"),
        ({"jobs": {"colour": "red"}}, "jobs"),
        ({"ids": [1]}, "ids"),
    ],
)
def test_invalid_bulk_cancellation_is_refused(api: Api, body: Any, field: str) -> None:
    assert [*problem(api.post("runs/bulk/cancel/", body), 400)["errors"]] == [field]


def test_statements_of_bulk_actions_do_not_grow_with_the_rows(api: Api) -> None:
    ContentType.objects.get_for_model(Job)
    counts = []
    for namespace, number in (("few", 2), ("many", 30)):
        jobs = [make_idle_job(namespace=namespace) for _ in range(number)]
        for path, body in (
            ("jobs/bulk/trigger/", {"namespace": namespace}),
            ("runs/bulk/cancel/", {"jobs": {"namespace": namespace}}),
        ):
            with CaptureQueriesContext(connection) as queries:
                body = api.post(path, body, idempotency_key=namespace).json()
            assert len(body["results"]) == len(jobs)
            counts.append(len(queries))
    assert counts[:2] == counts[2:]
