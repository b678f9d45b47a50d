"""Test the admin of incidents: list, page, states, and the rerun of all failed runs."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db.models import F
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from django_dcron import control
from django_dcron.admin import RunAdmin
from django_dcron.admin.incidents import rerun_page
from django_dcron.admin.incidents.trend import render_trend
from django_dcron.db.now import database_now
from django_dcron.jobs import queued_reruns
from django_dcron.jobs.attempt_end import end_attempt
from django_dcron.jobs.pausing import AUTO_PAUSED
from django_dcron.models import Attempt, AuditEntry, Cursor, Incident, Job, Run
from django_dcron.policies.health.facts import FAILURES_UNTIL_WARNING
from django_dcron.policies.incidents import extended_trend
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.runs import endings
from django_dcron.runs.completion import Ending
from django_dcron.runs.incidents import group_failed_attempts
from tests.admin.conftest import StaffWith, job_url, list_url, run_url
from tests.factories import make_idle_job, make_node, make_run

pytestmark = pytest.mark.django_db

TRACEBACK = "Traceback (most recent call last): secret-line"


def fail(job: Job, message: str = "no", **run: Any) -> Run:
    made = make_run(job, "running", **run)
    ending = Ending(
        Outcome.FAILED, exception_class="shop.Refused", message=message, traceback=TRACEBACK
    )
    assert end_attempt(made, 1, ending)
    return made


def make_incident(job: Job | None = None, runs: int = 1) -> Incident:
    job = job or make_idle_job()
    for _ in range(runs):
        fail(job)
    group_failed_attempts()
    return Incident.objects.get(job=job)


def page_url(incident: Incident) -> str:
    return reverse("admin:django_dcron_incident_change", args=[incident.pk])


def rerun_url(incident: Incident) -> str:
    return reverse("admin:django_dcron_incident_rerun", args=[incident.pk])


def action_url(incident: Incident, name: str) -> str:
    return reverse("admin:django_dcron_incident_action", args=[incident.pk, name])


def text_of(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


def rerun_all(client: Client, incident: Incident) -> Any:
    """Submit the page, and its form again until all batches are done, as a browser does."""
    response: Any = client.get(rerun_url(incident))
    while response.status_code == 200:
        response = client.post(rerun_url(incident), response.context["numbers"])
    return response


def reruns() -> list[Run]:
    return list(Run.objects.exclude(rerun_of=None).order_by("slot_number"))


def test_list_links_to_the_page_and_shows_state_and_trend(admin_client: Client) -> None:
    incident = make_incident(runs=3)
    page = text_of(admin_client, list_url("incident"))
    assert page_url(incident) in page
    assert "Refused" in page
    assert str(incident.job) in page
    assert 'class="dcron-trend"' in page
    assert ">Failed attempts<" in page
    assert "3 failed attempts" in text_of(admin_client, page_url(incident))


@pytest.mark.parametrize(
    ("hours", "steps", "period"),
    [(1, 24, "24 h"), (24, 14, "14 days"), (1, 12, "12 h"), (12, 3, "36 h"), (1, 1, "1 h")],
)
def test_trend_names_its_period(hours: int, steps: int, period: str) -> None:
    now = database_now("default")
    trend = extended_trend([], [now, now, now])
    assert f"<title>3 failed attempts in {period}</title>" in render_trend(trend, now, hours, steps)


def test_list_costs_the_same_for_any_number_of_incidents(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(20):
        fail(make_idle_job())
    group_failed_attempts()
    admin_client.get(list_url("incident"))
    with django_assert_max_num_queries(15):
        admin_client.get(list_url("incident"))


def test_open_and_acknowledged_incidents_are_one_click_away(admin_client: Client) -> None:
    incident, muted = make_incident(), make_incident()
    control.set_incident_state(muted, "muted")  # type: ignore[arg-type]
    links = admin_client.get(list_url("incident")).context["quick_links"]
    queries = {str(label): query for label, query, _selected in links}
    page = text_of(admin_client, f"{list_url('incident')}?{queries['Open or acknowledged']}")
    assert page_url(incident) in page
    assert page_url(muted) not in page


def test_page_shows_the_latest_traceback_and_links_to_job_and_run(admin_client: Client) -> None:
    incident = make_incident(runs=2)
    assert incident.last_run is not None
    page = text_of(admin_client, page_url(incident))
    assert "secret-line" in page
    assert job_url(incident.job) in page
    assert run_url(Run.objects.get(pk=incident.last_run)) in page
    for name in ("acknowledge", "mute", "resolve"):
        assert action_url(incident, name) in page
    assert action_url(incident, "reopen") not in page
    assert rerun_url(incident) in page
    assert reverse("admin:django_dcron_job_action", args=[incident.job_id, "pause"]) in page


ALL_VIEWS = ("view_job", "view_run", "view_attempt", "view_dashboard")


def test_failures_on_other_pages_link_to_their_incident(staff_with: StaffWith) -> None:
    incident = make_incident(runs=2)
    job, failed = incident.job, Run.objects.get(pk=incident.last_run)
    client = staff_with(*ALL_VIEWS, "view_incident")
    pages = (reverse("admin:django_dcron_dashboard_changelist"), job_url(job), run_url(failed))
    for url in pages:
        assert f'href="{page_url(incident)}"' in text_of(client, url), url
    assert run_url(failed) in text_of(client, job_url(job))
    assert "2 failed attempts" in text_of(client, job_url(job))

    client = staff_with(*ALL_VIEWS)
    for url in pages:
        assert "/incident/" not in text_of(client, url), url
    assert "data-dcron-last-failure" in text_of(client, job_url(job))


def test_failure_is_shown_before_a_node_has_grouped_it(admin_client: Client) -> None:
    incident = make_incident()
    failed = fail(incident.job, "new")
    for url in (job_url(incident.job), run_url(failed)):
        page = text_of(admin_client, url)
        assert page_url(incident) not in page
    assert f'href="{run_url(failed)}"' in text_of(admin_client, job_url(incident.job))


def test_job_without_failures_has_no_last_failure(admin_client: Client) -> None:
    assert "data-dcron-last-failure" not in text_of(admin_client, job_url(make_idle_job()))


def test_page_of_an_incident_without_an_attempt_is_shown(admin_client: Client) -> None:
    incident = make_incident()
    Attempt.objects.all().delete()
    Run.objects.all().delete()
    assert "Refused" in text_of(admin_client, page_url(incident))


def test_texts_of_attempts_need_the_permission_to_view_them(staff_with: StaffWith) -> None:
    incident = make_incident()
    page = text_of(staff_with("view_incident", "view_run", "view_job"), page_url(incident))
    assert "secret-line" not in page
    assert rerun_url(incident) not in page
    assert action_url(incident, "mute") not in page


@pytest.mark.parametrize(
    ("name", "state"),
    [("acknowledge", "acknowledged"), ("mute", "muted"), ("resolve", "resolved")],
)
def test_action_sets_the_state_with_user_and_note(
    admin_client: Client, admin_user: User, name: str, state: str
) -> None:
    incident = make_incident()
    response = admin_client.post(action_url(incident, name), {"reason": "known"})
    assert response.status_code == 302
    assert response["Location"] == page_url(incident)
    incident.refresh_from_db()
    expected = (state, admin_user.get_username(), "known")
    assert (incident.state, incident.changed_by, incident.note) == expected
    entry = AuditEntry.objects.get(kind="incident", object_id=str(incident.pk))
    assert (entry.actor, entry.reason, entry.job_id) == (
        admin_user.get_username(),
        "known",
        incident.job_id,
    )
    assert (entry.before, entry.after) == ({"state": "open"}, {"state": state})


def test_many_incidents_are_muted_in_the_list(admin_client: Client) -> None:
    incidents = [make_incident() for _ in range(2)]
    chosen = {"_selected_action": [str(each.pk) for each in incidents], "action": "mute"}
    assert admin_client.post(list_url("incident"), chosen).status_code == 200
    admin_client.post(list_url("incident"), {**chosen, "confirmed": "yes", "reason": "known"})
    assert set(Incident.objects.values_list("state", flat=True)) == {"muted"}


def test_rerun_of_all_creates_one_run_for_each_failed_run_in_batches(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued_reruns, "RERUN_AT_ONCE", 2)
    monkeypatch.setattr(rerun_page, "BUDGET", 0)
    incident = make_incident(runs=5)
    failed = list(Run.objects.order_by("scheduled_at"))
    page = admin_client.get(rerun_url(incident))
    assert page.context["numbers"]["total"] == 5
    assert reruns() == []
    assert rerun_all(admin_client, incident)["Location"] == page_url(incident)
    runs = reruns()
    assert [run.rerun_of_id for run in runs] == [run.pk for run in failed]
    assert {(run.state, run.trigger, run.slot) for run in runs} == {
        ("waiting", "backfill", "backfill")
    }
    assert all(run.scheduled_at.microsecond for run in runs)
    entries = AuditEntry.objects.filter(kind="incident", action="rerun")
    assert [entry.after["runs"] for entry in entries.order_by("pk")] == [2, 2, 1]


def test_page_of_the_rerun_counts_only_failed_runs(admin_client: Client) -> None:
    incident = make_incident(runs=4)
    succeeded, retried, *failed = Run.objects.order_by("scheduled_at")
    Run.objects.filter(pk=succeeded.pk).update(state="succeeded", attempt=2)
    Run.objects.filter(pk=retried.pk).update(attempt=2)
    page = admin_client.get(rerun_url(incident))
    assert (page.context["runs"], page.context["numbers"]["total"]) == (2, 4)
    rerun_all(admin_client, incident)
    assert {run.rerun_of_id for run in reruns()} == {run.pk for run in failed}


@pytest.mark.parametrize("target", ["shop.tasks.gone", "shadow:tests.app.tasks.ok"])
def test_page_of_the_rerun_warns_of_the_target(admin_client: Client, target: str) -> None:
    incident = make_incident()
    assert "data-dcron-caution" not in text_of(admin_client, rerun_url(incident))
    Job.objects.update(target=target)
    page = text_of(admin_client, rerun_url(incident))
    assert target.removeprefix("shadow:") in page.split("data-dcron-caution")[1]


def test_page_of_the_rerun_warns_of_a_freeze_and_of_a_missing_node(admin_client: Client) -> None:
    incident = make_incident()
    assert "data-dcron-no-node" in text_of(admin_client, rerun_url(incident))
    make_node()
    control.freeze("stocktaking")
    page = text_of(admin_client, rerun_url(incident))
    assert ("stocktaking" in page, "data-dcron-no-node" in page) == (True, False)


def test_page_counts_the_reruns_and_links_to_them(admin_client: Client) -> None:
    incident = make_incident(runs=3)
    assert "Reruns of these failures" not in text_of(admin_client, page_url(incident))
    rerun_all(admin_client, incident)
    first, *_others = Run.objects.filter(rerun_of__isnull=False)
    Run.objects.filter(pk=first.pk).update(state="succeeded", finished_at=first.due_at)
    page = text_of(admin_client, page_url(incident))
    reruns = page[page.index("Reruns of these failures") :].split("</div>")[0]
    assert re.findall(r"(\d+) <span[^>]*>([^<]*)<", reruns) == [
        ("2", "Waiting"),
        ("1", "Succeeded"),
    ]
    link = re.search(r'href="([^"]+)"', reruns)
    assert link
    listed = text_of(admin_client, link[1].replace("&amp;", "&"))
    assert run_url(first) in listed


def test_failures_of_runs_that_succeeded_are_not_counted_as_failed_runs(
    admin_client: Client,
) -> None:
    incident = make_incident()
    control.rerun(Run.objects.get())
    Run.objects.filter(rerun_of=None).update(state="succeeded")
    assert "Reruns of these failures" not in text_of(admin_client, page_url(incident))


def test_rerun_that_is_rerun_still_counts(admin_client: Client) -> None:
    incident = make_incident()
    rerun = control.rerun(Run.objects.get())
    failed = Attempt.objects.get(incident=incident.pk)
    Attempt.objects.create(
        run=rerun,
        number=1,
        token=uuid4(),
        worker="w",
        started_at=failed.started_at,
        finished_at=failed.finished_at,
        outcome="failed",
        incident=incident.pk,
    )
    page = text_of(admin_client, page_url(incident))
    reruns = page.split("Reruns of these failures")[1].split("</div>")[0]
    assert re.findall(r"(\d+) <span", reruns) == ["1"]


def test_reruns_count_for_the_incident_whose_failure_they_follow(admin_client: Client) -> None:
    incident = make_incident()
    original = Run.objects.get()
    second = control.rerun(original)
    failed = {"state": "failed", "finished_at": second.due_at}
    Run.objects.filter(pk=second.pk).update(**failed)
    other = make_incident()
    Attempt.objects.filter(incident=other.pk).update(run=second.pk)
    assert "Reruns of these failures" not in text_of(admin_client, page_url(other))
    third = control.rerun(Run.objects.get(pk=second.pk))
    assert third.rerun_of == original
    counted = r"(\d+) <span[^>]*>(Pending|Failed)<"
    page = text_of(admin_client, page_url(other))
    assert re.findall(counted, page.split("Reruns of these failures")[1]) == [("1", "Pending")]
    page = text_of(admin_client, page_url(incident))
    assert len(re.findall(counted, page.split("Reruns of these failures")[1])) == 2


def test_repeated_request_creates_no_second_run(admin_client: Client) -> None:
    incident = make_incident(runs=3)
    for _ in range(2):
        rerun_all(admin_client, incident)
    assert len(reruns()) == 3


def test_rerun_that_failed_again_can_be_rerun(admin_client: Client) -> None:
    incident = make_incident()
    original = Run.objects.get()
    rerun_all(admin_client, incident)
    (again,) = reruns()
    Run.objects.filter(pk=again.pk).update(state=State.RUNNING, slot=None, slot_number=0)
    Attempt.objects.create(
        run=again, number=1, token=again.pk, worker="w", started_at=original.due_at
    )
    again.refresh_from_db()
    assert end_attempt(
        again, 1, Ending(Outcome.FAILED, exception_class="shop.Refused", message="no")
    )
    group_failed_attempts()
    rerun_all(admin_client, incident)
    runs = reruns()
    assert len(runs) == 2
    assert {run.rerun_of_id for run in runs} == {original.pk}


def test_run_with_a_key_of_a_fast_clock_is_rerun_once(admin_client: Client) -> None:
    job = make_idle_job()
    fail(job, id=UUID("f" * 32))
    incident = make_incident(job, runs=0)
    for _ in range(2):
        rerun_all(admin_client, incident)
    assert len(reruns()) == 1


def test_runs_protected_by_object_permissions_are_not_rerun(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident = make_incident(runs=2)
    allowed = Run.objects.latest("pk")
    monkeypatch.setattr(
        RunAdmin,
        "has_rerun_permission",
        lambda self, request, obj=None: obj is None or obj.pk == allowed.pk,
    )
    rerun_all(admin_client, incident)
    assert [run.rerun_of_id for run in reruns()] == [allowed.pk]


def test_incident_whose_latest_run_is_hidden_is_hidden(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, shown = make_incident(), make_incident()
    visible = Run.objects.filter(job=shown.job_id)
    monkeypatch.setattr(RunAdmin, "get_queryset", lambda self, request: visible)
    listed = admin_client.get(reverse("admin:django_dcron_incident_changelist"))
    assert [each.pk for each in listed.context["cl"].result_list] == [shown.pk]
    assert admin_client.get(page_url(hidden)).status_code == 302
    visible.delete()
    assert admin_client.get(page_url(shown)).status_code == 200


def test_new_failures_during_the_rerun_do_not_extend_it(admin_client: Client) -> None:
    incident = make_incident()
    numbers = admin_client.get(rerun_url(incident)).context["numbers"]
    fail(incident.job)
    group_failed_attempts()
    admin_client.post(rerun_url(incident), numbers)
    assert len(reruns()) == 1


def test_other_runs_are_not_rerun(admin_client: Client) -> None:
    incident = make_incident(make_idle_job(max_attempts=2))
    assert Run.objects.get().state == State.PENDING
    succeeded = make_run(incident.job, "running")
    assert end_attempt(succeeded, 1, Ending(Outcome.SUCCEEDED))
    rerun_all(admin_client, incident)
    assert reruns() == []


def test_runs_with_other_arguments_need_the_permission_for_them(staff_with: StaffWith) -> None:
    job = make_idle_job()
    fail(job, args=[1])
    plain = fail(job)
    incident = make_incident(job, runs=0)
    client = staff_with("view_incident", "view_run", "rerun_run")
    assert client.get(rerun_url(incident)).context["runs"] == 1
    rerun_all(client, incident)
    assert [run.rerun_of_id for run in reruns()] == [plain.pk]
    client = staff_with("view_incident", "view_run", "rerun_run", "run_job_with_arguments")
    assert client.get(rerun_url(incident)).context["runs"] == 2
    rerun_all(client, incident)
    assert sorted(run.args or [] for run in reruns()) == [[], [1]]


def test_run_that_failed_without_an_attempt_is_rerun(admin_client: Client) -> None:
    run = make_run(make_idle_job(), "pending")
    assert endings.end_unstarted(run, State.FAILED, "UnknownTarget: gone")
    page = admin_client.get(rerun_url(Incident.objects.get()))
    assert page.context["runs"] == 1
    assert "0 failed attempts" not in page.content.decode()
    for _ in range(2):
        rerun_all(admin_client, Incident.objects.get())
    assert [each.rerun_of_id for each in reruns()] == [run.pk]


def test_failed_runs_in_the_same_second_get_distinct_slot_numbers(admin_client: Client) -> None:
    incident = make_incident(runs=4)
    second = Run.objects.order_by("scheduled_at").values_list("scheduled_at", flat=True)[0]
    for number, run in enumerate(Run.objects.order_by("scheduled_at")):
        at = second.replace(microsecond=999_990) + number * timedelta(microseconds=1)
        Run.objects.filter(pk=run.pk).update(scheduled_at=at)
    Run.objects.update(due_at=F("scheduled_at"))
    rerun_all(admin_client, incident)
    assert len({run.slot_number for run in reruns()}) == 4


def test_runs_are_rerun_oldest_first_if_an_earlier_batch_uses_their_seconds(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued_reruns, "RERUN_AT_ONCE", 2)
    incident = make_incident(runs=4)
    failed = list(Run.objects.order_by("scheduled_at"))
    second = failed[0].scheduled_at.replace(microsecond=0)
    for number, run in enumerate(failed):
        at = second + timedelta(seconds=number // 2, microseconds=number + 1)
        Run.objects.filter(pk=run.pk).update(scheduled_at=at, due_at=at)
    rerun_all(admin_client, incident)
    assert [run.rerun_of_id for run in reruns()] == [run.pk for run in failed]


@pytest.mark.parametrize("number", ["x", "-1", "9" * 30, "1" * 19, "²"])
def test_invalid_numbers_redirect_instead_of_failing(admin_client: Client, number: str) -> None:
    sent = dict.fromkeys(rerun_page.NUMBERS, number)
    assert admin_client.post(rerun_url(make_incident()), sent).status_code == 302


@pytest.mark.parametrize("name", ["admin:index", "admin:django_dcron_dashboard_changelist"])
def test_health_line_links_to_the_incident_behind_the_problem(
    admin_client: Client, staff_with: StaffWith, name: str
) -> None:
    incident = make_incident(runs=FAILURES_UNTIL_WARNING)
    Job.objects.update(enabled=False, pause_reason=AUTO_PAUSED)  # nothing needs a node
    link = f'<a href="{page_url(incident)}">'

    assert link in text_of(admin_client, reverse(name))
    staff = staff_with("view_dashboard", "view_job", "view_run")
    assert link not in text_of(staff, reverse(name))

    Incident.objects.update(state="resolved")
    assert link not in text_of(admin_client, reverse("admin:index"))


def test_health_line_without_problems_links_to_the_last_failure(
    admin_client: Client, staff_with: StaffWith
) -> None:
    incident = make_incident(runs=1)
    make_node()
    Cursor.objects.update(next_at=database_now("default") + timedelta(minutes=30))
    url = reverse("admin:django_dcron_dashboard_changelist")

    (line,) = admin_client.get(url).context["health"]
    assert line.kind == "ok"
    assert str(incident.job) in line.summary
    assert line.cause.url == page_url(incident)
    (line,) = staff_with("view_dashboard").get(url).context["health"]
    assert str(incident.job) not in line.summary
    assert line.cause is line.rows is None
