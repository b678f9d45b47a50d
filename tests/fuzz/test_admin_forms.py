"""Test that no data sent to a form of the admin causes a server error.

Each form starts with the data of a browser. Some of its values are replaced, removed or repeated.
The examples are the same in each test run. The test undoes each request.
"""

import os
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import transaction
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_dcron import control
from django_dcron.models import Calendar
from tests import depth
from tests.admin.conftest import action_url, add_url, as_rendered, job_url, list_url
from tests.factories import make_idle_job, make_run
from tests.test_hostile_urls import HOSTILE

pytestmark = [pytest.mark.fuzz, pytest.mark.django_db]

EXAMPLES = int(os.environ.get("DCRON_TEST_EXAMPLES", 300 if depth.FULL else 20))
MAX_CHANGES = 4
JSON_TEXTS = (
    "null",
    "[]",
    "{}",
    "1",
    '"a"',
    "[[]]",
    '{"a": NaN}',
    "[1e999]",
    '["\\u0000"]',
    '["\\ud800"]',
    "[" * 5_000,
    '{"a":' * 5_000,
    "9" * 5_000,
    '[""]',
    '[{"on": "failed", "to": ["nobody"]}]',
    '{"job": "ended"}',
    '{":": "ended"}',
    '["x"]',
    "[true]",
)
SCHEDULES = (
    "H(0-3)/15 * * * *",
    "0 0 31 2 *",
    "@every 0s",
    "@every 99999999999h",
    "@at 9999-12-31T23:59",
    "CRON_TZ=Nowhere * * * * *",
    "* * * * * * 2099",
    "0 0 30 2 ? 2099",
    "@at 0001-01-01T00:00",
    "@every 1s",
    "@never",
    "* * * * *",
)
DURATIONS = (
    "1h",
    "-1s",
    "999999999999d",
    "0.0000001s",
    "36501d",
    "P1D",
    "1 day",
    "1e9",
    "36500d 0.000001s",
)
OTHERS = (
    "on",
    "0",
    "1",
    "-1",
    "1.5",
    "Europe/Berlin",
    "2026-12-01",
    "shadow:x",
    "command:x",
    "unacked",
    "\r\n",
    "",
)
VALUES = st.sampled_from((*HOSTILE, *JSON_TEXTS, *SCHEDULES, *DURATIONS, *OTHERS)) | st.text(
    max_size=50
)

JOB_ACTIONS = ("run_now", "pause", "resume", "duplicate", "delete_selected", "export_csv")
RUN_ACTIONS = ("cancel", "rerun", "export_json")
NAMES = (
    "add a job",
    "change a job",
    "preview a job",
    "add a calendar",
    "change a calendar",
    "pause",
    "change a pause",
    "resume",
    "run with arguments",
    "cancel",
    "backfill",
    "delete a job",
    "delete a calendar",
    "act on calendars",
    *(f"{name} jobs" for name in JOB_ACTIONS),
    *(f"{name} runs" for name in RUN_ACTIONS),
)


@dataclass(frozen=True)
class Form:
    url: str
    sent: dict[str, Any]
    statuses: tuple[int, ...] = (302,)
    """The expected statuses for the unchanged form."""


@pytest.fixture
def client(admin_client: Client) -> Client:
    admin_client.raise_request_exception = False
    return admin_client


@pytest.fixture
def forms(client: Client) -> dict[str, Form]:
    calendar = control.save_calendar(Calendar(name="closed", dates="12-25"))
    unused = control.save_calendar(Calendar(name="unused", dates="12-25"))
    job = make_idle_job(target="tests.app.tasks.echo", args=[1], calendar=calendar)
    paused = control.pause(make_idle_job(target="tests.app.tasks.echo"))
    runs = [make_run(job, state) for state in ("pending", "succeeded")]

    def url(name: str, *arguments: Any) -> str:
        return reverse(f"admin:django_dcron_{name}", args=arguments)

    def chosen(action: str, *keys: Any, **more: str) -> dict[str, Any]:
        confirmation = {
            "confirmed": "yes",
            "list_filters": "",
            "select_across": "0",
            "index": "0",
            "post": "yes",
        }
        return {
            "action": action,
            ACTION_CHECKBOX_NAME: list(map(str, keys)),
            **confirmation,
            **more,
        }

    times = {
        f"{name}_{part}": "" for name in ("starts_at", "ends_at", "paused_until") for part in "01"
    }
    of_job = as_rendered(client.get(job_url(job))) | times
    shown = {
        "start": "2026-03-01T00:00:00",
        "end": "2026-03-04T00:00:00",
        "limit": "10",
        "version": "1",
    }
    forms = {
        "add a job": Form(add_url(), of_job | {"name": "new", "seen_version": ""}),
        "change a job": Form(job_url(job), of_job),
        "preview a job": Form(url("job_preview"), of_job, (200,)),
        "add a calendar": Form(
            url("calendar_add"), {"name": "new", "description": "", "dates": "SAT"}
        ),
        "change a calendar": Form(
            url("calendar_change", calendar.pk),
            {"description": "", "dates": "SAT", "seen_version": "1"},
        ),
        "pause": Form(action_url(job, "pause"), {"reason": "deploy", "until": "2h"}),
        "change a pause": Form(
            action_url(paused, "change_pause"), {"reason": "deploy", "until": "2h"}
        ),
        "resume": Form(action_url(paused, "resume"), {"reason": ""}),
        "run with arguments": Form(action_url(job, "run_with"), {"args": "[1]", "kwargs": "{}"}),
        "cancel": Form(action_url(runs[0], "cancel"), {"reason": "wrong"}),
        "backfill": Form(
            url("job_backfill", job.pk), shown | {"previewed_until": shown["end"], "create": "1"}
        ),
        "delete a job": Form(url("job_delete", job.pk), {"post": "yes"}),
        "delete a calendar": Form(url("calendar_delete", unused.pk), {"post": "yes"}),
        "act on calendars": Form(list_url("calendar"), chosen("delete_selected", unused.pk)),
    }
    for name in JOB_ACTIONS:
        sent = chosen(name, job.pk, paused.pk, reason="", until="")
        forms[f"{name} jobs"] = Form(list_url("job"), sent, (200, 302))
    for name in RUN_ACTIONS:
        sent = chosen(name, *(run.pk for run in runs), reason="")
        forms[f"{name} runs"] = Form(list_url("run"), sent, (200, 302))
    return forms


def status_of(client: Client, url: str, sent: dict[str, Any]) -> Any:
    with transaction.atomic():
        response: Any = client.post(url, sent)
        if response.streaming:
            response.getvalue()
        transaction.set_rollback(True)
    error = getattr(response, "exc_info", None)
    return repr(error[1])[:300] if error else response.status_code


@pytest.mark.parametrize("name", NAMES)
def test_hostile_form_data_causes_no_server_error(
    client: Client, forms: dict[str, Form], name: str
) -> None:
    assert set(forms) == set(NAMES)
    form = forms[name]
    assert status_of(client, form.url, form.sent) in form.statuses, (
        "the unchanged form of a browser works"
    )
    fields = st.sampled_from(sorted(form.sent))

    @hypothesis_settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.dictionaries(
            fields, VALUES | st.lists(VALUES, max_size=3), min_size=1, max_size=MAX_CHANGES
        ),
        st.sets(fields, max_size=2),
    )
    def send(changes: dict[str, Any], omitted: set[str]) -> None:
        sent = {key: value for key, value in (form.sent | changes).items() if key not in omitted}
        status = status_of(client, form.url, sent)
        assert isinstance(status, int), status
        assert status < 500

    send()
