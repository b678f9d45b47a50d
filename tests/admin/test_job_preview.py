"""Test the live preview of the job form: it reports what saving would report and writes nothing."""

import json
import re
import sys
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import reverse
from django.utils.timezone import localdate

from django_dcron import control
from django_dcron.diagnosis.lookahead import CROWDED_FROM
from django_dcron.models import Cursor, Job
from tests.admin.conftest import StaffWith, add_url, as_rendered, fill_in, job_url, make_job

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


def post_preview(client: Client, job: Job | None = None, **changes: str) -> Any:
    """Return the preview's response to the page's form with these fields changed."""
    filled = as_rendered(client.get(job_url(job) if job else add_url()))
    response = client.post(preview_url(job), {**filled, **changes})
    assert response.status_code == 200
    return response


def errors(response: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for error in response.context["preview"].errors:
        found.setdefault(error.field, []).append(error.message)
    return found


def part_text(response: Any, name: str) -> str:
    """Return the text of one part of the response."""
    start = response.content.decode().split(
        f'<div id="dcron-preview-{name}" hx-swap-oob="innerHTML">'
    )[1]
    inner = re.split(r'<div id="dcron-preview-|\Z', start)[0]
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", inner).split()))


def cautions(response: Any) -> list[str]:
    return re.findall('data-dcron-caution="([a-z_]+)"', response.content.decode())


# --- permissions ----------------------------------------------------------------------------------


def test_preview_url_is_stable() -> None:
    assert preview_url() == URL


def test_anonymous_user_is_redirected_to_login(client: Client, db: None) -> None:
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
def test_preview_requires_add_or_change_permission(
    staff_with: StaffWith, permissions: tuple[str, ...], new: int, stored: int
) -> None:
    client, job = staff_with(*permissions), make_job()

    assert client.post(URL, SIMPLE).status_code == new
    assert client.post(preview_url(job), SIMPLE).status_code == stored


def test_preview_requires_post_with_csrf_token(admin_client: Client, admin_user: Any) -> None:
    assert admin_client.get(URL).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    assert strict.post(URL, SIMPLE).status_code == 403


@pytest.mark.parametrize("job_id", ["0", "abc", "", "999999999999999999999"])
def test_preview_of_unknown_job_returns_404(admin_client: Client, job_id: str) -> None:
    assert admin_client.post(f"{URL}?job={job_id}", SIMPLE).status_code == 404


def test_form_has_preview_only_for_users_who_can_edit(staff_with: StaffWith) -> None:
    job = make_job()

    for client, url, is_shown in [
        (staff_with("view_job"), job_url(job), False),
        (staff_with("change_job"), job_url(job), True),
        (staff_with("add_job"), add_url(), True),
    ]:
        page = client.get(url).content.decode()
        assert ('id="dcron-preview"' in page) == is_shown
        assert (URL in page) == is_shown


# --- read-only ------------------------------------------------------------------------------------


def test_preview_writes_nothing(admin_client: Client) -> None:
    job = make_job()
    before = list(Job.objects.values()), list(Cursor.objects.values())

    post_preview(admin_client, **SIMPLE)
    post_preview(admin_client, job, schedule="1 1 * * *", name="other", enabled="")
    with CaptureQueriesContext(connection) as queries:
        admin_client.post(preview_url(job), SIMPLE)

    assert (list(Job.objects.values()), list(Cursor.objects.values())) == before
    assert all(query["sql"].lstrip("( ").upper().startswith("SELECT") for query in queries)


def test_preview_needs_few_queries(
    admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    """An existing job costs the session, user, job, name check, clock, load and freezes queries."""
    job = make_job()
    filled = as_rendered(admin_client.get(job_url(job)))

    with django_assert_max_num_queries(7):
        admin_client.post(preview_url(job), filled)
    with django_assert_max_num_queries(5):
        admin_client.post(preview_url(), SIMPLE)


# --- contents -------------------------------------------------------------------------------------


def test_preview_shows_description_and_ten_occurrences_in_two_zones(admin_client: Client) -> None:
    response = post_preview(admin_client, **SIMPLE | {"timezone": "Asia/Tokyo"})

    assert "At 03:30 (Asia/Tokyo)" in part_text(response, "result")
    rows = response.context["preview"].rows
    assert [(row.time, row.site_time) for row in rows] == [("03:30", "18:30")] * 10
    assert all(row.site_day and row.site_day != row.day for row in rows)
    assert [row.gap for row in rows] == ["", *["1d"] * 9]
    assert "Asia/Tokyo UTC Interval" in part_text(response, "occurrences")
    assert cautions(response) == []


@override_settings(TIME_ZONE="Asia/Seoul")
def test_preview_shows_the_zone_of_the_site(admin_client: Client) -> None:
    response = post_preview(admin_client, **SIMPLE | {"timezone": "Asia/Shanghai"})
    assert "Asia/Shanghai Asia/Seoul Interval" in part_text(response, "occurrences")
    rows = response.context["preview"].rows
    assert [(row.time, row.site_time) for row in rows] == [("03:30", "04:30")] * 10
    assert not any(row.site_day for row in rows)


def test_preview_in_zone_of_the_site_has_one_time_column(admin_client: Client) -> None:
    response = post_preview(admin_client, **SIMPLE | {"timezone": "UTC", "schedule": "*/5 * * * *"})

    assert part_text(response, "occurrences").startswith("Next occurrences UTC Interval")
    gaps = [row.gap for row in response.context["preview"].rows]
    assert gaps == ["", *["5m"] * 9]


def test_preview_shows_seconds_of_schedule_with_seconds(admin_client: Client) -> None:
    rows = (
        post_preview(admin_client, **SIMPLE | {"schedule": "*/20 * * * * *"})
        .context["preview"]
        .rows
    )

    assert {row.time[-3:] for row in rows} == {":00", ":20", ":40"}


def test_preview_of_interval_starts_at_cursor_of_stored_job(admin_client: Client) -> None:
    job = make_job(schedule="@every 7m")
    response = post_preview(admin_client, job)

    assert (
        response.context["preview"].lookahead.occurrences[0].at
        == Cursor.objects.get(job=job).next_at
    )
    assert "data-dcron-counted" not in response.content.decode()
    new = post_preview(admin_client, **SIMPLE | {"schedule": "@every 7m"})
    assert "data-dcron-counted" in new.content.decode()


def test_preview_of_paused_job_shows_occurrences_and_notice(admin_client: Client) -> None:
    job = make_job()
    control.pause(job)
    response = post_preview(admin_client, job)

    assert 'class="dcron-quiet" data-dcron-paused' in response.content.decode()
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
def test_preview_shows_caution(admin_client: Client, fields: dict[str, str], caution: str) -> None:
    filled = {**as_rendered(admin_client.get(add_url())), **SIMPLE, **fields}
    if filled["enabled"] == "off":
        del filled["enabled"]

    assert set(cautions(admin_client.post(URL, filled))) == ({caution} if caution else set())


def test_preview_warns_of_near_end(admin_client: Client) -> None:
    ends = {"ends_at_0": "2099-01-01", "ends_at_1": "00:00", "schedule": "0 0 1 1 *"}
    starts = {"starts_at_0": "2090-06-01", "starts_at_1": "00:00"}

    assert "ends_soon" in cautions(post_preview(admin_client, **SIMPLE | ends | starts))


def test_preview_warns_of_crowded_minute(admin_client: Client) -> None:
    for number in range(CROWDED_FROM):
        make_job(f"crowd-{number}", schedule="0 4 * * *", timezone="Europe/Berlin")
    response = post_preview(admin_client, **SIMPLE | {"schedule": "0 4 * * *"})

    assert "crowded_minute" in cautions(response)
    assert "“H 4 * * *”" in part_text(response, "result")


def test_page_shows_problem_of_invalid_stored_schedule(admin_client: Client) -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(schedule="99 * * * *")
    response = admin_client.get(job_url(job))

    assert "minute: 99 is out of range" in response.context["preview"].problem


def test_empty_form_shows_schedule_examples(admin_client: Client) -> None:
    response = post_preview(admin_client)

    assert "@every 1h30m" in part_text(response, "hint")
    assert part_text(response, "occurrences") == part_text(response, "result") == ""


def test_sentence_is_previewed_and_saved_as_schedule_text(admin_client: Client) -> None:
    typed = SIMPLE | {"schedule": "every weekday at 9:30\r\n0 12 * * SAT"}
    saved_as = "30 9 * * MON-FRI\n0 12 * * SAT"

    response = post_preview(admin_client, **typed)
    assert errors(response) == {}
    assert response.context["preview"].replaced_sentence == saved_as
    assert "data-dcron-sentence" in response.content.decode()
    plain = post_preview(admin_client, **SIMPLE | {"schedule": " 30 3 * * * "})
    assert "data-dcron-sentence" not in plain.content.decode()

    fill_in(admin_client, add_url(), **typed)
    assert Job.objects.get().schedule == saved_as


def test_every_second_week_is_counted_from_the_next_matching_day(admin_client: Client) -> None:
    typed = SIMPLE | {"schedule": "every 2 weeks on Friday 09:00"}
    found = post_preview(admin_client, **typed).context["preview"].replaced_sentence
    word, start, rule = found.split()
    assert (word, rule) == ("@rrule", "FREQ=WEEKLY;INTERVAL=2;BYDAY=FR")
    first = datetime.fromisoformat(start)
    assert (first.weekday(), first.hour) == (4, 9)
    assert first.date() - localdate() < timedelta(days=7)


def test_sentence_with_unknown_word_is_refused(admin_client: Client) -> None:
    typed = SIMPLE | {"schedule": "every other weekday at 9:30"}
    assert list(errors(post_preview(admin_client, **typed))) == ["schedule"]


def test_error_of_a_single_time_names_its_date(admin_client: Client) -> None:
    typed = SIMPLE | {"schedule": "next friday at 18:00"}
    (message,) = errors(post_preview(admin_client, **typed))["schedule"]
    assert "'next friday at 18:00'" in message
    suggested = re.search(r"@at (\S+T18:00)\.", message)
    assert suggested
    moment = datetime.fromisoformat(suggested[1])
    assert moment.weekday() == 4
    assert timedelta() < moment.date() - localdate() <= timedelta(days=7)


def test_date_of_a_single_time_is_that_of_the_typed_zone(admin_client: Client) -> None:
    """The dates of the two zones always differ, because their offsets are 25 hours apart."""
    dates = []
    for zone in ("Pacific/Pago_Pago", "Pacific/Kiritimati"):
        typed = SIMPLE | {"schedule": "tomorrow at 9", "timezone": zone}
        (message,) = errors(post_preview(admin_client, **typed))["schedule"]
        dates += re.findall(r"@at (\S+)T09:00", message)
    early, late = dates
    assert early < late


# --- errors ---------------------------------------------------------------------------------------


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
def test_preview_reports_same_errors_as_save(admin_client: Client, field: str, value: str) -> None:
    filled = {**as_rendered(admin_client.get(add_url())), **SIMPLE, field: value}
    refused = admin_client.post(add_url(), filled).context["adminform"].form.errors

    response = admin_client.post(URL, filled)

    assert errors(response) == {name: list(messages) for name, messages in refused.items()}
    assert list(errors(response)) == [field.removesuffix("_0")]


def test_preview_ignores_empty_fields_of_new_job(admin_client: Client) -> None:
    assert errors(post_preview(admin_client)) == {}
    assert list(errors(post_preview(admin_client, schedule="61 * * * *"))) == ["schedule"]


def test_preview_reports_emptied_field_of_stored_job(admin_client: Client) -> None:
    assert list(errors(post_preview(admin_client, make_job(), name=""))) == ["name"]


def test_preview_after_refused_save_reports_empty_fields(admin_client: Client) -> None:
    refused = admin_client.post(add_url(), as_rendered(admin_client.get(add_url())))
    assert 'name="_refused"' in refused.content.decode()

    response = post_preview(admin_client, _refused="1", schedule="30 3 * * *")
    assert set(errors(response)) == {"name", "target"}


def test_preview_reports_duplicate_name(admin_client: Client) -> None:
    make_job("new")

    response = post_preview(admin_client, **SIMPLE)
    assert list(errors(response)) == ["name"]
    found = response.context["preview"].form.errors.as_data()["name"]
    assert [error.code for error in found] == ["unique_together"]


def test_preview_omits_parts_that_depend_on_invalid_fields(admin_client: Client) -> None:
    response = post_preview(
        admin_client,
        **SIMPLE | {"schedule": "61 * * * *", "max_attempts": "0", "misfire_grace": "soon"},
    )

    assert part_text(response, "retry") == ""
    assert part_text(response, "policies") == ""


def test_invalid_schedule_keeps_last_occurrences_and_shows_examples(admin_client: Client) -> None:
    valid = post_preview(admin_client, **SIMPLE)
    invalid = post_preview(admin_client, **SIMPLE | {"schedule": "61 * * * *"})

    occurrences = 'id="dcron-preview-occurrences"'
    assert occurrences in valid.content.decode()
    assert occurrences not in invalid.content.decode()
    assert part_text(valid, "hint") == ""
    assert "@every 1h30m" in part_text(invalid, "hint")


def test_refused_page_shows_examples_once(admin_client: Client) -> None:
    for schedule in ("61 * * * *", ""):
        response = fill_in(admin_client, add_url(), **SIMPLE | {"schedule": schedule})
        assert response.content.decode().count('class="dcron-examples"') == 1


def test_each_response_replaces_examples_of_page(admin_client: Client) -> None:
    page = admin_client.get(add_url()).content.decode()
    invalid = post_preview(admin_client, **SIMPLE | {"schedule": "61 * * * *"})

    before, _start, after = page.partition('id="dcron-preview-occurrences"')
    assert ["dcron-examples" in part for part in (before, after)] == [True, False]
    assert "@every 1h30m" in part_text(invalid, "hint")


def test_preview_escapes_values(admin_client: Client) -> None:
    nasty = "<b onclick=x>'\""
    fields = [
        "name",
        "target",
        "schedule",
        "timezone",
        "args",
        "kwargs",
        "tags",
        "misfire_grace",
        "queue",
    ]
    response = post_preview(admin_client, **dict.fromkeys(fields, nasty))

    assert "<b" not in response.content.decode()
    assert "&lt;b" in response.content.decode()


# --- target ---------------------------------------------------------------------------------------


def test_preview_shows_signature_and_docstring_of_target(admin_client: Client) -> None:
    response = post_preview(
        admin_client, **SIMPLE | {"target": "tests.app.tasks.clean_up_when_cancelled"}
    )

    assert part_text(response, "target").startswith(
        "Celery task clean_up_when_cancelled(seconds: float)"
    )
    assert "When asked to stop, clean up and report it." in part_text(response, "target")


@pytest.mark.django_tasks
def test_preview_shows_signature_of_django_task(admin_client: Client) -> None:
    fields = SIMPLE | {"target": "tests.tasked.tasks.describe", "kwargs": '{"name": "a"}'}
    response = post_preview(admin_client, **fields)

    assert part_text(response, "target").startswith("Django task describe(name: str)")


def test_page_shows_signature_of_stored_target(admin_client: Client) -> None:
    page = admin_client.get(
        job_url(make_job(target="tests.app.tasks.nap", args=[1]))
    ).content.decode()

    assert "nap(seconds: float)" in page


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ([], {}, ["args", "'seconds'"]),
        ([1, 2], {}, ["args", "2"]),
        ([1], {"second": 1}, ["kwargs", "'second'", "seconds"]),
        ([1], {}, []),
        ([], {"seconds": 1}, []),
    ],
)
def test_arguments_are_checked_against_signature(
    admin_client: Client, args: list[Any], kwargs: dict[str, Any], text: list[str]
) -> None:
    arguments = {"args": json.dumps(args), "kwargs": json.dumps(kwargs)}
    response = post_preview(admin_client, **SIMPLE | arguments | {"target": "tests.app.tasks.nap"})

    assert ("dcron-wrong-text" in response.content.decode()) == bool(text)
    assert list(errors(response)) == text[:1]
    for value in text[1:]:
        assert value in part_text(response, "target")


def test_preview_of_unknown_target_shows_error_only(admin_client: Client) -> None:
    response = post_preview(admin_client, **SIMPLE | {"target": "os.system"})

    assert part_text(response, "target") == ""
    assert "os.system" in errors(response)["target"][0]


# --- policies and retry ---------------------------------------------------------------------------


def explanations(response: Any) -> dict[str, str]:
    """Return the text of each explanation of a policy, by its code."""
    page = unescape(response.content.decode())
    return dict(re.findall('data-dcron-explanation="([a-z_]+)">([^<]*)<', page))


@pytest.mark.parametrize(
    ("fields", "code", "values"),
    [
        ({"misfire_policy": "skip", "misfire_grace": "2m"}, "misfire_skip", ["2m"]),
        ({"misfire_policy": "run_latest"}, "misfire_run_latest", ["1m"]),
        ({"misfire_policy": "run_all", "catchup_limit": "7"}, "misfire_run_all", ["1m", "7"]),
        ({"start_deadline": "10m"}, "start_deadline", ["10m"]),
        ({"overlap_policy": "allow"}, "overlap_allow", []),
        ({"overlap_policy": "skip"}, "overlap_skip", []),
        ({"overlap_policy": "queue_one"}, "overlap_queue_one", []),
        ({"overlap_policy": "queue_all"}, "overlap_queue_all", []),
        ({"overlap_policy": "cancel_running"}, "overlap_cancel_running", []),
        ({"schedule": "*/5 * * * *", "timeout": "10m"}, "longer_than_gap", ["10m", "5m"]),
        ({"max_attempts": "2"}, "retries", []),
        ({}, "no_timeout", []),
    ],
)
def test_policies_are_explained_with_values_of_job(
    admin_client: Client, fields: dict[str, str], code: str, values: list[str]
) -> None:
    found = explanations(post_preview(admin_client, **SIMPLE | fields))
    assert re.findall(r"\d+[smhd]?", found[code]) == values
    for kind in ("misfire", "overlap"):
        assert len([each for each in found if each.startswith(f"{kind}_")]) == 1
    assert len({*found.values()}) == len(found)


@pytest.mark.parametrize(
    ("fields", "code", "values"),
    [
        ({}, "keep_for", ["30d", "90d"]),
        ({"keep_for": "365d"}, "keep_for", ["365d", "365d"]),
        ({"keep_for": "1d", "keep_failed_for": "36h"}, "keep_for", ["1d", "1d 12h"]),
        ({"keep_failed_for": "36500d"}, "keep_failed_forever", ["30d"]),
        ({"keep_for": "36500d"}, "keep_forever", []),
        ({"keep_runs": "50"}, "keep_runs", ["50", "50"]),
    ],
)
def test_retention_is_explained_with_defaults_from_settings(
    admin_client: Client, fields: dict[str, str], code: str, values: list[str]
) -> None:
    found = explanations(post_preview(admin_client, **SIMPLE | fields))
    assert re.findall(r"\d+[smhd]?(?: \d+[smhd])*", found[code]) == values
    assert ("keep_runs" in found) == ("keep_runs" in fields)
    assert part_text(post_preview(admin_client, **SIMPLE, keep_for="soon"), "retention") == ""


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({"keep_for": "36500d"}, {"keep_runs"}),
        ({"keep_failed_for": "36500d"}, {"keep_failed_forever", "keep_runs"}),
        ({}, {"keep_for", "keep_runs"}),
    ],
)
def test_limited_number_of_runs_is_not_kept_forever(
    admin_client: Client, fields: dict[str, str], codes: set[str]
) -> None:
    found = explanations(post_preview(admin_client, **SIMPLE | fields, keep_runs="50"))
    assert {code for code in found if code.startswith("keep_")} == codes


def test_inapplicable_explanations_are_omitted(admin_client: Client) -> None:
    found = explanations(post_preview(admin_client, **SIMPLE, timeout="10m"))

    assert not found.keys() & {"longer_than_gap", "no_timeout", "retries", "start_deadline"}
    assert "overlap_skip" in found


def exception_texts(client: Client, **fields: str) -> list[str]:
    content = post_preview(client, **SIMPLE | {"max_attempts": "3"} | fields).content.decode()
    return [unescape(each) for each in re.findall("data-dcron-exceptions>(.*?)</p>", content)]


def test_retried_exceptions_are_listed(admin_client: Client) -> None:
    listed = '["ConnectionError", "django.core.exceptions.ValidationError", "ValidationError"]'
    (text,) = exception_texts(admin_client, retry_on=listed)
    assert all(name in text for name in json.loads(listed))
    assert exception_texts(admin_client, retry_on=listed, max_attempts="1") == []
    assert exception_texts(admin_client, never_retry_on=listed) == []
    assert exception_texts(admin_client) == []
    assert exception_texts(admin_client, retry_on="[1]") == []


def test_unknown_exception_is_noted_without_importing_it(admin_client: Client) -> None:
    assert "this" not in sys.modules
    fields = {"retry_on": '["ConectionError"]', "never_retry_on": '["this.NoError"]'}
    only, misspelled, unknown = exception_texts(admin_client, **fields)
    assert "ConectionError" in only
    assert "Did you mean 'ConnectionError'" in misspelled
    assert "this.NoError" in unknown
    assert "this" not in sys.modules
    assert errors(post_preview(admin_client, **SIMPLE | fields)) == {}


def test_other_name_of_an_exception_class_never_matches(admin_client: Client) -> None:
    listed = '["IOError", "builtins.ValueError", "django.http.Http404", "socket.timeout"]'
    _only, *noted = exception_texts(admin_client, retry_on=listed)
    real = ["OSError", "ValueError", "django.http.response.Http404", "TimeoutError"]
    assert [name in text for name, text in zip(map(repr, real), noted, strict=True)] == [True] * 4
    assert "workers" not in " ".join(noted)


def test_retries_are_described_and_drawn(admin_client: Client) -> None:
    response = post_preview(
        admin_client, **SIMPLE, max_attempts="5", retry_backoff="10s", retry_jitter="0.1"
    )

    text = part_text(response, "retry")
    for value in ("5", "10s, 20s, 40s, 1m 20s", "2m 30s", "10%"):
        assert value in text
    assert response.content.decode().count("<circle") == 5
    once = post_preview(admin_client, **SIMPLE)
    assert part_text(once, "retry")
    assert "<circle" not in once.content.decode()


# --- tabs -----------------------------------------------------------------------------------------


def opened_tab(response: Any) -> str:
    """Return the name of the open tab, which is marked once in the list and once as a section."""
    page, name = response.content.decode(), str(response.context["open_tab"])
    assert re.findall(r'href="#dcron-(\w+)" data-dcron-selected', page) == [name]
    assert re.findall(r'id="dcron-(\w+)"[^>]* data-dcron-open', page) == [name]
    return name


def counts(response: Any, count: str) -> dict[str, int]:
    """Return the tabs with a count that isn't 0."""
    return {tab.name: number for tab in response.context["tabs"] if (number := getattr(tab, count))}


def test_form_has_at_most_five_tabs_and_begins_with_four_fields(admin_client: Client) -> None:
    response = admin_client.get(add_url())

    tabs = response.context["tabs"]
    assert len(tabs) <= 5
    assert tabs[0].groups[0].names == ["name", "target", "schedule", "timezone"]
    assert opened_tab(response) == tabs[0].name
    assert counts(response, "changed") == {}
    assert opened_tab(admin_client.get(job_url(make_job()))) == "overview"


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        ({}, {}),
        ({"timeout": timedelta(minutes=5)}, {"failures": 1}),
        ({"tags": ["billing"], "args": []}, {"general": 1}),
        ({"overlap_policy": "allow", "queue": "slow"}, {"timing": 1, "sequence": 1}),
        ({"enabled": False}, {"failures": 1}),
    ],
)
def test_tabs_count_fields_with_other_values_than_the_default(
    admin_client: Client, values: dict[str, Any], changed: dict[str, int]
) -> None:
    assert counts(admin_client.get(job_url(make_job(**values))), "changed") == changed


@pytest.mark.parametrize(
    ("field", "value", "tab"),
    [
        ("args", "[1,", "general"),
        ("retry_backoff", "soon", "failures"),
        ("priority", "10", "sequence"),
        ("namespace", "", "general"),
        ("keep_for", "long", "retention"),
    ],
)
def test_error_opens_its_tab(admin_client: Client, field: str, value: str, tab: str) -> None:
    job = make_job()
    for url in (add_url(), job_url(job)):
        filled = {**as_rendered(admin_client.get(url)), **SIMPLE, field: value}
        response = admin_client.post(url, filled)

        assert opened_tab(response) == tab
        assert counts(response, "errors") == {tab: 1}


def test_page_contains_every_form_field(admin_client: Client) -> None:
    response = admin_client.get(add_url())
    page = response.content.decode()

    for name in response.context["adminform"].form.fields.keys() - {"seen_version"}:
        assert re.search(f'name="{name}(_0)?"', page), name


def test_read_only_user_sees_values_in_tabs(staff_with: StaffWith) -> None:
    response = staff_with("view_job").get(job_url(make_job(queue="slow")))

    assert counts(response, "changed") == {"sequence": 1}
    assert "slow" in response.content.decode()
