"""Test the buttons and the list actions of jobs and runs, with their messages and history."""

import html
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from django_dcron import control
from django_dcron.admin.jobs.admin import VERBS as JOB_VERBS
from django_dcron.admin.runs.admin import VERBS as RUN_VERBS
from django_dcron.jobs import audit_messages, change_history, pausing
from django_dcron.models import Job, Run
from tests.admin.conftest import (
    errors,
    fill_in,
    job_url,
    list_url,
    make_job,
    make_run,
    messages,
    run_url,
    verb_url,
)


def _press(client: Client, row: Job | Run, verb: str, **sent: str) -> Any:
    return client.post(verb_url(row, verb), sent, follow=True)


def _choose(client: Client, action: str, *rows: Job | Run, **typed: str) -> Any:
    url = list_url(str(rows[0]._meta.model_name))
    sent = {"action": action, "_selected_action": [row.pk for row in rows], "confirmed": "1"}
    return client.post(url, sent | typed, follow=True)


def _history(row: Job | Run) -> list[tuple[str, str]]:
    entries = LogEntry.objects.filter(object_id=str(row.pk)).order_by("pk")
    return [
        (entry.user.get_username(), change_history.read_change(entry).message) for entry in entries
    ]


def _refusal(row: Job | Run, verb: str) -> str:
    """Return the message that the verb doesn't apply to the row."""
    verbs: tuple[Any, ...] = (*JOB_VERBS, *RUN_VERBS)
    against = next(each for each in verbs if each.name == verb).against(row)
    assert against
    return escape(f"“{row}”: {against}")


def test_run_now_leads_to_the_new_run(admin_client: Client) -> None:
    job = make_job()

    response = _press(admin_client, job, "run_now")

    run = Run.objects.get(job=job)
    assert run.trigger == "manual"
    assert response.redirect_chain[-1][0] == run_url(run)
    assert run_url(run) in messages(response)[0]
    assert _history(run) == [("admin", audit_messages.triggered(run))]
    assert _history(job) == []


# --- run with other arguments ---------------------------------------------------------------------


def _echo(**values: Any) -> Job:
    return make_job(target="tests.app.tasks.echo", args=[1], kwargs={"city": "Köln"}, **values)


def test_other_arguments_start_from_the_jobs_own(admin_client: Client) -> None:
    job = _echo()

    form = admin_client.get(verb_url(job, "run_with")).context["form"]

    assert (form["args"].value(), form["kwargs"].value()) == ("[1]", '{"city": "Köln"}')


def test_a_run_with_other_arguments(admin_client: Client) -> None:
    job = _echo()

    response = _press(admin_client, job, "run_with", args='["<b>", null]', kwargs="")

    run = Run.objects.get(job=job)
    assert (run.args, run.kwargs, run.trigger) == (["<b>", None], {}, "manual")
    assert response.redirect_chain[-1][0] == run_url(run)
    assert _history(run) == [("admin", audit_messages.triggered(run))]
    assert str(run.pk) in audit_messages.triggered(run)
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
def test_arguments_that_are_none_are_refused_beside_their_field(
    admin_client: Client, sent: dict[str, str], refused: list[str]
) -> None:
    response = admin_client.post(verb_url(_echo(), "run_with"), sent)

    assert (response.status_code, list(response.context["form"].errors)) == (200, refused)
    assert sent["args"] in html.unescape(response.content.decode())
    assert not Run.objects.exists()


def test_arguments_that_the_target_does_not_take_are_refused(admin_client: Client) -> None:
    job = make_job(target="tests.app.tasks.slow")

    response = admin_client.post(
        verb_url(job, "run_with"), {"args": "[]", "kwargs": '{"second": 1}'}
    )

    (text,) = response.context["form"].errors["kwargs"]
    assert "'second'" in text
    assert re.search(r"\bseconds\b", text)
    Job.objects.update(target="gone.task")
    response = admin_client.post(verb_url(job, "run_with"), {"args": "[]", "kwargs": ""})
    assert "gone.task" in response.context["form"].errors["__all__"][0]
    assert not Run.objects.exists()


# --- pause and resume -----------------------------------------------------------------------------


def test_pause_takes_a_reason_and_says_who(admin_client: Client) -> None:
    job = make_job()

    response = _press(admin_client, job, "pause", reason=" deploy <b> ")

    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (False, "deploy <b> (admin)")
    assert messages(response) == [f"“report”: {escape(audit_messages.paused(job))}"]
    assert "<b>" not in response.content.decode()
    assert _history(job) == [("admin", audit_messages.paused(job))]
    assert "deploy <b> (admin)" in audit_messages.paused(job)


def test_pause_without_a_reason_says_who(admin_client: Client) -> None:
    job = make_job()
    _press(admin_client, job, "pause")

    job.refresh_from_db()
    assert job.pause_reason == "by admin"


def test_pause_takes_an_end_in_the_sites_zone(admin_client: Client) -> None:
    job = make_job()

    with timezone.override("Europe/Berlin"):
        response = _press(admin_client, job, "pause", reason="deploy", until="2090-01-01 09:00")

    job.refresh_from_db()
    assert (job.enabled, job.paused_until) == (False, datetime(2090, 1, 1, 8, tzinfo=UTC))
    with timezone.override("Europe/Berlin"):
        output = audit_messages.paused(job)
    assert "2090-01-01 09:00:00 CET" in output
    assert messages(response) == [f"“report”: {output}"]
    assert _history(job) == [("admin", output)]
    listed = admin_client.get(list_url("job")).content.decode()
    assert "deploy (admin)" in listed
    assert "2090-01-01 08:00:00 UTC" in listed
    assert "2090-01-01 08:00:00" in admin_client.get(job_url(job)).content.decode()


def test_an_end_that_is_not_ahead_is_refused_beside_its_field(admin_client: Client) -> None:
    job = make_job()

    response = admin_client.post(
        verb_url(job, "pause"), {"reason": "deploy", "until": "2026-01-01"}
    )

    assert response.status_code == 200
    (error,) = response.context["form"].errors.as_data()["until"]
    assert (error.code, error.params) == ("passed", {"until": "2026-01-01 00:00:00 UTC"})
    page = response.content.decode()
    assert 'value="deploy"' in page
    assert 'value="2026-01-01"' in page
    assert Job.objects.get(pk=job.pk).enabled
    assert _history(job) == []


def test_what_has_passed_meanwhile_is_refused_too(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    monkeypatch.setattr(pausing, "database_now", lambda using: datetime(2095, 1, 1, tzinfo=UTC))

    response = _press(admin_client, job, "pause", until="2090-01-01")

    assert "2090-01-01" in messages(response)[0]
    assert Job.objects.get(pk=job.pk).enabled


def test_several_are_paused_until_the_same_time(admin_client: Client) -> None:
    jobs = [make_job(f"job {number}") for number in range(2)]
    url = list_url("job")
    chosen = {"action": "pause", "_selected_action": [job.pk for job in jobs], "confirmed": "1"}

    admin_client.post(url, {**chosen, "until": "2090-01-01", "reason": "deploy"})

    assert set(Job.objects.values_list("enabled", "paused_until", "pause_reason")) == {
        (False, datetime(2090, 1, 1, tzinfo=UTC), "deploy (admin)")
    }


def test_the_form_of_the_job_knows_of_the_end_of_a_pause(admin_client: Client) -> None:
    job = control.pause(make_job(), "deploy", datetime(2090, 1, 1, tzinfo=UTC))
    until = {"paused_until_0": "2020-01-01", "paused_until_1": "12:00:00"}

    response = fill_in(admin_client, job_url(job), **until)
    assert list(errors(response)) == ["paused_until"]
    assert fill_in(admin_client, job_url(job), **until, enabled="on").status_code == 302

    job.refresh_from_db()
    assert (job.enabled, job.paused_until) == (True, None)


def test_resume(admin_client: Client) -> None:
    job = make_job()
    control.pause(job, "deploy", datetime(2090, 1, 1, tzinfo=UTC))

    _press(admin_client, job, "resume")

    job.refresh_from_db()
    assert (job.enabled, job.pause_reason, job.paused_until) == (True, "", None)
    assert _history(job) == [("admin", audit_messages.resumed())]


@pytest.mark.parametrize("way", ["button", "action"])
def test_a_pause_is_not_replaced_by_another(admin_client: Client, way: str) -> None:
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


@pytest.mark.parametrize("way", [_press, lambda client, row, verb: _choose(client, verb, row)])
def test_what_is_not_paused_is_not_resumed(admin_client: Client, way: Any) -> None:
    job = make_job()

    assert messages(way(admin_client, job, "resume")) == [_refusal(job, "resume")]
    assert _history(job) == []


def test_a_row_is_taken_as_it_is_when_its_turn_comes(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = make_job("a"), make_job("b")

    def and_somebody_else_the_last(job: Job, reason: str, until: datetime | None) -> Job:
        pausing.pause(Job.objects.get(pk=last.pk), "incident 17")
        return pausing.pause(job, reason, until)

    monkeypatch.setattr(control, "pause", and_somebody_else_the_last)
    response = _choose(admin_client, "pause", first, last, until="1h")

    last.refresh_from_db()
    assert messages(response)[1] == _refusal(last, "pause")
    assert last.pause_reason == "incident 17"


def test_a_pause_is_changed(admin_client: Client) -> None:
    job = control.pause(make_job(), "incident 17", datetime(2090, 1, 1, tzinfo=UTC))
    with timezone.override("Europe/Berlin"):
        form = admin_client.get(verb_url(job, "change_pause")).context["form"]
    shown = {bound.name: bound.value() or "" for bound in form}
    assert shown == {"reason": "", "until": "2090-01-01 01:00:00+01:00"}
    assert "incident 17" in form["reason"].help_text

    _press(admin_client, job, "change_pause", **shown)
    job.refresh_from_db()
    assert (job.pause_reason, job.paused_until) == ("incident 17", datetime(2090, 1, 1, tzinfo=UTC))

    _press(admin_client, job, "change_pause", reason="incident 18", until="")
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason, job.paused_until) == (False, "incident 18 (admin)", None)
    assert _history(job)[-1] == ("admin", audit_messages.paused(job))


def test_only_a_pause_is_changed(admin_client: Client) -> None:
    job = make_job()

    response = _press(admin_client, job, "change_pause", until="1h")

    assert messages(response) == [_refusal(job, "change_pause")]
    assert Job.objects.get(pk=job.pk).enabled


def test_a_verb_that_refuses_says_why(admin_client: Client) -> None:
    job = make_job(schedule="@at 2020-01-01T00:00", enabled=False)

    response = _press(admin_client, job, "resume")

    assert response.context["messages"]._loaded_data[0].level_tag == "error"
    assert messages(response)[0].startswith("“report”: ")
    assert _history(job) == []


def test_duplicate_makes_a_paused_copy(admin_client: Client) -> None:
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
    assert ("report" in copy.pause_reason, copy.paused_until) == (True, None)
    assert copy.cursor.next_at is None


def test_copies_of_copies_find_a_free_name(admin_client: Client) -> None:
    job = make_job("x" * 120)
    for _ in range(3):
        _press(admin_client, job, "duplicate")

    assert set(Job.objects.values_list("name", flat=True)) == {
        "x" * 120,
        "x" * 115 + " copy",
        "x" * 113 + " copy 2",
        "x" * 113 + " copy 3",
    }


def test_a_job_that_is_no_longer_valid_is_not_duplicated(admin_client: Client) -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(target="gone.task")

    response = _press(admin_client, job, "duplicate")

    assert "gone.task" in messages(response)[0]
    assert Job.objects.count() == 1


def test_actions_do_what_they_can_and_report_the_rest(admin_client: Client) -> None:
    good, over = (
        make_job("good", enabled=False),
        make_job("over", schedule="@at 2020-01-01T00:00", enabled=False),
    )

    response = _choose(admin_client, "resume", good, over)

    messages_shown = messages(response)
    assert messages_shown[0] == f"“good”: {audit_messages.resumed()}"
    assert messages_shown[1].startswith("“over”: ")
    assert set(Job.objects.filter(enabled=True)) == {good}


@pytest.mark.parametrize("action", ["run_now", "pause", "resume", "duplicate"])
def test_each_action_serves_many(admin_client: Client, action: str) -> None:
    jobs = [make_job(f"job {number}", enabled=action != "resume") for number in range(12)]

    response = _choose(admin_client, action, *jobs)

    *listed, rest = messages(response)[0].split("<br>")
    assert len(listed) == 10
    assert re.findall(r"\d+", rest) == ["2"]
    assert LogEntry.objects.count() == 12


def test_an_action_has_an_end(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_dcron.admin.actions.MOST_AT_ONCE", 2)
    jobs = [make_job(f"job {number}") for number in range(3)]

    response = _choose(admin_client, "pause", *jobs)

    warning, _done = messages(response)
    assert re.findall(r"\d+", warning) == ["2"]
    assert Job.objects.filter(enabled=False).count() == 2


def test_cancel(admin_client: Client) -> None:
    run = make_run(make_job())

    response = _press(admin_client, run, "cancel", reason="wrong data")

    run.refresh_from_db()
    assert run.state == "cancelled"
    assert "wrong data (admin)" in run.reason
    assert response.redirect_chain[-1][0] == run_url(run)
    assert _history(run) == [("admin", audit_messages.cancelled(run))]


def test_cancelling_what_has_ended_is_refused_in_words(admin_client: Client) -> None:
    job = make_job()
    ended, pending = make_run(job, state="succeeded"), make_run(make_job("other"))

    response = _choose(admin_client, "cancel", ended, pending)

    assert len(messages(response)) == 2
    assert html.unescape(messages(response)[1]) == _refusal(ended, "cancel")


def test_run_again(admin_client: Client) -> None:
    run = make_run(make_job(), state="failed")

    response = _press(admin_client, run, "rerun")

    again = Run.objects.get(rerun_of=run)
    assert response.redirect_chain[-1][0] == run_url(again)
    assert run_url(run) in response.content.decode()
    assert run_url(again) in admin_client.get(run_url(run)).content.decode()


def test_a_get_changes_nothing(admin_client: Client) -> None:
    job = make_job()

    assert admin_client.get(verb_url(job, "run_now")).status_code == 405
    assert admin_client.put(verb_url(job, "pause")).status_code == 405
    asked = admin_client.get(verb_url(job, "pause"))
    assert (asked.status_code, list(asked.context["form"].fields)) == (200, ["reason", "until"])
    assert Job.objects.get(pk=job.pk).enabled
    assert not Run.objects.exists()


def test_a_forged_post_is_refused(admin_user: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    job = make_job()

    assert client.post(verb_url(job, "pause")).status_code == 403
    assert Job.objects.get(pk=job.pk).enabled


def test_unknown_verbs_and_rows_are_not_found(admin_client: Client) -> None:
    job = make_job()
    url = verb_url(job, "pause")

    assert admin_client.post(verb_url(job, "explode")).status_code == 404
    job.delete()
    assert admin_client.post(url).status_code == 404


def test_the_buttons_fit_the_state(admin_client: Client) -> None:
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


def test_editing_is_in_the_history_too(admin_client: Client) -> None:
    job = make_job()
    assert fill_in(admin_client, job_url(job), schedule="0 5 * * *").status_code == 302

    assert "Schedule" in str(LogEntry.objects.get(object_id=str(job.pk)))
