"""Test the buttons and the list actions of jobs and runs, with their messages and history."""

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection
from django.db.models.signals import post_save
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.html import escape
from pytest_django import Settings

from django_dcron import control
from django_dcron.admin.action_forms import PauseForm
from django_dcron.admin.jobs.job_actions import ACTIONS as JOB_ACTIONS
from django_dcron.admin.runs.admin import ACTIONS as RUN_ACTIONS
from django_dcron.diagnosis.start_caution import CAUTIONS
from django_dcron.jobs import pausing
from django_dcron.jobs.action_texts import cancelled_text, paused_text, resumed_text
from django_dcron.models import AuditAction, Job, Run
from django_dcron.models.job_states import HANDED_BACK
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.policies.slots import Slot
from tests.admin.conftest import (
    action_url,
    errors,
    fill_in,
    job_url,
    list_url,
    make_job,
    make_run,
    messages,
    run_url,
)
from tests.factories import age_pauses, entries_by_users


def _press(client: Client, row: Job | Run, action: str, **sent: str) -> Any:
    return client.post(action_url(row, action), sent, follow=True)


def _choose(client: Client, action: str, *rows: Job | Run, **typed: str) -> Any:
    url = list_url(str(rows[0]._meta.model_name))
    sent = {"action": action, "_selected_action": [row.pk for row in rows], "confirmed": "1"}
    return client.post(url, sent | typed, follow=True)


def _history(row: Job | Run) -> list[tuple[str, str]]:
    entries = entries_by_users().filter(object_id=str(row.pk))
    return [(entry.actor, entry.action) for entry in entries]


def _refusal(row: Job | Run, action: str) -> str:
    """Return the message that the action doesn't apply to the row."""
    object_actions: tuple[Any, ...] = (*JOB_ACTIONS, *RUN_ACTIONS)
    refusal = next(each for each in object_actions if each.name == action).refusal(row)
    assert refusal
    return escape(f"“{row}”: {refusal}")


def test_run_now_redirects_to_new_run(admin_client: Client) -> None:
    job = make_job()

    response = _press(admin_client, job, "run_now")

    run = Run.objects.get(job=job)
    assert run.trigger == "manual"
    assert response.redirect_chain[-1][0] == run_url(run)
    assert run_url(run) in messages(response)[0]
    assert _history(run) == [("admin", AuditAction.TRIGGER)]
    assert _history(job) == []


@pytest.mark.parametrize("policy", list(OverlapPolicy))
def test_starting_a_run_warns_of_an_unfinished_one(
    admin_client: Client, policy: OverlapPolicy
) -> None:
    job = make_job(overlap_policy=policy)
    finished = make_run(job, state="succeeded", finished_at=timezone.now())
    assert len(messages(_press(admin_client, job, "run_now"))) == 1
    make_run(job, timezone.now(), state="running", slot=Slot.RUNNING)

    caution = [str(CAUTIONS[policy])] if policy in CAUTIONS else []

    assert bool(caution) == policy.exclusive
    for row, action in ((job, "run_now"), (finished, "rerun")):
        created, *cautions = messages(_press(admin_client, row, action))
        assert "Created" in created, "it may wait before it starts"
        assert cautions == [f"“{escape(row)}”: {escape(text)}" for text in caution]


def test_starting_a_run_of_a_shadow_warns_that_nothing_is_executed(admin_client: Client) -> None:
    shadow = make_job("a", target="shadow:tests.app.tasks.ok", overlap_policy="skip")
    finished = make_run(shadow, state="succeeded", finished_at=timezone.now())
    text = "The job is a shadow. The run is recorded, but tests.app.tasks.ok isn't executed."

    for row, action in ((shadow, "run_now"), (shadow, "run_with"), (finished, "rerun")):
        created, *cautions = messages(_press(admin_client, row, action, args="[]", kwargs="{}"))
        assert "Created" in created
        assert cautions == [f"“{escape(row)}”: {escape(text)}"]
    _created, caution = messages(_choose(admin_client, "run_now", shadow, make_job("b")))
    assert caution == f"“{shadow}”: {escape(text)}"


def test_each_caution_of_a_start_has_its_own_line(admin_client: Client) -> None:
    shadow = make_job("a", target="shadow:tests.app.tasks.ok", overlap_policy="skip")
    make_run(shadow, state="running", slot=Slot.RUNNING)
    _created, cautions = messages(_press(admin_client, shadow, "run_now"))
    first, second = cautions.split("<br>")
    assert "The job is a shadow" in first
    assert "An earlier run is unfinished" in second


def test_rerun_of_an_unknown_target_warns_that_it_fails(admin_client: Client) -> None:
    run = make_run(make_job(), state="failed", finished_at=timezone.now())
    Job.objects.update(target="tests.app.tasks.gone")
    assert any("Runs fail: " in text for text in messages(_press(admin_client, run, "rerun")))


# --- run with other arguments ---------------------------------------------------------------------


def _echo(**values: Any) -> Job:
    return make_job(target="tests.app.tasks.echo", args=[1], kwargs={"city": "Köln"}, **values)


def test_run_with_form_is_prefilled_with_job_arguments(admin_client: Client) -> None:
    job = _echo()

    form = admin_client.get(action_url(job, "run_with")).context["form"]

    assert (form["args"].value(), form["kwargs"].value()) == ("[1]", '{"city": "Köln"}')


def test_run_with_creates_run_with_given_arguments(admin_client: Client) -> None:
    job = _echo()

    response = _press(admin_client, job, "run_with", args='["<b>", null]', kwargs="")

    run = Run.objects.get(job=job)
    assert (run.args, run.kwargs, run.trigger) == (["<b>", None], {}, "manual")
    assert response.redirect_chain[-1][0] == run_url(run)
    assert _history(run) == [("admin", AuditAction.TRIGGER)]
    job.refresh_from_db()
    assert job.args == [1]


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        ({"args": "[1", "kwargs": "{}"}, ["args"]),
        ({"args": "{}", "kwargs": "[]"}, ["args", "kwargs"]),
        ({"args": "1", "kwargs": "{}"}, ["args"]),
        ({"args": "[NaN]", "kwargs": "{}"}, ["args"]),
        ({"args": "[]", "kwargs": '{"a": "\\u0000"}'}, ["kwargs"]),
        ({"args": '["\\ud800"]', "kwargs": "{}"}, ["args"]),
        ({"args": "[" * 100_000, "kwargs": ""}, ["args"]),
    ],
)
def test_run_with_rejects_malformed_arguments_with_field_error(
    admin_client: Client, sent: dict[str, str], refused: list[str]
) -> None:
    response = admin_client.post(action_url(_echo(), "run_with"), sent)

    assert (response.status_code, list(response.context["form"].errors)) == (200, refused)
    assert sent["args"] in html.unescape(response.content.decode())
    assert not Run.objects.exists()


def test_run_with_rejects_arguments_unknown_to_target(admin_client: Client) -> None:
    job = make_job(target="tests.app.tasks.slow")

    response = admin_client.post(
        action_url(job, "run_with"), {"args": "[]", "kwargs": '{"second": 1}'}
    )

    (text,) = response.context["form"].errors["kwargs"]
    assert "'second'" in text
    assert re.search(r"\bseconds\b", text)
    Job.objects.update(target="gone.task")
    response = admin_client.post(action_url(job, "run_with"), {"args": "[]", "kwargs": ""})
    assert "gone.task" in response.context["form"].errors["__all__"][0]
    assert not Run.objects.exists()


# --- pause and resume -----------------------------------------------------------------------------


def test_pause_stores_reason_with_user_name(admin_client: Client) -> None:
    job = make_job()

    response = _press(admin_client, job, "pause", reason=" deploy <b> ")

    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (False, "deploy <b> (admin)")
    assert messages(response) == [f"“report”: {escape(paused_text(job))}"]
    assert "<b>" not in response.content.decode()
    assert _history(job) == [("admin", AuditAction.PAUSE)]
    assert "deploy <b> (admin)" in paused_text(job)


def test_long_reason_is_refused_and_long_user_name_is_shortened(admin_client: Client) -> None:
    job = make_job()
    refused = admin_client.post(action_url(job, "pause"), {"reason": "x" * 151})
    assert list(refused.context["form"].errors) == ["reason"]
    assert Job.objects.get().enabled
    User.objects.filter(username="admin").update(username="u" * 150)
    _press(admin_client, job, "pause", reason="x" * 150)
    reason = Job.objects.get().pause_reason
    assert reason.startswith(f"{'x' * 150} (uuu")
    assert len(reason) == 253


def test_pause_keeps_due_runs_and_retries_and_its_form_says_so(admin_client: Client) -> None:
    job, now = make_job(), timezone.now()
    make_run(job, now - timedelta(hours=2))
    make_run(job, now - timedelta(hours=1), attempt=2, due_at=now + timedelta(hours=1))
    assert "Due runs and retries still start" in str(PauseForm(row=job).fields["until"].help_text)
    _press(admin_client, job, "pause")
    assert Run.objects.filter(state="pending").count() == 2


def test_pause_without_reason_stores_user_name(admin_client: Client) -> None:
    job = make_job()
    _press(admin_client, job, "pause")

    job.refresh_from_db()
    assert job.pause_reason == "by admin"


def test_pause_reads_end_in_site_time_zone(admin_client: Client) -> None:
    job = make_job()

    with timezone.override("Europe/Berlin"):
        response = _press(admin_client, job, "pause", reason="deploy", until="2090-01-01 09:00")

    job.refresh_from_db()
    assert (job.enabled, job.paused_until) == (False, datetime(2090, 1, 1, 8, tzinfo=UTC))
    with timezone.override("Europe/Berlin"):
        output = paused_text(job)
    assert "2090-01-01 09:00:00 CET" in output
    assert messages(response) == [f"“report”: {output}"]
    assert _history(job) == [("admin", AuditAction.PAUSE)]
    listed = admin_client.get(list_url("job")).content.decode()
    assert "deploy (admin)" in listed
    assert "2090-01-01 08:00:00 UTC" in listed
    assert "2090-01-01 08:00:00" in admin_client.get(job_url(job)).content.decode()


def test_pause_with_past_end_shows_field_error(admin_client: Client) -> None:
    job = make_job()

    response = admin_client.post(
        action_url(job, "pause"), {"reason": "deploy", "until": "2026-01-01"}
    )

    assert response.status_code == 200
    (error,) = response.context["form"].errors.as_data()["until"]
    assert (error.code, error.params) == ("passed", {"until": "2026-01-01 00:00:00 UTC"})
    page = response.content.decode()
    assert 'value="deploy"' in page
    assert 'value="2026-01-01"' in page
    assert Job.objects.get(pk=job.pk).enabled
    assert _history(job) == []


def test_pause_is_refused_if_end_passes_before_save(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    monkeypatch.setattr(pausing, "database_now", lambda using: datetime(2095, 1, 1, tzinfo=UTC))

    response = _press(admin_client, job, "pause", until="2090-01-01")

    assert "2090-01-01" in messages(response)[0]
    assert Job.objects.get(pk=job.pk).enabled


def test_bulk_pause_sets_same_end_and_reason_on_all_jobs(admin_client: Client) -> None:
    jobs = [make_job(f"job {number}") for number in range(2)]
    url = list_url("job")
    chosen = {"action": "pause", "_selected_action": [job.pk for job in jobs], "confirmed": "1"}

    admin_client.post(url, {**chosen, "until": "2090-01-01", "reason": "deploy"})

    assert set(Job.objects.values_list("enabled", "paused_until", "pause_reason")) == {
        (False, datetime(2090, 1, 1, tzinfo=UTC), "deploy (admin)")
    }


def test_bulk_pause_shows_no_text_of_unexpected_errors(
    admin_client: Client, request: pytest.FixtureRequest
) -> None:
    good, bad = make_job("good"), make_job("bad")

    def fail(instance: Job, **_: Any) -> None:
        if instance.pk == bad.pk:
            raise IntegrityError("duplicate key: secret-value")

    post_save.connect(fail, sender=Job)
    request.addfinalizer(lambda: post_save.disconnect(fail, sender=Job))
    sent = {"action": "pause", "_selected_action": [good.pk, bad.pk], "confirmed": "1"}
    page = admin_client.post(list_url("job"), sent, follow=True).content.decode()

    assert set(Job.objects.filter(enabled=False)) == {good}
    assert "secret-value" not in page


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_number_of_queries_does_not_grow_with_the_selected_jobs(
    admin_client: Client, action: str
) -> None:
    counts = []
    for number in (3, 25):
        jobs = [make_job(f"{number}-{each}") for each in range(number)]
        if action == "resume":
            control.pause_many(jobs, "deploy")
        sent = {"action": action, "_selected_action": [job.pk for job in jobs], "confirmed": "1"}
        with CaptureQueriesContext(connection) as queries:
            admin_client.post(list_url("job"), sent)
        counts.append(len(queries))
        switched = Job.objects.filter(pk__in=[job.pk for job in jobs], enabled=action == "resume")
        assert switched.count() == number
        for job in jobs:
            assert len(_history(job)) == 1
    assert counts[0] == counts[1]


@pytest.mark.parametrize("action", ["run_now", "cancel"])
def test_number_of_queries_does_not_grow_with_the_runs(admin_client: Client, action: str) -> None:
    counts = []
    for number in (3, 25):
        jobs = [make_job(f"{number}-{each}", schedule="@never") for each in range(number)]
        rows = jobs if action == "run_now" else [make_run(job) for job in jobs]
        sent = {"action": action, "_selected_action": [row.pk for row in rows], "confirmed": "1"}
        with CaptureQueriesContext(connection) as queries:
            admin_client.post(list_url("job" if action == "run_now" else "run"), sent)
        counts.append(len(queries))
        runs = Run.objects.filter(job__in=jobs)
        assert [run.is_final for run in runs] == [action == "cancel"] * number
        for run in runs:
            assert len(_history(run)) == 1
        assert all(_history(job) == [] for job in jobs)
    assert counts[0] == counts[1]


def test_resume_says_how_many_occurrences_were_due_during_the_pause(admin_client: Client) -> None:
    job = make_job(schedule="@daily")
    control.pause(job, "moving")
    age_pauses(timedelta(days=3))
    done, caution = messages(_press(admin_client, job, "resume"))
    assert done == f"“{job}”: {resumed_text(job)}"
    assert "3 occurrences" in caution


@pytest.mark.parametrize("chosen", [("old",), ("old", "other")])
def test_resume_cautions_that_another_enabled_job_does_the_same(
    admin_client: Client, chosen: tuple[str, ...]
) -> None:
    make_job("new", declared={})
    jobs = [make_job(name, import_source="redbeat", import_key=name) for name in chosen]
    Job.objects.filter(name="other").update(target="tests.app.tasks.echo")
    control.pause_many(jobs)
    response = (
        _choose(admin_client, "resume", *jobs)
        if len(jobs) > 1
        else _press(admin_client, *jobs, "resume")
    )
    shown = response.context["messages"]
    (caution,) = [str(each) for each in shown if each.level_tag == "warning"]
    assert "“old”: The enabled job new has the same target" in caution


@pytest.mark.parametrize("others", [0, 1])
def test_resume_in_the_list_leaves_jobs_that_wait_for_a_handover(
    admin_client: Client, others: int
) -> None:
    waiting = make_job("old", import_source="redbeat", import_key="old")
    control.pause(waiting, HANDED_BACK)
    mine = [make_job("mine", enabled=False, pause_reason="deploy")][:others]

    problem = messages(_choose(admin_client, "resume", waiting, *mine))[-1]

    assert escape(f"“{waiting}”") in problem
    assert set(Job.objects.filter(enabled=True)) == set(mine)
    _done, caution = messages(_press(admin_client, waiting, "resume"))
    assert "manage.py dcron handover redbeat" in caution
    assert Job.objects.get(pk=waiting.pk).enabled


def test_refused_job_of_a_list_does_not_stop_the_others(admin_client: Client) -> None:
    good, over = make_job("a"), make_job("b", schedule="@at 2020-01-01T00:00", enabled=False)
    last = make_job("c", enabled=False, pause_reason="deploy")
    response = _choose(admin_client, "resume", good, over, last)
    _done, problems = messages(response)
    assert _refusal(good, "resume") in problems
    assert f"“{over}”" in problems
    last.refresh_from_db()
    assert last.enabled
    assert (_history(over), _history(last)) == ([], [("admin", AuditAction.RESUME)])


def test_job_form_rejects_past_pause_end_unless_job_is_enabled(admin_client: Client) -> None:
    job = control.pause(make_job(), "deploy", datetime(2090, 1, 1, tzinfo=UTC))
    until = {"paused_until_0": "2020-01-01", "paused_until_1": "12:00:00"}

    response = fill_in(admin_client, job_url(job), **until)
    assert list(errors(response)) == ["paused_until"]
    assert fill_in(admin_client, job_url(job), **until, enabled="on").status_code == 302

    job.refresh_from_db()
    assert (job.enabled, job.paused_until) == (True, None)


def test_resume_clears_pause_and_is_logged(admin_client: Client) -> None:
    job = make_job()
    control.pause(job, "deploy", datetime(2090, 1, 1, tzinfo=UTC))

    _press(admin_client, job, "resume")

    job.refresh_from_db()
    assert (job.enabled, job.pause_reason, job.paused_until) == (True, "", None)
    assert _history(job) == [("admin", AuditAction.RESUME)]


@pytest.mark.parametrize("way", ["button", "action"])
def test_pausing_paused_job_is_refused(admin_client: Client, way: str) -> None:
    """Otherwise a second pause with an end would turn an open-ended pause into a temporary one."""
    job = control.pause(make_job(), "incident 17")
    sent = {"reason": "", "until": "1h"}

    if way == "button":  # posted from a page that was loaded before the pause
        response = _press(admin_client, job, "pause", **sent)
    else:
        response = _choose(admin_client, "pause", job, **sent)

    job.refresh_from_db()
    assert (job.pause_reason, job.paused_until) == ("incident 17", None)
    assert messages(response) == [_refusal(job, "pause")]
    assert _history(job) == []


@pytest.mark.parametrize("way", [_press, lambda client, row, action: _choose(client, action, row)])
def test_resuming_unpaused_job_is_refused(admin_client: Client, way: Any) -> None:
    job = make_job()

    assert messages(way(admin_client, job, "resume")) == [_refusal(job, "resume")]
    assert _history(job) == []


def test_bulk_pause_does_not_replace_a_concurrent_pause(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = make_job("a"), make_job("b")

    def after_another_user(*args: Any, **options: Any) -> dict[int, Exception]:
        pausing.pause(Job.objects.get(pk=last.pk), "incident 17")
        return pausing.pause_many(*args, **options)

    monkeypatch.setattr(control, "pause_many", after_another_user)
    response = _choose(admin_client, "pause", first, last, until="1h")

    last.refresh_from_db()
    assert str(last) in messages(response)[1]
    assert last.pause_reason == "incident 17"


def test_change_pause_updates_reason_and_end(admin_client: Client) -> None:
    job = control.pause(make_job(), "incident 17", datetime(2090, 1, 1, tzinfo=UTC))
    with timezone.override("Europe/Berlin"):
        form = admin_client.get(action_url(job, "change_pause")).context["form"]
    shown = {bound.name: bound.value() or "" for bound in form}
    assert shown == {"reason": "", "until": "2090-01-01 01:00:00+01:00"}
    assert "incident 17" in form["reason"].help_text

    _press(admin_client, job, "change_pause", **shown)
    job.refresh_from_db()
    assert (job.pause_reason, job.paused_until) == ("incident 17", datetime(2090, 1, 1, tzinfo=UTC))

    _press(admin_client, job, "change_pause", reason="incident 18", until="")
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason, job.paused_until) == (False, "incident 18 (admin)", None)
    assert _history(job)[-1] == ("admin", AuditAction.PAUSE)


def test_change_pause_ends_the_wait_for_a_handover(admin_client: Client) -> None:
    job = control.pause(make_job(import_source="redbeat", import_key="report"), HANDED_BACK)
    form = admin_client.get(action_url(job, "change_pause")).context["form"]
    assert HANDED_BACK not in form["reason"].help_text

    assert messages(_press(admin_client, job, "change_pause", reason="", until="1h"))
    job.refresh_from_db()
    assert (job.pause_reason, job.paused_until) == (HANDED_BACK, None)

    _press(admin_client, job, "change_pause", reason="", until="")

    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (False, "by admin")


def test_change_pause_of_unpaused_job_is_refused(admin_client: Client) -> None:
    job = make_job()

    response = _press(admin_client, job, "change_pause", until="1h")

    assert messages(response) == [_refusal(job, "change_pause")]
    assert Job.objects.get(pk=job.pk).enabled


def test_refused_action_shows_error_message(admin_client: Client) -> None:
    job = make_job(schedule="@at 2020-01-01T00:00", enabled=False)

    response = _press(admin_client, job, "resume")

    assert response.context["messages"]._loaded_data[0].level_tag == "error"
    assert messages(response)[0].startswith("“report”: ")
    assert _history(job) == []


def test_duplicate_creates_paused_copy(admin_client: Client) -> None:
    job = make_job(tags=["billing"], max_attempts=3)
    control.pause(job, "deploy", datetime(2090, 1, 1, tzinfo=UTC))

    response = _press(admin_client, job, "duplicate")

    copy = Job.objects.get(name="report copy")
    assert response.redirect_chain[-1][0] == job_url(copy)
    assert (copy.enabled, copy.tags, copy.max_attempts, copy.declared) == (
        False,
        ["billing"],
        3,
        None,
    )
    assert (copy.pause_reason, copy.paused_until) == ("copy of report", None)
    assert copy.cursor.next_at is None


def test_stored_pause_reason_of_a_copy_is_english(admin_client: Client, settings: Settings) -> None:
    settings.LANGUAGE_CODE = "de"
    _press(admin_client, make_job("x" * 120, namespace="n" * 64), "duplicate")
    copy = Job.objects.get(enabled=False)
    assert copy.pause_reason == f"copy of {'n' * 64}/{'x' * 120}"


def test_repeated_duplicates_get_unique_names(admin_client: Client) -> None:
    job = make_job("x" * 120)
    for _ in range(3):
        _press(admin_client, job, "duplicate")

    assert set(Job.objects.values_list("name", flat=True)) == {
        "x" * 120,
        "x" * 115 + " copy",
        "x" * 113 + " copy 2",
        "x" * 113 + " copy 3",
    }


def test_duplicate_of_invalid_job_is_refused(admin_client: Client) -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(target="gone.task")

    response = _press(admin_client, job, "duplicate")

    assert "gone.task" in messages(response)[0]
    assert Job.objects.count() == 1


def test_bulk_action_reports_success_and_failure_per_row(admin_client: Client) -> None:
    good, expired = (
        make_job("good", enabled=False),
        make_job("expired", schedule="@at 2020-01-01T00:00", enabled=False),
    )

    response = _choose(admin_client, "resume", good, expired)

    messages_shown = messages(response)
    assert messages_shown[0] == f"“good”: {resumed_text(good)}"
    assert messages_shown[1].startswith("“expired”: ")
    assert set(Job.objects.filter(enabled=True)) == {good}


@pytest.mark.parametrize("action", ["run_now", "pause", "resume", "duplicate"])
def test_bulk_action_logs_all_rows_and_lists_first_ten(admin_client: Client, action: str) -> None:
    jobs = [make_job(f"job {number}", enabled=action != "resume") for number in range(12)]

    response = _choose(admin_client, action, *jobs)

    *listed, rest = messages(response)[0].split("<br>")
    assert len(listed) == 10
    assert re.findall(r"\d+", rest) == ["2"]
    assert entries_by_users().count() == 12


def test_bulk_action_stops_at_row_limit_with_warning(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.admin.actions.MAX_ROWS", 2)
    jobs = [make_job(f"job {number}") for number in range(3)]

    response = _choose(admin_client, "pause", *jobs)

    warning, _done = messages(response)
    assert re.findall(r"\d+", warning) == ["2"]
    assert Job.objects.filter(enabled=False).count() == 2


def test_cancel_stores_reason_and_redirects_to_run(admin_client: Client) -> None:
    run = make_run(make_job())

    response = _press(admin_client, run, "cancel", reason="wrong data")

    run.refresh_from_db()
    assert run.state == "cancelled"
    assert "wrong data (admin)" in run.reason
    assert response.redirect_chain[-1][0] == run_url(run)
    assert _history(run) == [("admin", AuditAction.CANCEL)]


def test_no_run_that_has_succeeded_meanwhile_is_reported_as_cancelled() -> None:
    texts = {state: cancelled_text(Run(state=state)) for state in ("cancelled", "running")}

    assert cancelled_text(Run(state="succeeded")) == texts["running"] != texts["cancelled"]


def test_bulk_cancel_refuses_finished_run(admin_client: Client) -> None:
    job = make_job()
    ended, pending = make_run(job, state="succeeded"), make_run(make_job("other"))

    response = _choose(admin_client, "cancel", ended, pending)

    assert len(messages(response)) == 2
    assert html.unescape(messages(response)[1]) == _refusal(ended, "cancel")


def test_rerun_links_old_and_new_run(admin_client: Client) -> None:
    run = make_run(make_job(), state="failed")

    response = _press(admin_client, run, "rerun")

    again = Run.objects.get(rerun_of=run)
    assert response.redirect_chain[-1][0] == run_url(again)
    assert run_url(run) in response.content.decode()
    assert run_url(again) in admin_client.get(run_url(run)).content.decode()


def test_get_request_changes_nothing(admin_client: Client) -> None:
    job = make_job()

    assert admin_client.get(action_url(job, "run_now")).status_code == 405
    assert admin_client.put(action_url(job, "pause")).status_code == 405
    form_page = admin_client.get(action_url(job, "pause"))
    assert (form_page.status_code, list(form_page.context["form"].fields)) == (
        200,
        ["reason", "until"],
    )
    assert Job.objects.get(pk=job.pk).enabled
    assert not Run.objects.exists()


def test_post_without_csrf_token_is_forbidden(admin_user: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    job = make_job()

    assert client.post(action_url(job, "pause")).status_code == 403
    assert Job.objects.get(pk=job.pk).enabled


def test_unknown_action_or_row_returns_404(admin_client: Client) -> None:
    job = make_job()
    url = action_url(job, "pause")

    assert admin_client.post(action_url(job, "explode")).status_code == 404
    job.delete()
    assert admin_client.post(url).status_code == 404


def test_job_page_offers_buttons_for_current_state(admin_client: Client) -> None:
    job = make_job()

    def offered() -> list[str]:
        urls = [button.url for button in admin_client.get(job_url(job)).context["buttons"]]
        assert all(url.startswith(job_url(job).removesuffix("change/")) for url in urls)
        return [url.rstrip("/").rpartition("/")[2] for url in urls]

    assert offered() == ["run_now", "run_with", "pause", "duplicate", "backfill"]
    control.pause(job)
    assert offered() == [
        "run_now",
        "run_with",
        "resume",
        "change_pause",
        "duplicate",
        "backfill",
    ]


def test_job_edit_is_logged(admin_client: Client) -> None:
    job = make_job()
    assert fill_in(admin_client, job_url(job), schedule="0 5 * * *").status_code == 302

    assert _history(job) == [("admin", AuditAction.CHANGE)]
