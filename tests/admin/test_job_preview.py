"""The preview as one types: it says what saving would say, and nothing is ever written."""

import json
import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_dcron import control
from django_dcron.models import Cursor, Job
from django_dcron.observability.lookahead import CROWD
from tests.admin.conftest import StaffWith, add_url, as_rendered, job_url, make_job

SIMPLE = {
    "name": "new",
    "target": "tests.app.tasks.ok",
    "schedule": "30 3 * * *",
    "timezone": "Europe/Berlin",
}
URL = "/admin/django_dcron/job/preview/"


def preview_url(job: Job | None = None) -> str:
    url = reverse("admin:django_dcron_job_preview")
    return f"{url}?job={job.pk}" if job else url


def typed(client: Client, job: Job | None = None, **changes: str) -> Any:
    """The answer to the form of the page with these fields typed over."""
    filled = as_rendered(client.get(job_url(job) if job else add_url()))
    response = client.post(preview_url(job), {**filled, **changes})
    assert response.status_code == 200
    return response


def errors(response: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for error in response.context["preview"].errors:
        found.setdefault(error.field, []).append(error.message)
    return found


def piece(response: Any, name: str) -> str:
    """The text of one piece of the answer."""
    start = response.content.decode().split(f'<div id="dcron-preview-{name}" hx-swap-oob="innerHTML">')[1]
    inner = re.split(r'<div id="dcron-preview-|\Z', start)[0]
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", inner).split()))


def cautions(response: Any) -> list[str]:
    return re.findall('data-dcron-caution="([a-z_]+)"', response.content.decode())


# --- who may ----------------------------------------------------------------------------------------------------------


def test_the_address_is_stable() -> None:
    assert preview_url() == URL


def test_strangers_are_sent_to_the_login(client: Client, db: None) -> None:
    response = client.post(URL, SIMPLE)

    assert response.status_code == 302
    assert "/login/" in response["Location"]


@pytest.mark.parametrize(
    ("permissions", "new", "stored"),
    [
        ((), 403, 403),
        (("view_job",), 403, 403),
        (("view_job", "delete_job", "trigger_job", "pause_job"), 403, 403),
        (("add_job",), 200, 403),
        (("change_job",), 200, 200),
    ],
)
def test_who_may_add_or_change(
    staff_with: StaffWith, permissions: tuple[str, ...], new: int, stored: int
) -> None:
    client, job = staff_with(*permissions), make_job()

    assert client.post(URL, SIMPLE).status_code == new
    assert client.post(preview_url(job), SIMPLE).status_code == stored


def test_only_a_post_with_its_token_is_answered(admin_client: Client, admin_user: Any) -> None:
    assert admin_client.get(URL).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    assert strict.post(URL, SIMPLE).status_code == 403


@pytest.mark.parametrize("job_id", ["0", "abc", "", "999999999999999999999"])
def test_a_job_that_is_not_there(admin_client: Client, job_id: str) -> None:
    assert admin_client.post(f"{URL}?job={job_id}", SIMPLE).status_code == 404


def test_the_page_has_it_for_those_who_may_type(staff_with: StaffWith) -> None:
    job = make_job()

    for client, url, there in [
        (staff_with("view_job"), job_url(job), False),
        (staff_with("change_job"), job_url(job), True),
        (staff_with("add_job"), add_url(), True),
    ]:
        page = client.get(url).content.decode()
        assert ('id="dcron-preview"' in page) == there
        assert (URL in page) == there


# --- nothing is written -----------------------------------------------------------------------------------------------


def test_nothing_is_saved(admin_client: Client) -> None:
    job = make_job()
    before = list(Job.objects.values()), list(Cursor.objects.values())

    typed(admin_client, **SIMPLE)
    typed(admin_client, job, schedule="1 1 * * *", name="other", enabled="")
    with CaptureQueriesContext(connection) as queries:
        admin_client.post(preview_url(job), SIMPLE)

    assert (list(Job.objects.values()), list(Cursor.objects.values())) == before
    assert all(query["sql"].lstrip("( ").upper().startswith("SELECT") for query in queries)


def test_the_number_of_queries(admin_client: Client, django_assert_max_num_queries: Any) -> None:
    """Session and user; the job; its name, which nobody else may have; the clock, the cursor, the crowd."""
    job = make_job()
    filled = as_rendered(admin_client.get(job_url(job)))

    with django_assert_max_num_queries(7):
        admin_client.post(preview_url(job), filled)
    with django_assert_max_num_queries(5):
        admin_client.post(preview_url(), SIMPLE)


# --- what it says -----------------------------------------------------------------------------------------------------


def test_words_and_ten_occurrences_in_two_zones_with_gaps(admin_client: Client) -> None:
    response = typed(admin_client, **SIMPLE | {"timezone": "Asia/Tokyo"})

    assert "At 03:30 (Asia/Tokyo)" in piece(response, "said")
    rows = response.context["preview"].rows
    assert [(row.time, row.utc_time) for row in rows] == [("03:30", "18:30")] * 10
    assert all(row.utc_day and row.utc_day != row.day for row in rows)
    assert [row.gap for row in rows] == ["", *["1d 0h"] * 9]
    assert "Asia/Tokyo UTC Gap" in piece(response, "occurrences")
    assert cautions(response) == []


def test_in_utc_one_column_is_enough(admin_client: Client) -> None:
    response = typed(admin_client, **SIMPLE | {"timezone": "UTC", "schedule": "*/5 * * * *"})

    assert piece(response, "occurrences").startswith("Next occurrences UTC Gap")
    assert "5m 00s" in piece(response, "occurrences")


def test_seconds_are_shown_where_there_are_some(admin_client: Client) -> None:
    rows = typed(admin_client, **SIMPLE | {"schedule": "*/20 * * * * *"}).context["preview"].rows

    assert {row.time[-3:] for row in rows} == {":00", ":20", ":40"}


def test_an_interval_counts_from_the_cursor_of_a_stored_job(admin_client: Client) -> None:
    job = make_job(schedule="@every 7m")
    response = typed(admin_client, job)

    assert response.context["preview"].ahead.occurrences[0].at == Cursor.objects.get(job=job).next_at
    assert "Counted from now" not in piece(response, "occurrences")
    assert "Counted from now" in piece(
        typed(admin_client, **SIMPLE | {"schedule": "@every 7m"}), "occurrences"
    )


def test_a_paused_job_is_previewed_as_if_it_were_not(admin_client: Client) -> None:
    job = make_job()
    control.pause(job)
    response = typed(admin_client, job)

    assert "It is paused" in piece(response, "said")
    assert len(response.context["preview"].rows) == 10


@pytest.mark.parametrize(
    ("fields", "caution"),
    [
        ({"schedule": "* * * * * *"}, "frequent"),
        ({"schedule": "30 2 * * *"}, "clock_change"),
        ({"schedule": "@at 2020-01-01T00:00", "enabled": "off"}, "never_fires"),
        ({"name": "", "schedule": "H 4 * * *"}, "unnamed"),
        ({"schedule": "0 0 1 1 *", "ends_at_0": "2099-01-01", "ends_at_1": "00:00"}, ""),
    ],
)
def test_cautions(admin_client: Client, fields: dict[str, str], caution: str) -> None:
    filled = {**as_rendered(admin_client.get(add_url())), **SIMPLE, **fields}
    if filled["enabled"] == "off":
        del filled["enabled"]

    assert set(cautions(admin_client.post(URL, filled))) == ({caution} if caution else set())


def test_a_near_end_is_told(admin_client: Client) -> None:
    ends = {"ends_at_0": "2099-01-01", "ends_at_1": "00:00", "schedule": "0 0 1 1 *"}
    starts = {"starts_at_0": "2090-06-01", "starts_at_1": "00:00"}

    assert "ends_soon" in cautions(typed(admin_client, **SIMPLE | ends | starts))


def test_a_crowded_minute_is_told(admin_client: Client) -> None:
    for number in range(CROWD):
        make_job(f"crowd-{number}", schedule="0 4 * * *", timezone="Europe/Berlin")
    response = typed(admin_client, **SIMPLE | {"schedule": "0 4 * * *"})

    assert "crowded_minute" in cautions(response)
    assert "“H 4 * * *”" in piece(response, "said")


def test_a_stored_schedule_that_is_broken_says_why(admin_client: Client) -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(schedule="99 * * * *")
    response = admin_client.get(job_url(job))

    assert "minute: 99 is out of range" in response.context["preview"].problem


def test_an_empty_form_shows_what_one_may_type(admin_client: Client) -> None:
    response = typed(admin_client)

    assert "@every 1h30m" in piece(response, "occurrences")
    assert piece(response, "said") == ""


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schedule", "61 * * * *"),
        ("schedule", "0 0 30 2 *"),
        ("schedule", "@at 2020-01-01T00:00"),
        ("timezone", "Europe/Berlim"),
        ("timezone", ""),
        ("target", "tests.app.tasks.okk"),
        ("args", "[1,"),
        ("args", "[1]"),
        ("args", "[" * 100_000),
        ("args", "[" + "1" * 5_000 + "]"),
        ("kwargs", "[]"),
        ("kwargs", '{"city": "Berlin"}'),
        ("misfire_grace", "soon"),
        ("misfire_grace", ""),
        ("retry_backoff_max", "1s"),
        ("max_attempts", "0"),
        ("name", "a/b"),
        ("starts_at_0", "tomorrow"),
    ],
)
def test_an_error_is_told_as_a_refused_save_tells_it(admin_client: Client, field: str, value: str) -> None:
    filled = {**as_rendered(admin_client.get(add_url())), **SIMPLE, field: value}
    refused = admin_client.post(add_url(), filled).context["adminform"].form.errors

    response = admin_client.post(URL, filled)

    assert errors(response) == {name: list(messages) for name, messages in refused.items()}
    assert list(errors(response)) == [field.removesuffix("_0")]


def test_empty_fields_that_were_not_reached_yet_are_left_alone(admin_client: Client) -> None:
    assert errors(typed(admin_client)) == {}
    assert list(errors(typed(admin_client, schedule="61 * * * *"))) == ["schedule"]


def test_a_field_that_was_emptied_is_told(admin_client: Client) -> None:
    assert list(errors(typed(admin_client, make_job(), name=""))) == ["name"]


def test_after_a_refused_save_every_error_is_told(admin_client: Client) -> None:
    refused = admin_client.post(add_url(), as_rendered(admin_client.get(add_url())))
    assert 'name="_refused"' in refused.content.decode()

    response = typed(admin_client, _refused="1", schedule="30 3 * * *")
    assert set(errors(response)) == {"name", "target"}


def test_a_taken_name_is_told(admin_client: Client) -> None:
    make_job("new")

    assert "already exists" in errors(typed(admin_client, **SIMPLE))["__all__"][0]


def test_what_depends_on_a_wrong_field_is_left_out(admin_client: Client) -> None:
    response = typed(
        admin_client, **SIMPLE | {"schedule": "61 * * * *", "max_attempts": "0", "misfire_grace": "soon"}
    )

    assert piece(response, "occurrences") == ""
    assert piece(response, "retry") == ""
    assert piece(response, "policies") == ""


def test_what_is_typed_is_escaped(admin_client: Client) -> None:
    nasty = "<b onclick=x>'\""
    fields = ["name", "target", "schedule", "timezone", "args", "kwargs", "tags", "misfire_grace", "queue"]
    response = typed(admin_client, **dict.fromkeys(fields, nasty))

    assert "<b" not in response.content.decode()
    assert "&lt;b" in response.content.decode()


# --- target -----------------------------------------------------------------------------------------------------------


def test_a_target_is_introduced(admin_client: Client) -> None:
    response = typed(admin_client, **SIMPLE | {"target": "tests.app.tasks.tidy"})

    assert piece(response, "target").startswith("Celery task tidy(seconds: float)")
    assert "When told to stop, put things in order and say so." in piece(response, "target")


@pytest.mark.django_tasks
def test_a_django_task_is_introduced(admin_client: Client) -> None:
    response = typed(
        admin_client, **SIMPLE | {"target": "tests.tasked.tasks.look", "kwargs": '{"name": "a"}'}
    )

    assert piece(response, "target").startswith("Django task look(name: str)")


def test_the_page_introduces_the_stored_target(admin_client: Client) -> None:
    page = admin_client.get(job_url(make_job(target="tests.app.tasks.nap", args=[1]))).content.decode()

    assert "nap(seconds: float)" in page


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ([], {}, "'seconds' is missing"),
        ([1, 2], {}, "2 positional arguments are too many"),
        ([1], {"second": 1}, "'second' is no parameter; did you mean seconds?"),
        ([1], {}, ""),
        ([], {"seconds": 1}, ""),
    ],
)
def test_arguments_are_held_against_the_signature(
    admin_client: Client, args: list[Any], kwargs: dict[str, Any], said: str
) -> None:
    arguments = {"args": json.dumps(args), "kwargs": json.dumps(kwargs)}
    response = typed(admin_client, **SIMPLE | arguments | {"target": "tests.app.tasks.nap"})

    assert (said in piece(response, "target")) if said else ("Arguments" not in piece(response, "target"))
    assert bool(errors(response)) == bool(said)


def test_an_unknown_target_is_not_introduced(admin_client: Client) -> None:
    response = typed(admin_client, **SIMPLE | {"target": "os.system"})

    assert piece(response, "target") == ""
    assert "no target" in errors(response)["target"][0]


# --- policies and retry -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"misfire_policy": "skip", "misfire_grace": "2m"},
            "cannot start within 2m of its time is recorded as missed",
        ),
        ({"misfire_policy": "run_latest"}, "within 1m of their time only the latest runs"),
        ({"misfire_policy": "run_all", "catchup_limit": "7"}, "oldest first, at most 7 of them"),
        ({"start_deadline": "10m"}, "none starts later than 10m after it was due"),
        ({"overlap_policy": "allow"}, "side by side"),
        ({"overlap_policy": "skip"}, "is recorded as skipped"),
        ({"overlap_policy": "queue_one"}, "while one waits, more are skipped"),
        ({"overlap_policy": "queue_all"}, "run one after another"),
        ({"overlap_policy": "cancel_running"}, "has that one cancelled"),
        ({"schedule": "*/5 * * * *", "timeout": "10m"}, "a run may take 10m, and the next may come after 5m"),
        ({"max_attempts": "2"}, "waits for its next attempt is unfinished"),
        ({}, "There is no timeout"),
    ],
)
def test_policies_are_explained_with_the_jobs_own_figures(
    admin_client: Client, fields: dict[str, str], said: str
) -> None:
    assert said in piece(typed(admin_client, **SIMPLE | fields), "policies")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "A finished run is deleted 30d after its end, a failed one 90d after; the latest one stays."),
        ({"keep_for": "365d"}, "deleted 365d after its end, a failed one 365d after"),
        ({"keep_for": "1d", "keep_failed_for": "36h"}, "deleted 1d after its end, a failed one 1d12h after"),
        ({"keep_runs": "50"}, "only the latest 50 are kept, and of the failed ones as many"),
    ],
)
def test_retention_is_told_with_the_settings_figures_where_the_job_has_none(
    admin_client: Client, fields: dict[str, str], said: str
) -> None:
    assert said in piece(typed(admin_client, **SIMPLE | fields), "retention")
    assert piece(typed(admin_client, **SIMPLE, keep_for="soon"), "retention") == ""
    assert ("only the latest" in piece(typed(admin_client, **SIMPLE | fields), "retention")) == (
        "keep_runs" in fields
    )


def test_what_cannot_happen_is_not_told(admin_client: Client) -> None:
    response = typed(admin_client, **SIMPLE, timeout="10m")

    assert "This can happen" not in piece(response, "policies")
    assert "no timeout" not in piece(response, "policies")
    assert "next attempt" not in piece(response, "policies")


def test_retry_is_told_and_drawn(admin_client: Client) -> None:
    response = typed(admin_client, **SIMPLE, max_attempts="5", retry_backoff="10s", retry_jitter="0.1")

    said = piece(response, "retry")
    assert "5 attempts: after 10s, 20s, 40s, 1m20s; gives up after about 2m30s." in said
    assert "Each wait is up to 10 % shorter or longer, at random." in said
    assert response.content.decode().count("<circle") == 5
    assert "Tried once" in piece(typed(admin_client, **SIMPLE), "retry")


# --- the groups -------------------------------------------------------------------------------------------------------


def open_groups(response: Any) -> list[str]:
    return [str(group.title) for group in response.context["groups"] if group.is_open]


def test_a_simple_job_shows_four_fields(admin_client: Client) -> None:
    response = admin_client.get(add_url())

    assert open_groups(response) == []
    assert len(response.context["groups"]) == 11
    first = next(iter(response.context["adminform"]))
    assert first.fields == ("name", "target", "schedule", "timezone")
    assert response.content.decode().count('<details class="module dcron-group"') == 11


@pytest.mark.parametrize(
    ("values", "titles"),
    [
        ({}, []),
        ({"timeout": timedelta(minutes=5)}, ["Timeout and retry"]),
        ({"tags": ["billing"], "args": []}, ["About"]),
        ({"overlap_policy": "allow", "queue": "slow"}, ["Late, or still running", "Queue"]),
        ({"enabled": False}, ["Pause"]),
    ],
)
def test_what_is_not_the_default_is_not_hidden(
    admin_client: Client, values: dict[str, Any], titles: list[str]
) -> None:
    assert open_groups(admin_client.get(job_url(make_job(**values)))) == titles


@pytest.mark.parametrize(
    ("field", "value", "title"),
    [
        ("args", "[1,", "Arguments"),
        ("retry_backoff", "soon", "Timeout and retry"),
        ("priority", "10", "Queue"),
        ("namespace", "", "About"),
    ],
)
def test_an_error_opens_its_group(admin_client: Client, field: str, value: str, title: str) -> None:
    filled = {**as_rendered(admin_client.get(add_url())), **SIMPLE, field: value}
    response = admin_client.post(add_url(), filled)

    assert open_groups(response) == [title]
    assert re.search(f"<details[^>]* open>\\s*<summary><h2>{title}", response.content.decode())


def test_every_field_is_on_the_page(admin_client: Client) -> None:
    response = admin_client.get(add_url())
    page = response.content.decode()

    for name in response.context["adminform"].form.fields.keys() - {"seen_version"}:
        assert re.search(f'name="{name}(_0)?"', page), name


def test_who_may_only_look_sees_the_values_in_their_groups(staff_with: StaffWith) -> None:
    response = staff_with("view_job").get(job_url(make_job(queue="slow")))

    assert open_groups(response) == ["Queue"]
    assert "slow" in response.content.decode()
