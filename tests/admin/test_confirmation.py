"""Test the confirmation of list actions: the preview, the action and the report of its results."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils.html import escape

from django_dcron.admin.lists import confirmation
from django_dcron.db.now import database_now
from django_dcron.jobs.action_texts import resumed_text
from django_dcron.models import Job, Run
from tests.admin.conftest import NOON, StaffWith, list_url, make_job, make_run, messages, run_url
from tests.factories import entries_by_users


def _ask(client: Client, action: str, *rows: Job | Run, query: str = "", **sent: Any) -> Any:
    chosen = {"action": action, "_selected_action": [row.pk for row in rows], "index": 0}
    return client.post(f"{list_url(str(rows[0]._meta.model_name))}?{query}", chosen | sent)


def _form_data(page: Any) -> dict[str, Any]:
    """Return the data that the confirmation form would submit."""
    context = page.context
    return {
        "action": context["action"].name,
        context["checkbox_name"]: context["keys"],
        context["confirmed_name"]: "yes",
        context["filters_name"]: context["filters"],
    }


def _confirm(client: Client, page: Any, **typed: str) -> Any:
    return client.post(page.context["path"], _form_data(page) | typed, follow=True)


@pytest.mark.parametrize("action", ["run_now", "pause", "resume", "duplicate"])
def test_job_action_shows_confirmation_without_changes(admin_client: Client, action: str) -> None:
    paused = make_job("other", enabled=False)

    page = _ask(admin_client, action, make_job(), paused)

    assert page.status_code == 200
    explanation = str(page.context["action"].explanation)
    assert explanation
    assert explanation in page.content.decode()
    assert (
        Job.objects.filter(enabled=True).count(),
        Run.objects.count(),
        entries_by_users().count(),
    ) == (
        1,
        0,
        0,
    )


@pytest.mark.parametrize(("action", "state"), [("cancel", "pending"), ("rerun", "failed")])
def test_run_action_is_applied_after_confirmation(
    admin_client: Client, action: str, state: str
) -> None:
    job = make_job()
    runs = [make_run(job, NOON.replace(hour=hour), state=state) for hour in (1, 2)]

    page = _ask(admin_client, action, *runs)
    assert entries_by_users().count() == 0
    assert re.findall(r"\d+", page.context["title"]) == ["2"]
    assert f'value="{page.context["submit_label"]}"' in page.content.decode()
    shown = messages(_confirm(admin_client, page))

    assert entries_by_users().count() == 2
    assert len(shown) == 1
    assert shown[0].count("report at") == 2


def test_confirmation_lists_first_rows_and_counts_the_rest(admin_client: Client) -> None:
    jobs = [make_job(f"job {number:02}", enabled=number > 0) for number in range(25)]

    page = _ask(admin_client, "pause", *jobs)
    text = page.content.decode()

    assert "24" in page.context["title"]
    assert "job 20" in text
    assert "job 21" not in text
    (rest,) = re.findall(r'<li class="dcron-quiet">([^<]*)</li>', text)
    assert re.findall(r"\d+", rest) == ["4"]
    assert text.count("dcron-badge dcron-enabled") == 20
    assert "dcron-bound" not in text


def test_confirmation_excludes_inapplicable_rows_with_reason(admin_client: Client) -> None:
    paused, job = make_job("a", enabled=False), make_job("b")

    page = _ask(admin_client, "pause", paused, job)

    assert page.context["keys"] == [job.pk]
    text = page.content.decode()
    chosen, omitted = text.split('<ul class="dcron-chosen">')[1:]
    assert (">b</a>" in chosen, ">a</a>" in chosen) == (True, False)
    refusal = str(escape(page.context["action"].refusal(paused)))
    assert refusal
    assert omitted.index(">a</a>") < omitted.index(refusal)
    assert _ask(admin_client, "pause", job).content.decode().count("dcron-chosen") == 1


def test_cancel_confirmation_button_is_not_labeled_cancel(admin_client: Client) -> None:
    """Users would take it for the button that closes the dialog."""
    job = make_job()
    runs = [make_run(job, NOON.replace(hour=hour)) for hour in (1, 2)]
    page = _ask(admin_client, "cancel", *runs)
    action = page.context["action"]
    on_its_page = admin_client.get(run_url(runs[0])).content.decode()

    assert len({str(action.label), str(action.submit_label(1)), str(action.submit_label(2))}) == 3
    assert f'value="{action.submit_label(2)}"' in page.content.decode()
    assert f'form="dcron-do-cancel">{action.submit_label()}</button>' in on_its_page


def test_confirmation_has_no_button_if_no_row_applies(admin_client: Client) -> None:
    ended = make_run(make_job(), state="failed")

    page = _ask(admin_client, "cancel", ended)

    text = page.content.decode()
    assert str(escape(page.context["action"].refusal(ended))) in text
    assert 'type="submit" class="default"' not in text
    assert 'name="reason"' not in text


def test_confirmed_pause_uses_submitted_reason_and_end(admin_client: Client) -> None:
    jobs = [make_job("a"), make_job("b")]

    response = _confirm(
        admin_client, _ask(admin_client, "pause", *jobs), reason="deploy", until="2h"
    )

    assert len(messages(response)) == 1
    for job in Job.objects.all():
        assert (job.enabled, job.pause_reason) == (False, "deploy (admin)")
        assert job.paused_until is not None


def test_invalid_form_shows_confirmation_again(admin_client: Client) -> None:
    page = _ask(admin_client, "pause", make_job("a"), make_job("b"), query="q=a")

    again = _confirm(admin_client, page, reason="deploy", until="whenever")

    assert again.status_code == 200
    assert "whenever" in again.content.decode()
    assert 'value="deploy"' in again.content.decode()
    assert Job.objects.filter(enabled=True).count() == 2
    assert _confirm(admin_client, again, until="").redirect_chain[-1][0].endswith("?q=a")
    assert not Job.objects.get(name="a").enabled


def test_result_reports_both_successes_and_refusals(admin_client: Client) -> None:
    good = make_job("good", enabled=False)
    expired = make_job("expired", schedule="@at 2020-01-01T00:00", enabled=False)

    shown = messages(_confirm(admin_client, _ask(admin_client, "resume", good, expired)))

    assert shown[0] == f"“good”: {resumed_text(good)}"
    assert shown[1].startswith("“expired”: ")


def test_confirmed_action_applies_to_listed_rows_only(admin_client: Client) -> None:
    """The confirmation applies to the rows on the page, even if the filter matches others then."""
    job = make_job()
    failed = make_run(job, NOON, state="failed")
    query = "state__exact=failed"
    page = _ask(admin_client, "rerun", failed, query=query, select_across=1)
    make_run(job, NOON.replace(hour=13), state="failed")
    # the filter doesn't match it any more
    Run.objects.filter(pk=failed.pk).update(state="cancelled")

    response = _confirm(admin_client, page)

    assert [run.rerun_of_id for run in Run.objects.filter(trigger="rerun")] == [failed.pk]
    assert response.redirect_chain[-1][0] == f"{list_url('run')}?{query}"


def _hidden_fields(page: Any) -> dict[str, str]:
    """Return what the form submits if the user presses its button."""
    html = page.content.decode()
    form = html[html.index('<form method="post" action="/admin/django_dcron/') :]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))


def test_action_on_all_that_match_continues_until_all_are_done(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.admin.actions.MAX_ROWS", 2)
    jobs = [make_job(f"job {number}") for number in range(4)]
    make_job("other")

    page = _ask(admin_client, "pause", jobs[0], query="q=job", select_across=1)

    (bound,) = re.findall(r'<p class="dcron-bound">([^<]*)</p>', page.content.decode())
    assert re.findall(r"\d+", bound) == ["4", "2"]
    assert not Job.objects.filter(enabled=False).exists()
    later = make_job("job that is created later")
    shown: list[str] = []
    while page.status_code == 200 and len(shown) < 5:
        paused = Job.objects.filter(enabled=False)
        shown.append(f"{paused.count()}: {page.context['numbers'].get('all_done', '')}")
        page = admin_client.post(page.context["path"], _hidden_fields(page))
    assert shown == ["0: ", "2: 2"]
    assert {job.name for job in paused} == {f"job {number}" for number in range(4)}
    assert Job.objects.get(pk=later.pk).enabled
    assert page.url == f"{list_url('job')}?q=job"


@pytest.mark.parametrize("most", [2, 500])
def test_cancellation_of_all_that_match_omits_runs_scheduled_in_the_future(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Cancelling a backlog must not cancel a nightly job's next run, which was claimed ahead."""
    monkeypatch.setattr("django_dcron.admin.actions.MAX_ROWS", most)
    job, soon = make_job(), database_now("default") + timedelta(hours=1)
    backlog = [make_run(job, NOON.replace(hour=hour), state="queued") for hour in range(3)]
    ahead = make_run(job, soon)
    page = _ask(admin_client, "cancel", ahead, query="upcoming=shown", select_across=1)
    if most == 2:
        while page.status_code == 200:
            page = admin_client.post(page.context["path"], _hidden_fields(page))
    else:
        _confirm(admin_client, page)
    cancelled = Run.objects.filter(state="cancelled")
    assert {*cancelled.values_list("pk", flat=True)} == {run.pk for run in backlog}
    _confirm(admin_client, _ask(admin_client, "cancel", ahead, query="upcoming=shown"))
    ahead.refresh_from_db()
    assert ahead.state == "cancelled", "it was selected"


def test_confirmation_says_if_all_that_match_are_omitted(admin_client: Client) -> None:
    ahead = make_run(make_job(), database_now("default") + timedelta(hours=1))
    empty = "The action applies to none of the selected items."
    pages = [
        _ask(admin_client, "cancel", ahead, query="upcoming=shown", select_across=across)
        for across in (0, 1)
    ]
    assert [page.context["keys"] for page in pages] == [[ahead.pk], []]
    assert [empty in page.content.decode() for page in pages] == [False, True]
    assert 'type="submit" class="default"' not in pages[1].content.decode()
    how_to_cancel_it = str(escape(pages[1].context["action"].explanation))
    assert how_to_cancel_it
    assert how_to_cancel_it in pages[1].content.decode()


def test_all_failed_runs_that_match_are_rerun_once(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.admin.actions.MAX_ROWS", 2)
    job = make_job()
    failed = [make_run(job, NOON.replace(minute=n), state="failed") for n in range(5)]
    make_run(job, NOON.replace(minute=9), state="succeeded")

    page = _ask(admin_client, "rerun", failed[0], query="state__exact=failed", select_across=1)
    for _request in range(3):
        assert page.status_code == 200
        page = admin_client.post(page.context["path"], _hidden_fields(page))

    assert page.status_code == 302
    rerun = Run.objects.filter(trigger="rerun").values_list("rerun_of_id", flat=True)
    assert sorted(rerun) == sorted(run.pk for run in failed)
    invalid = {"action": "rerun", "_selected_action": "1", "select_across": "1"}
    url = f"{list_url('run')}?state__exact=failed"
    assert admin_client.post(url, {**invalid, "all_until": "x"}).status_code == 400


def _continue(client: Client, page: Any, **changed: str) -> Any:
    return client.post(page.context["path"], _hidden_fields(page) | changed)


def _pause_first_of_three_for_two_hours(client: Client) -> Any:
    """Return the page that continues with the other jobs."""
    jobs = [make_job(f"job {number}") for number in range(3)]
    page = _ask(client, "pause", jobs[0], query="q=job", select_across=1)
    return _continue(client, page, until="2h")


def test_action_on_all_reports_refusals_of_each_group_at_the_end(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.admin.actions.MAX_ROWS", 2)
    jobs = [make_job(f"job {number}", enabled=number > 1) for number in range(5)]

    page = _ask(admin_client, "pause", jobs[0], query="q=job", select_across=1)
    assert page.context["keys"], "the first jobs are refused, and the others aren't"
    for _request in range(3):
        page = _continue(admin_client, page)

    shown = messages(admin_client.get(page.url))
    assert "job 0" in shown[0]
    assert "job 1" in shown[0]
    assert re.findall(r"\d+", shown[-1]) == ["3", "5"]
    assert not Job.objects.filter(enabled=True).exists()


def test_all_groups_of_a_pause_end_at_the_same_time(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.admin.actions.MAX_ROWS", 1)
    page = _pause_first_of_three_for_two_hours(admin_client)
    while page.status_code == 200:
        page = _continue(admin_client, page)
    assert len({*Job.objects.values_list("paused_until", flat=True)}) == 1


def test_action_on_all_ends_if_its_form_becomes_invalid(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.admin.actions.MAX_ROWS", 1)
    page = _pause_first_of_three_for_two_hours(admin_client)
    ended = _continue(admin_client, page, until="2020-01-01T00:00Z")
    assert ended.status_code == 302
    assert Job.objects.filter(enabled=False).count() == 1


def test_row_deleted_before_confirmation_shows_warning(admin_client: Client) -> None:
    job = make_job()
    page = _ask(admin_client, "pause", job)
    job.delete()

    response = _confirm(admin_client, page)

    (warning,) = response.context["messages"]
    assert warning.level_tag == "warning"
    assert entries_by_users().count() == 0


def test_permission_is_checked_again_at_confirmation(staff_with: StaffWith) -> None:
    client = staff_with("view_job", "pause_job")
    page = _ask(client, "pause", make_job())
    assert page.status_code == 200
    user = User.objects.get()
    user.user_permissions.remove(Permission.objects.get(codename="pause_job"))

    _confirm(client, page)

    assert Job.objects.get().enabled


def test_confirmation_without_csrf_token_is_forbidden(
    admin_user: Any, admin_client: Client
) -> None:
    page = _ask(admin_client, "pause", make_job())
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)

    assert client.post(page.context["path"], _form_data(page)).status_code == 403
    assert Job.objects.get().enabled


def test_redirect_stays_on_own_list_if_filters_contain_url(admin_client: Client) -> None:
    page = _ask(admin_client, "pause", make_job())

    response = admin_client.post(
        list_url("job"), _form_data(page) | {confirmation.FILTERS: "//evil.example/"}
    )

    assert response.headers["Location"] == f"{list_url('job')}?//evil.example/"


def test_query_string_is_escaped(admin_client: Client) -> None:
    page = _ask(admin_client, "pause", make_job(), query="q=%3Cscript%3Ealert(1)")

    assert "<script>alert" not in page.content.decode()


def test_delete_action_uses_confirmation_of_django(admin_client: Client) -> None:
    page = _ask(admin_client, "delete_selected", make_job())

    assert "deletable_objects" in page.context
    assert Job.objects.count() == 1
