"""Test the actions over HTTP: pause, resume, trigger, preview, backfill, cancel and rerun.

A trigger runs once per idempotency key.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.contrib.rest.jobs import triggering, viewset
from django_dcron.db.now import database_now
from django_dcron.jobs import manual_runs
from django_dcron.jobs.action_texts import signed_reason
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.jobs.reverting import edit_of
from django_dcron.models import AuditEntry, Cursor, Job, Run
from django_dcron.models.job_states import HANDED_BACK
from tests.contrib.rest.conftest import Api, problem
from tests.factories import entries_by_users, make_idle_job, make_job, make_run
from tests.waiting import TIMEOUT

OTHER_ARGUMENTS = [
    {"args": [2]},
    {"args": [1], "kwargs": {"a": 1}},
    {},
    {"args": [True]},
    {"args": [[1]]},
]


def _trigger(api: Api, job: Job, body: Any = None, **headers: str) -> Any:
    return api.post(f"jobs/{job.pk}/trigger/", body, **headers)


# --- revert ---------------------------------------------------------------------------------------


def test_edit_is_reverted(api: Api) -> None:
    job = make_idle_job()
    for attempts in (4, 5):
        job.max_attempts = attempts
        control.save(job)

    refused = problem(api.post(f"jobs/{job.pk}/revert/", {"version": 2}), 409)
    assert "max_attempts (now 5" in refused["detail"]
    response = api.post(f"jobs/{job.pk}/revert/", {"version": 3})

    assert (response.json()["max_attempts"], response.headers["ETag"]) == (4, '"4"')
    entry = entries_by_users().get()
    assert (entry.actor, entry.via, entry.action) == ("admin", "rest", "change")
    assert entry.reason.startswith("reverts version 3 (")
    assert api.post(f"jobs/{job.pk}/revert/", {"version": 2}).json()["max_attempts"] == 1


@pytest.mark.parametrize(("tag", "status"), [('"1"', 412), ("2", 400), ('"2"', 200), ("*", 200)])
def test_revert_evaluates_if_match_if_it_is_sent(api: Api, tag: str, status: int) -> None:
    job = make_idle_job()
    job.max_attempts = 4
    control.save(job)
    response = api.post(f"jobs/{job.pk}/revert/", {"version": 2}, if_match=tag)
    assert response.status_code == status
    job.refresh_from_db()
    assert job.max_attempts == (1 if status == 200 else 4)


def test_revert_with_if_match_does_not_follow_a_concurrent_change(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_idle_job()
    job.max_attempts = 4
    control.save(job)

    def edit_of_changed_job(found: Job, version: int) -> AuditEntry | None:
        Job.objects.filter(pk=job.pk).update(description="other", version=3)
        return edit_of(found, version)

    monkeypatch.setattr(viewset, "edit_of", edit_of_changed_job)
    problem(api.post(f"jobs/{job.pk}/revert/", {"version": 2}, if_match='"2"'), 412)
    assert Job.objects.values_list("max_attempts", "version").get() == (4, 3)


@pytest.mark.parametrize("body", [{}, {"version": 1}, {"version": 9}, {"version": 2**31}])
def test_version_that_no_edit_made_is_refused(api: Api, body: Any) -> None:
    job = make_idle_job()
    assert [*problem(api.post(f"jobs/{job.pk}/revert/", body), 400)["errors"]] == ["version"]


def test_old_value_that_is_not_valid_anymore_is_an_error_of_its_field(api: Api) -> None:
    job = make_idle_job()
    Job.objects.filter(pk=job.pk).update(target="gone.task")
    job.refresh_from_db()
    job.target = "tests.app.tasks.ok"
    control.save(job)
    response = api.post(f"jobs/{job.pk}/revert/", {"version": 2})
    assert [*problem(response, 400)["errors"]] == ["target"]


# --- restore --------------------------------------------------------------------------------------


def test_deletion_is_undone(api: Api) -> None:
    job = make_idle_job(tags=["billing"])
    control.delete(job)
    entry = AuditEntry.objects.get(action="delete")

    response = api.post("jobs/restore/", {"entry": entry.pk})

    assert response.status_code == 201
    created = response.json()
    assert (created["name"], created["tags"]) == (job.name, ["billing"])
    assert created["id"] != job.pk
    assert response.headers["Location"].endswith(f"/jobs/{created['id']}/")
    assert response.headers["ETag"] == '"1"'
    creation = entries_by_users().get()
    assert (creation.actor, creation.via, creation.action) == ("admin", "rest", "create")
    problem(api.post("jobs/restore/", {"entry": entry.pk}), 409)
    problem(api.post("jobs/restore/", {"entry": creation.pk}), 400)
    assert Job.objects.filter(name=job.name).count() == 1


def test_restore_needs_a_free_name(api: Api) -> None:
    job = make_idle_job()
    control.delete(job)
    make_idle_job(name=job.name)
    entry = AuditEntry.objects.get(action="delete")
    response = api.post("jobs/restore/", {"entry": entry.pk})
    assert [*problem(response, 400)["errors"]] == ["name"]


@pytest.mark.parametrize("body", [{}, {"entry": 0}, {"entry": 10**6}, {"entry": 2**63}])
def test_restore_needs_the_entry_of_a_deletion(api: Api, body: Any) -> None:
    assert [*problem(api.post("jobs/restore/", body), 400)["errors"]] == ["entry"]


# --- pause and resume -----------------------------------------------------------------------------


def test_pause_stores_user_reason_and_end(api: Api) -> None:
    job = make_idle_job()
    until = database_now("default") + timedelta(hours=2)

    response = api.post(f"jobs/{job.pk}/pause/", {"reason": "deploy", "until": until.isoformat()})

    assert response["ETag"] == '"2"'
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason, job.paused_until) == (False, "deploy (admin)", until)
    assert response.json()["pause_reason"] == "deploy (admin)"


def test_pause_without_reason_names_the_user(api: Api) -> None:
    job = make_idle_job()

    assert api.post(f"jobs/{job.pk}/pause/").json()["pause_reason"] == "by admin"


def test_pause_without_reason_and_end_keeps_those_of_a_paused_job(api: Api) -> None:
    job = control.pause(make_job(), "data provider down")
    response = api.post(f"jobs/{job.pk}/pause/", {})
    assert response.status_code == 200
    assert response.json()["pause_reason"] == "data provider down"
    assert Job.objects.get(pk=job.pk).version == job.version


@pytest.mark.parametrize("body", [{"until": None}, {"reason": ""}])
def test_pause_with_an_empty_reason_or_end_replaces_those_of_a_paused_job(
    body: dict[str, Any], api: Api
) -> None:
    until = database_now("default") + timedelta(hours=2)
    job = control.pause(make_idle_job(), "data provider down", until)
    shown = api.post(f"jobs/{job.pk}/pause/", body).json()
    assert (shown["pause_reason"], shown["paused_until"]) == ("by admin", None)
    assert Job.objects.get().paused_until is None


def test_pause_of_a_finished_job_replaces_its_reason(api: Api) -> None:
    job = make_idle_job()
    disable_exhausted([job.pk], "default")
    assert api.post(f"jobs/{job.pk}/pause/").json()["pause_reason"] == "by admin"


def test_pause_replaces_the_wait_for_a_handover(api: Api) -> None:
    job = control.pause(make_idle_job(import_source="redbeat"), HANDED_BACK)
    assert api.post(f"jobs/{job.pk}/pause/").json()["pause_reason"] == "by admin"


@pytest.mark.parametrize("reason", ["data provider down", HANDED_BACK])
@pytest.mark.parametrize(
    ("change", "after"),
    [(control.resume, "by admin"), (partial(control.pause, reason="deploy"), "deploy")],
)
def test_pause_without_reason_and_end_decides_about_the_current_state(
    change: Callable[[Job], Job],
    after: str,
    reason: str,
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = control.pause(make_idle_job(import_source="redbeat"), reason)

    def reason_after_another_request(*args: str) -> str:
        change(Job.objects.get())
        return signed_reason(*args)

    monkeypatch.setattr(viewset, "signed_reason", reason_after_another_request)
    response = api.post(f"jobs/{job.pk}/pause/")
    stored = Job.objects.get()
    assert not stored.enabled
    assert response.json()["pause_reason"] == stored.pause_reason == after


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"until": "2020-01-01T00:00:00Z"}, "until"),
        ({"until": "2100-01-01T00:00:00"}, "until"),
        ({"until": "tomorrow"}, "until"),
        ({"until": "2200-01-01T00:00:00Z"}, "until"),
        ({"reason": "x" * 151}, "reason"),
        ({"reason": "a\0b"}, "reason"),
        ({"reason": None}, "reason"),
        ({"why": "x"}, "why"),
        ([], "non_field_errors"),
    ],
)
def test_invalid_pause_is_refused(body: Any, field: str, api: Api) -> None:
    job = make_idle_job()

    assert [*problem(api.post(f"jobs/{job.pk}/pause/", body), 400)["errors"]] == [field]

    assert Job.objects.get().enabled


def test_resume_enables_the_job(api: Api) -> None:
    job = make_idle_job()
    control.pause(job, "deploy")

    shown = api.post(f"jobs/{job.pk}/resume/").json()

    assert (shown["enabled"], shown["pause_reason"]) == (True, "")
    assert Cursor.objects.get().next_at is not None


def test_job_without_further_occurrences_is_not_resumed(api: Api) -> None:
    job = make_job(schedule="@at 2020-01-01T00:00", enabled=False)

    assert problem(api.post(f"jobs/{job.pk}/resume/"), 409)["code"] == "conflict"


# --- trigger --------------------------------------------------------------------------------------


def test_trigger_creates_a_run_and_returns_its_url(api: Api) -> None:
    job = make_idle_job(target="tests.app.tasks.echo")

    response = _trigger(api, job, {"args": [1], "kwargs": {"a": 2}})

    run = Run.objects.get()
    assert (response.status_code, response["Location"]) == (201, f"/dcron/runs/{run.pk}/")
    assert response.json()["url"] == response["Location"]
    assert (run.trigger, run.args, run.kwargs) == ("manual", [1], {"a": 2})
    assert api.get(response["Location"]).json()["args"] == [1]


@pytest.mark.parametrize("shadow", [True, False])
def test_response_tells_whether_the_target_is_executed(api: Api, shadow: bool) -> None:
    job = make_idle_job(target="shadow:tests.app.tasks.ok" if shadow else "tests.app.tasks.ok")
    ended = make_run(job, "succeeded")
    made = [
        _trigger(api, job).json(),
        *api.post("jobs/bulk/trigger/", {"ids": [job.pk]}).json()["results"],
        api.post(f"runs/{ended.pk}/rerun/").json(),
    ]
    assert [each["shadow"] for each in made] == [shadow] * 3


def test_trigger_without_body_uses_the_arguments_of_the_job(api: Api) -> None:
    job = make_idle_job(target="tests.app.tasks.echo", args=[7])

    assert _trigger(api, job).status_code == 201

    assert Run.objects.get().args is None


def test_repeated_idempotency_key_creates_one_run(api: Api) -> None:
    job = make_idle_job(target="tests.app.tasks.echo")
    sent = {"args": [1, 1.5, 1e2, "ü", None, [True]], "kwargs": {"b": 1, "a": {"c": []}}}

    first = _trigger(api, job, sent, idempotency_key="order-17")
    second = _trigger(api, job, sent, idempotency_key="order-17")

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert Run.objects.count() == 1
    assert _trigger(api, job, sent, idempotency_key="order-18").status_code == 201
    assert _trigger(api, job, sent).status_code == 201


@pytest.mark.parametrize("other", OTHER_ARGUMENTS, ids=str)
def test_idempotency_key_with_other_arguments_is_refused(other: Any, api: Api) -> None:
    job = make_idle_job(target="tests.app.tasks.echo")
    made = _trigger(api, job, {"args": [1]}, idempotency_key="k").json()["id"]

    refused = problem(_trigger(api, job, other, idempotency_key="k"), 422)

    assert refused["code"] == "key_reused"
    assert made in refused["detail"]
    assert Run.objects.count() == 1


def test_idempotency_keys_are_separate_for_each_job(api: Api) -> None:
    for _each in range(2):
        assert _trigger(api, make_idle_job(), idempotency_key="k").status_code == 201
    assert Run.objects.count() == 2


def test_idempotency_key_used_concurrently_with_other_arguments_is_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project's own call of ``control.trigger`` doesn't take the API's lock."""
    job = make_idle_job(target="tests.app.tasks.echo")
    real = control.trigger

    def late(job: Job, **options: Any) -> Run:
        real(job, args=[2], idempotency_key="k")
        return real(job, **options)

    monkeypatch.setattr(control, "trigger", late)

    problem(_trigger(api, job, {"args": [1]}, idempotency_key="k"), 422)

    assert not Run.objects.filter(args=[1])


@pytest.mark.parametrize("key", ["", "x" * 121, "a b", "é", "a\x7fb"])
def test_invalid_idempotency_key_is_refused(key: str, api: Api) -> None:
    job = make_idle_job()

    assert [*problem(_trigger(api, job, idempotency_key=key), 400)["errors"]] == ["Idempotency-Key"]

    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"args": [1, 2, 3]}, "args"),
        ({"kwargs": {"nothing": 1}}, "kwargs"),
        ({"args": {}}, "args"),
        ({"kwargs": []}, "kwargs"),
        ({"args": ["\0"]}, "args"),
        ({"arg": []}, "arg"),
    ],
)
def test_invalid_arguments_are_refused(body: Any, field: str, api: Api) -> None:
    job = make_idle_job(target="tests.app.tasks.ok")

    assert [*problem(_trigger(api, job, body), 400)["errors"]] == [field]

    assert not Run.objects.exists()


def test_trigger_of_a_missing_target_is_a_conflict(api: Api) -> None:
    job = make_idle_job()
    Job.objects.update(target="tests.app.tasks.gone")

    assert "tests.app.tasks.gone" in problem(_trigger(api, job), 409)["detail"]


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_with_one_idempotency_key_create_one_run(
    admin_user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manual_runs, "dispatch_now", lambda run: None)
    job = make_idle_job()
    together = Barrier(4)

    def ask(_number: int) -> tuple[int, str]:
        try:
            api = Api(admin_user)
            together.wait(timeout=TIMEOUT)
            response = _trigger(api, job, idempotency_key="k")
            return response.status_code, response.json().get("id", "")
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask, range(4)))

    made = str(Run.objects.get().pk)
    assert sorted(answers) == [(200, made)] * 3 + [(201, made)]


@pytest.mark.postgresql
def test_trigger_with_a_key_does_not_block_other_runs_of_the_job(api: Api) -> None:
    """A full lock of the job conflicts with the foreign keys of runs that are inserted."""
    job = make_idle_job()
    with CaptureQueriesContext(connection) as queries:
        assert _trigger(api, job, idempotency_key="k").status_code == 201
    locks = [each["sql"].rpartition(" FOR ")[2] for each in queries if " FOR " in each["sql"]]
    assert locks == ["NO KEY UPDATE"]


@pytest.mark.django_db(transaction=True)
def test_run_is_dispatched_once_after_the_commit(
    admin_user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched: list[Run] = []
    monkeypatch.setattr(manual_runs, "dispatch_now", dispatched.append)
    job = make_idle_job()

    for _each in range(2):
        _trigger(Api(admin_user), job, idempotency_key="k")

    assert [run.pk for run in dispatched] == [Run.objects.get().pk]
    assert not connection.in_atomic_block


def test_trigger_of_a_job_deleted_meanwhile_is_not_found(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_idle_job()
    real = triggering.despite_contention

    def late(work: Any, using: str) -> Any:
        Cursor.objects.all().delete()
        Job.objects.all().delete()
        return real(work, using)

    monkeypatch.setattr(triggering, "despite_contention", late)

    problem(_trigger(api, job, idempotency_key="k"), 404)


@pytest.mark.django_db(transaction=True)
def test_actions_work_with_atomic_requests(
    admin_user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``ATOMIC_REQUESTS``, runs are dispatched after the commit. Refusals roll back."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    dispatched: list[bool] = []
    monkeypatch.setattr(
        manual_runs, "dispatch_now", lambda run: dispatched.append(connection.in_atomic_block)
    )
    job = make_idle_job(target="tests.app.tasks.echo")
    api = Api(admin_user)

    assert _trigger(api, job, {"args": [1]}, idempotency_key="k").status_code == 201
    assert _trigger(api, job).status_code == 201
    assert dispatched == [False, False]
    problem(_trigger(api, job, {"args": [2]}, idempotency_key="k"), 422)
    problem(api.patch(f"jobs/{job.pk}/", {"description": "x"}, if_match='"9"'), 412)
    assert api.post(f"jobs/{job.pk}/pause/").status_code == 200
    assert (Run.objects.count(), len(dispatched), entries_by_users().count()) == (2, 2, 3)
    assert not connection.in_atomic_block


# --- preview --------------------------------------------------------------------------------------


def test_preview_of_a_schedule_text_has_description_and_occurrences(api: Api) -> None:
    shown = api.post(
        "jobs/preview/", {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "count": 3}
    ).json()

    assert "2:30" in shown["words"]
    assert len(shown["occurrences"]) == 3
    assert all("T02:30:00+0" in each["local"] for each in shown["occurrences"])
    assert all(each["at"].endswith("Z") for each in shown["occurrences"])
    assert "clock_change" in {caution["code"] for caution in shown["cautions"]}
    assert not Job.objects.exists()


def test_preview_warns_if_there_are_no_further_occurrences(api: Api) -> None:
    shown = api.post("jobs/preview/", {"schedule": "@at 2020-01-01T00:00"}).json()

    assert (shown["occurrences"], [caution["code"] for caution in shown["cautions"]]) == (
        [],
        ["never_fires"],
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "schedule"),
        ({"schedule": "61 * * * *"}, "schedule"),
        ({"schedule": "0 0 30 2 *"}, "schedule"),
        ({"schedule": "@daily", "timezone": "Mars"}, "timezone"),
        ({"schedule": "@daily", "count": 101}, "count"),
        ({"schedule": "@daily", "count": "5"}, "count"),
        ({"schedule": "@daily", "name": "two  spaces"}, "name"),
        ({"schedule": "@daily", "target": "x"}, "target"),
        (
            {
                "schedule": "@daily",
                "starts_at": "2026-02-01T00:00:00Z",
                "ends_at": "2026-01-01T00:00:00Z",
            },
            "ends_at",
        ),
    ],
)
def test_preview_of_an_invalid_schedule_is_refused(body: Any, field: str, api: Api) -> None:
    assert [*problem(api.post("jobs/preview/", body), 400)["errors"]] == [field]


def test_preview_of_a_job_lists_its_next_occurrences(api: Api) -> None:
    job = make_idle_job(enabled=False)

    shown = api.get(f"jobs/{job.pk}/preview/", count=2).json()

    assert [each["at"][4:] for each in shown["occurrences"]] == ["-01-01T00:00:00Z"] * 2
    problem(api.get(f"jobs/{job.pk}/preview/", count=0), 400)


def test_preview_of_an_invalid_stored_schedule_is_a_conflict(api: Api) -> None:
    job = make_idle_job()
    Job.objects.update(schedule="nonsense")

    assert "nonsense" in problem(api.get(f"jobs/{job.pk}/preview/"), 409)["detail"]


# --- backfill -------------------------------------------------------------------------------------

RANGE = {"start": "2026-03-01T00:00:00Z", "end": "2026-03-04T00:00:00Z"}
OCCURRENCES = ["2026-03-01T03:00:00Z", "2026-03-02T03:00:00Z", "2026-03-03T03:00:00Z"]


def test_backfill_dry_run_lists_the_runs_that_backfill_creates(api: Api) -> None:
    job = make_job(schedule="0 3 * * *")

    shown = api.post(f"jobs/{job.pk}/backfill/", RANGE | {"dry_run": True}).json()

    assert not Run.objects.exists()
    assert shown == {
        "dry_run": True,
        "occurrences": OCCURRENCES,
        "existing_runs": 0,
        "continue_from": None,
        "until": RANGE["end"],
    }
    made = api.post(f"jobs/{job.pk}/backfill/", RANGE | {"limit": 2}).json()
    assert (made["dry_run"], made["occurrences"], made["continue_from"]) == (
        False,
        OCCURRENCES[:2],
        OCCURRENCES[2],
    )
    assert Run.objects.filter(state="waiting", trigger="backfill").count() == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"start": RANGE["end"], "end": RANGE["start"]}, "start"),
        ({"start": "2190-01-01T00:00:00Z", "end": "2191-01-01T00:00:00Z"}, "start"),
        ({"start": "2026-03-01"}, "start"),
        ({"end": "0001-01-01T00:00:00Z"}, "end"),
        ({"limit": 0}, "limit"),
        ({"limit": 10_001}, "limit"),
        ({"limit": "5"}, "limit"),
        ({"dry_run": "yes"}, "dry_run"),
        ({"form": 1}, "form"),
    ],
)
def test_invalid_backfill_is_refused(change: Any, field: str, api: Api) -> None:
    job = make_job(schedule="0 3 * * *")

    assert field in problem(api.post(f"jobs/{job.pk}/backfill/", RANGE | change), 400)["errors"]

    assert not Run.objects.exists()


def test_backfill_of_an_interval_that_never_started_is_a_conflict(api: Api) -> None:
    job = make_job(schedule="@every 1h", enabled=False)

    assert "interval" in problem(api.post(f"jobs/{job.pk}/backfill/", RANGE), 409)["detail"]


# --- runs -----------------------------------------------------------------------------------------


def test_pending_run_is_cancelled(api: Api) -> None:
    run = make_run(make_idle_job())

    shown = api.post(f"runs/{run.pk}/cancel/", {"reason": "wrong day"}).json()

    assert (shown["state"], shown["reason"]) == ("cancelled", "wrong day (admin)")
    run.refresh_from_db()
    assert run.state == "cancelled"


def test_cancelling_a_run_deleted_meanwhile_is_a_conflict(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(make_idle_job())
    real = control._cancel_once

    def late(run: Run, reason: str) -> bool:
        Run.objects.filter(pk=run.pk).delete()
        return real(run, reason)

    monkeypatch.setattr(control, "_cancel_once", late)

    assert "deleted" in problem(api.post(f"runs/{run.pk}/cancel/"), 409)["detail"]


def test_finished_run_is_not_cancelled_and_running_run_is_not_rerun(api: Api) -> None:
    job = make_idle_job()
    ended, running = make_run(job, "failed"), make_run(job, "running")

    assert "failed" in problem(api.post(f"runs/{ended.pk}/cancel/"), 409)["detail"]
    assert "running" in problem(api.post(f"runs/{running.pk}/rerun/"), 409)["detail"]
    problem(api.post(f"runs/{running.pk}/rerun/", {"args": []}), 400)
    assert Run.objects.count() == 2


def test_finished_run_is_rerun(api: Api) -> None:
    ended = make_run(make_idle_job(), "failed")

    response = api.post(f"runs/{ended.pk}/rerun/")

    made = Run.objects.exclude(pk=ended.pk).get()
    assert (response.status_code, response["Location"]) == (201, f"/dcron/runs/{made.pk}/")
    assert response.json()["rerun_of"] == str(ended.pk)
    assert (made.trigger, made.rerun_of_id) == ("rerun", ended.pk)


def test_pausing_a_job_deleted_meanwhile_is_a_conflict(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_idle_job()
    real = control.pause_many

    def late(*args: Any, **options: Any) -> dict[int, Exception]:
        Cursor.objects.all().delete()
        Job.objects.all().delete()
        return real(*args, **options)

    monkeypatch.setattr(control, "pause_many", late)

    assert "deleted" in problem(api.post(f"jobs/{job.pk}/pause/"), 409)["detail"]
