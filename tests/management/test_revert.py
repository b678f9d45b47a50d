"""``dcron revert``: which edit or deletion it undoes, its output and its refusals."""

import pytest

from django_dcron import control
from django_dcron.jobs.audit.actor import Actor, acting
from django_dcron.jobs.audit.entries import SYNCED
from django_dcron.jobs.batch_reading import JobToSave
from django_dcron.jobs.saving import save_change
from django_dcron.management.dcron import lookup
from django_dcron.management.dcron.exits import NEGATIVE, USAGE_ERROR
from django_dcron.models import AuditEntry, Cursor, Job, Via
from tests.factories import forget_entries, make_idle_job, make_run
from tests.management.calling import call

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    """Return a job with three versions: version 2 has another schedule, version 3 more attempts."""
    job = make_idle_job(name="report", namespace="shop")
    job.schedule = "0 5 1 1 *"
    control.save(job)
    job.max_attempts = 4
    return control.save(job)


def test_latest_edit_is_reverted(job: Job) -> None:
    control.pause(job, "deploy")  # no edit

    result = call("revert", "shop/report")

    assert result.code == 0
    named, changed = result.out.splitlines()
    assert named.startswith("shop/report: undoes the edit that made version 3 (A program, ")
    assert changed == "shop/report: max_attempts: 4 -> 1"
    job.refresh_from_db()
    assert (job.max_attempts, job.schedule, job.enabled) == (1, "0 5 1 1 *", False)


def test_automatic_changes_are_passed_over(job: Job) -> None:
    """The rename of a predecessor, a sync, a change by the scheduler and one without fields."""
    first = make_idle_job(name="first")
    job.after = {"first": "ended"}
    control.save(job)
    first.name = "renamed"
    control.save(first)
    job.refresh_from_db()
    job.queue = "slow"
    save_change(JobToSave(job, reason=SYNCED))
    job.description = "new"
    with acting(lambda: Actor(via=Via.SCHEDULER)):
        control.save(job)
    job.declared = {"schedule": "@daily"}
    control.save(job)

    result = call("revert", "shop/report")
    assert result.code == NEGATIVE
    assert "version 4 of shop/report" in result.err
    assert "after (now " in result.err
    assert "version 5 by A program" not in result.err
    assert call("revert", "shop/report", "--version", "7").code == 0
    assert call("revert", "shop/report", "--version", "8").code == NEGATIVE
    job.refresh_from_db()
    assert (job.description, job.queue) == ("", "slow")


def test_job_that_only_a_sync_has_changed() -> None:
    job = make_idle_job(name="report")
    job.queue = "slow"
    save_change(JobToSave(job, reason=SYNCED))
    result = call("revert", "report")
    assert result.code == USAGE_ERROR
    assert SYNCED in result.err
    assert "dcron revert report --version 2" in result.err
    assert call("revert", "report", "--version", "2").code == 0


def test_second_revert_reverts_the_first(job: Job) -> None:
    call("revert", "shop/report")
    assert "\nshop/report: max_attempts: 1 -> 4\n" in call("revert", "shop/report").out
    assert call("revert", "shop/report", "--version", "3").code == 0
    assert call("revert", "shop/report", "--version", "3").code == NEGATIVE


def test_edit_of_a_version_is_reverted(job: Job) -> None:
    next_at = Cursor.objects.get().next_at
    lines = call("revert", "shop/report", "--version", "2").out.splitlines()
    assert "version 2 (" in lines[0]
    assert lines[1] == "shop/report: schedule: 0 5 1 1 * -> 0 0 1 1 *"
    assert "next occurrence" in lines[2]
    job.refresh_from_db()
    assert (job.max_attempts, job.schedule) == (4, "0 0 1 1 *")
    assert Cursor.objects.get().next_at != next_at


def test_dry_run_changes_nothing(job: Job) -> None:
    number = AuditEntry.objects.count()
    text = call("revert", "shop/report", "--dry-run").out
    document = call("revert", "shop/report", "--dry-run", "--json").json
    assert "max_attempts: 4 -> 1" in text
    assert document["dry_run"] is True
    assert document["changes"] == {"max_attempts": [4, 1]}
    job.refresh_from_db()
    assert (job.max_attempts, job.version) == (4, 3)
    assert AuditEntry.objects.count() == number

    done = call("revert", "shop/report", "--json").json
    assert done == document | {"dry_run": False}


def test_refusal_names_the_fields_and_changes_nothing(job: Job) -> None:
    job.max_attempts = 5
    control.save(job)
    result = call("revert", "shop/report", "--version", "3")
    assert result.code == NEGATIVE
    assert "max_attempts (now 5" in result.err
    Job.objects.filter(pk=job.pk).update(target="gone.task")
    job.refresh_from_db()
    job.target = "tests.app.tasks.ok"
    control.save(job)
    result = call("revert", "shop/report")
    assert result.code == NEGATIVE
    assert "target: " in result.err
    assert "gone.task" in result.err
    job.refresh_from_db()
    assert (job.max_attempts, job.target) == (5, "tests.app.tasks.ok")


def test_job_or_edit_that_does_not_exist(job: Job) -> None:
    assert call("revert", "unknown").code == USAGE_ERROR
    assert call("revert", "shop/report", "--version", "1").code == USAGE_ERROR
    assert call("revert", "shop/report", "--version", "0").code == USAGE_ERROR
    assert "version 9" in call("revert", "shop/report", "--version", "9").err
    forget_entries()
    assert call("revert", "shop/report").code == USAGE_ERROR


@pytest.mark.parametrize("has_history", [True, False])
def test_deletion_is_undone(job: Job, has_history: bool) -> None:
    if has_history:
        make_run(job, "succeeded")
    next_at = Cursor.objects.get().next_at
    call("delete", "shop/report", "--yes")

    planned = call("revert", "shop/report", "--dry-run")
    assert not Job.objects.exists()
    result = call("revert", "shop/report")

    assert result.code == planned.code == 0
    assert planned.out == f"{result.out}Nothing was changed.\n"
    assert "  max_attempts: 4\n" in result.out
    assert (f"shop/report (deleted {job.pk})" in result.out) == has_history
    restored = Job.objects.get()
    assert (str(restored), restored.max_attempts, restored.enabled) == ("shop/report", 4, True)
    assert Cursor.objects.get().next_at == next_at
    assert call("revert", "shop/report").code == USAGE_ERROR  # the restored job has no edit


def test_undone_deletion_as_json(job: Job) -> None:
    control.pause(job, "deploy")
    control.delete(job)
    planned = call("revert", "shop/report", "--dry-run", "--json").json
    done = call("revert", str(job.pk), "--json").json
    restored = Job.objects.get()
    assert done == planned | {"dry_run": False, "id": restored.pk}
    assert done["changes"]["enabled"] == [True, False]
    assert (restored.enabled, restored.pause_reason) == (False, "deploy")


def test_deletion_that_cannot_be_undone(job: Job) -> None:
    job.kwargs = {"token": "hush"}
    job.target = "tests.app.tasks.echo"
    control.save(job)
    control.delete(job)
    result = call("revert", "shop/report")
    assert (result.code, Job.objects.count()) == (NEGATIVE, 0)
    assert "kwargs" in result.err
    assert "hush" not in result.err
    assert call("revert", "shop/report", "--version", "2").code == USAGE_ERROR


@pytest.mark.parametrize("namespaces", [["shop"], ["mail", "shop"]])
def test_hint_about_a_deletion_names_no_job_of_another_namespace(namespaces: list[str]) -> None:
    for namespace in namespaces:
        other = make_idle_job(name="report", namespace=namespace)
        other.max_attempts = 7
        control.save(other)
    deleted = make_idle_job(name="report")
    control.delete(deleted)

    result = call("revert", "report")
    assert (result.code, "Several jobs" in result.err) == (USAGE_ERROR, True)
    hint = call("show", "default/report").err
    assert "dcron revert default/report." in hint
    assert "dcron audit default/report" in hint
    audited = call("audit", "default/report", "--json").json
    assert {each["job_id"] for each in audited["entries"]} == {deleted.pk}
    assert f"dcron revert {deleted.pk}." in call("show", str(deleted.pk)).err
    assert call("revert", "default/report").code == 0
    assert {*Job.objects.values_list("max_attempts", flat=True)} == {1, 7}


def test_name_of_a_job_takes_precedence_over_the_number_of_a_deleted_one(job: Job) -> None:
    named = make_idle_job(name=str(job.pk))
    named.max_attempts = 7
    control.save(named)
    control.delete(job)
    assert call("revert", str(job.pk)).code == 0
    assert Job.objects.get().max_attempts == 1


def test_undone_deletion_is_not_offered_again(job: Job) -> None:
    control.delete(job)
    call("revert", "shop/report")
    restored = Job.objects.get()
    restored.name = "renamed"
    control.save(restored)
    for command in ("show", "revert"):
        result = call(command, "shop/report")
        assert f"shop/renamed ({'number ' * (command == 'revert')}{restored.pk})" in result.err
        assert "dcron revert" not in result.err
    assert Job.objects.count() == 1


def test_error_about_a_deleted_job_that_code_declares_names_the_sync_and_the_revert(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "declarations", lambda: [str(job)])
    control.delete(job)
    error = call("why", str(job)).err
    assert "Code still declares it, so the next sync" in error
    assert f"manage.py dcron revert {job.namespace}/{job.name}" in error
    assert call("revert", str(job)).code == 0
    assert call("why", str(job), "now").code == 0


def test_revert_of_a_job_that_was_created_again_names_the_deleted_one(job: Job) -> None:
    job.max_attempts = 7
    control.save(job)
    number = job.pk
    control.delete(job)
    make_idle_job(name=job.name, namespace=job.namespace)
    error = call("revert", str(job)).err
    assert f"manage.py dcron delete {job}, then manage.py dcron revert {number}" in error
    assert call("delete", str(job), "--yes").code == 0
    assert call("revert", str(number)).code == 0
    assert Job.objects.get(name=job.name).max_attempts == 7


def test_error_about_a_deleted_job_says_who_deleted_it(job: Job) -> None:
    make_run(job, "succeeded")
    with control.acting_as("mallory"):
        control.delete(job)
    for command in (["show"], ["why"], ["next"], ["run"], ["history"]):
        result = call(*command, "shop/report")
        assert result.code == USAGE_ERROR
        assert "mallory deleted it at " in result.err
        assert "manage.py dcron revert shop/report" in result.err
        assert f"manage.py dcron history 'shop/report (deleted {job.pk})'" in result.err
    assert "mallory" not in call("show", "shop/unknown").err
