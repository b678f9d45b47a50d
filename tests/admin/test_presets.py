"""Test presets in the form of a new job."""

import re
from typing import Any

import pytest
from django.test import Client

from django_dcron.admin.jobs.preset_links import LABELS
from django_dcron.models import Job
from django_dcron.policies.presets import PRESETS
from tests.admin.conftest import add_url, errors, fill_in, job_url, make_job

pytestmark = pytest.mark.django_db


def presets_in(response: Any) -> list[str]:
    return re.findall(r'href="\?preset=([a-z]+)"', response.content.decode())


@pytest.mark.parametrize("name", PRESETS)
def test_preset_needs_only_name_and_target(admin_client: Client, name: str) -> None:
    preset = PRESETS[name]
    fill_in(admin_client, f"{add_url()}?preset={name}", name="a job", target="tests.app.tasks.ok")
    job = Job.objects.get()
    assert {field: getattr(job, field) for field in preset.fields} == preset.fields
    assert job.schedule == preset.schedule or (not preset.schedule and job.schedule[:4] == "@at ")
    assert job.cursor.next_at is not None


def test_add_form_links_presets_and_marks_chosen_one(admin_client: Client) -> None:
    plain = admin_client.get(add_url())
    assert presets_in(plain) == list(PRESETS) == list(LABELS)
    assert b'aria-current="true"' not in plain.content
    chosen = admin_client.get(f"{add_url()}?preset=poll")
    assert re.findall(r'\?preset=(\w+)" aria-current="true"', chosen.content.decode()) == ["poll"]


def test_change_form_and_popup_have_no_preset_links(admin_client: Client) -> None:
    assert presets_in(admin_client.get(job_url(make_job()))) == []
    assert presets_in(admin_client.get(f"{add_url()}?_popup=1")) == []


def test_unknown_preset_is_ignored_and_query_values_win(admin_client: Client) -> None:
    form = admin_client.get(f"{add_url()}?preset=<b>").context["adminform"].form
    assert form["schedule"].value() in ("", None)
    form = admin_client.get(f"{add_url()}?preset=poll&schedule=@daily").context["adminform"].form
    assert form["schedule"].value() == "@daily"
    assert errors(fill_in(admin_client, f"{add_url()}?preset=poll")).keys() == {"name", "target"}
